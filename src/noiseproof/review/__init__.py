"""The review of an audit: a page on which a person decides, issue by issue, what each doubtful
label should be.
"""
