"""The model catalogue: which models there are, where their files lie, and how they are had."""
