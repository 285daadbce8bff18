"""How fast the engine is on a card, with random weights of the shapes of known models: `benchmarks.gpu`."""
