"""Measure the engine next to the machine's limits and other engines: `python -m benchmarks.engine`."""
