"""A cache must keep up with another process that changes its folder at random."""
