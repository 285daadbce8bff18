"""Whether anything changes that an edit does not account for, and whether anybody guesses: `python -m benchmarks.trust`."""
