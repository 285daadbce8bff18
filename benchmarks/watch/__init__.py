"""What `repo_cache` costs, compared with the tokenizer alone and with encoding a file whole."""
