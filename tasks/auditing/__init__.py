"""Suspects of an audit: which labels may be wrong, by file, and the page that shows them."""
