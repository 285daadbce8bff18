"""A decoder's parameters, and the files that they are loaded from."""

from engine.weights.checkpoint import LoraAdapter, load, save_folder
from engine.weights.parameters import Parameters

__all__ = ["LoraAdapter", "Parameters", "load", "save_folder"]
