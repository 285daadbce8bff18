"""How fast a file is copied with an edit, beside plain decoding and what others make of it: `benchmarks.copy`."""
