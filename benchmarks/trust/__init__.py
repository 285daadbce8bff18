"""Measure whether a file changes beyond its edit, and whether anything guesses: `python -m benchmarks.trust`."""
