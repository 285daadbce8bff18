"""Measurements, run from a checkout; each prints what it compared, on what machine."""
