"""Learns the order of a snippet's readings, and how likely the first is right: `python -m benchmarks.train_reader`."""
