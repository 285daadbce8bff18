"""Stored keys and values of tokens, brought to other positions."""

from kernels.span_placement.chunks import place

__all__ = ["place"]
