"""How fast the engine is, compared with the machine's limits and with other engines: `python -m benchmarks.engine`."""
