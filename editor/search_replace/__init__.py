"""Changes that quote what they replace: SEARCH/REPLACE blocks, strings, line ranges and whole files."""
