"""Measure how right, sure and fast the whole pipeline is: `python -m benchmarks.apply`."""
