"""Measure what reuse of KV across turns saves, and what it costs in quality: `benchmarks.reuse`."""
