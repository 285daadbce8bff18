"""Measure engine and kernels on a card, with random weights in the shapes of known models: `benchmarks.gpu`."""
