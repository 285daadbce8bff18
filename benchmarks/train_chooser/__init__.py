"""Trains the weights by which a model chooses among readings: `python -m benchmarks.train_chooser`."""
