"""Workspaces: confined reads, atomic writes, and an index of the files' tokens."""
