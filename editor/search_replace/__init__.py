"""Changes that quote what they replace: SEARCH/REPLACE blocks, old and new text, line ranges, whole files."""
