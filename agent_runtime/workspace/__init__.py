"""Folders that are read and written: confinement, atomic writes, and their index."""
