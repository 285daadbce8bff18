"""Other engines to measure against, each run by the Python of its own environment (`make peers`)."""
