"""Whether a file changes beyond its edit, and whether anybody guesses: `python -m benchmarks.trust`."""
