"""The folders that are read and written, by name, and what is known of their files."""
