"""Stored keys and values of tokens, brought to other positions."""

from kernels.span_placement.dispatch import place, place_layers
from kernels.span_placement.moving import move_layers

__all__ = ["move_layers", "place", "place_layers"]
