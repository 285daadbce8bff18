"""Diffs and V4A patches: ordered hunks put into one file, and sets of files, all or none."""
