"""Finds lines in a text: the matching ladder, elided lines, near misses, and changes that are already applied."""
