"""Figures drawn: as one offline HTML page, for a paper, as CSV."""
