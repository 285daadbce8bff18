"""Measure what `repo_cache` costs, next to the tokenizer alone and encoding a file whole."""
