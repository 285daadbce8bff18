"""Train the reader of lazy snippets: `python -m benchmarks.train_reader`."""
