"""Stored keys and values of tokens, brought to other positions."""

from kernels.span_placement.dispatch import place, place_layers

__all__ = ["place", "place_layers"]
