"""Who asks, and what it may do: bearer tokens, the file that keeps them, and whose request one is."""
