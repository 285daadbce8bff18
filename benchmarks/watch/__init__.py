"""What `repo_cache` costs, beside the tokenizer alone and beside encoding a file whole."""
