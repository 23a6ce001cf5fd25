"""Labels of several annotators: the consensus on each row, the quality of each annotator, rows to
label again.
"""
