"""A mess made by another process, and a cache that has to keep up."""
