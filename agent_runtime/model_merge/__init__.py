"""Merges by model: the place that it is loaded into, what it is asked, what becomes of its answer."""
