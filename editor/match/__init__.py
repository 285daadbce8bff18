"""Where lines stand in a text: the matching ladder, one rung a file, and the nearest miss."""
