"""Fills a decoder's parameters from a GGUF file or a safetensors folder, with a LoRA adapter where one is given."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.weights import safetensors
from engine.weights.gguf import GGUFModel
from engine.weights.lora import LoraAdapter
from engine.weights.parameters import Parameters


def load(
    source: GGUFModel | Path,
    dtype: torch.dtype,
    adapter: LoraAdapter | None = None,
    device: torch.device | str = "cpu",
) -> Parameters:
    """Read the model into parameters of `dtype` on `device`; raises WeightsError.

    `source` is an open GGUF file, or a folder with `config.json` and safetensors. The adapter is merged in float32,
    before the one rounding to `dtype`.
    """
    config = source.config if isinstance(source, GGUFModel) else safetensors.read_config(source)
    parameters = Parameters(config, dtype, device)
    tensors = source.tensors() if isinstance(source, GGUFModel) else safetensors.tensors(source)
    if adapter is not None:
        adapter.check_fits(parameters.slots())
        tensors = adapter.merged(tensors)
    parameters.fill(tensors)
    return parameters
