"""Fills a decoder's parameters from a GGUF file or a safetensors folder."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.weights import safetensors
from engine.weights.gguf import GGUFModel
from engine.weights.parameters import Parameters


def load(source: GGUFModel | Path, dtype: torch.dtype) -> Parameters:
    """Read the model into one preallocated block of `dtype`; raises WeightsError.

    `source` is an open GGUF file, or a folder with `config.json` and safetensors.
    """
    if isinstance(source, GGUFModel):
        parameters = Parameters(source.config, dtype)
        parameters.fill(source.tensors())
    else:
        parameters = Parameters(safetensors.read_config(source), dtype)
        parameters.fill(safetensors.tensors(source))
    return parameters
