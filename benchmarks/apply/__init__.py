"""How right, how sure and how fast the whole pipeline is: `python -m benchmarks.apply`."""
