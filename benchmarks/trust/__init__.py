"""Measure whether a file changes beyond its edit, and whether ambiguous edits are guessed: `benchmarks.trust`."""
