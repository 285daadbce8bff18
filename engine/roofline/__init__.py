"""The least time and memory that a model's passes take on a machine: the roofline (Williams et al. 2009)."""
