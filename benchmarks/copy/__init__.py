"""Measure how fast a file is copied with an edit, next to plain decoding and other engines: `benchmarks.copy`."""
