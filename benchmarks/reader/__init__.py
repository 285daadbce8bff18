"""Reads a lazy snippet as one alignment with its file: learned, measured, and not yet what `editor.merge` uses."""
