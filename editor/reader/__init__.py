"""Reads a lazy snippet that no rule decides as one alignment with its file: readings in a learned order."""
