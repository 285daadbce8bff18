"""What is known about a repository's files; for now, the tokenizer's door."""
