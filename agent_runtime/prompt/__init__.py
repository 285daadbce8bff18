"""The prompt of an apply: its forms, and its tokens."""
