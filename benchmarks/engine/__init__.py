"""How fast the engine is, beside what the machine gives and what others make of it: `python -m benchmarks.engine`."""
