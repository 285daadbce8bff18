"""Diffs and V4A patches: ordered hunks of one file, and edits of several files."""
