"""How fast a file is copied with an edit, compared with plain decoding and with other engines: `benchmarks.copy`."""
