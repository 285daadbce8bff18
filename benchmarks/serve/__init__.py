"""Measure the service under load."""
