"""Measure how right and how fast the editor is on recorded edits: `python -m benchmarks.edit`."""
