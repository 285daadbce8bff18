"""A decoder's parameters, and the files that they are loaded from."""

from engine.weights.checkpoint import load
from engine.weights.lora import LoraAdapter
from engine.weights.parameters import Parameters
from engine.weights.safetensors import save_folder

__all__ = ["LoraAdapter", "Parameters", "load", "save_folder"]
