"""How much memory a model's weights take, by its config alone, and whether there is so much."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from engine.config import ModelConfig
from engine.device import get_free_bytes
from engine.errors import NotEnoughMemory
from engine.weights.parameters import count_parameters

BYTES_OF_WEIGHT: Mapping[str, float] = {"int8": 1.01, "int4": 1.13, "fp8": 1.01}
"""Bytes of a quantised weight in memory, with its scales: int4 is kept for few rows and, in another order, for many."""

SCHEMES_OF_DEVICE: Mapping[str, tuple[str, ...]] = {"cpu": ("int8", "int4"), "cuda": ("fp8",)}


def estimate_weight_bytes(config: ModelConfig, dtype: torch.dtype, quantize: str | None = None) -> int:
    """Return the bytes of a model's stored weights. `dtype`: of what is not quantised: the embedding, with fp8 also the
    LM head and experts.
    """
    head = config.vocab_size * config.hidden_size
    layers = count_parameters(config) - head * (1 if config.tied_embeddings else 2)
    experts = 0
    if config.experts is not None:
        sizes = config.experts.num_experts, 3 * config.experts.ffn_size, config.hidden_size
        experts = prod(sizes) * sum(layer.has_experts for layer in config.layers)
    of_weight = BYTES_OF_WEIGHT.get(quantize or "", dtype.itemsize)
    of_head = BYTES_OF_WEIGHT["int8"] if quantize in ("int8", "int4") else dtype.itemsize
    of_expert = dtype.itemsize if quantize == "fp8" else of_weight
    return int(head * (dtype.itemsize + of_head) + (layers - experts) * of_weight + experts * of_expert)


def count_kv_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    heads = (1 + config.has_values) * config.num_kv_layers * config.num_kv_heads
    return heads * config.head_dim * dtype.itemsize


def check_memory(
    config: ModelConfig, dtype: torch.dtype, quantize: str | None, device: torch.device, held_bytes: int = 0
) -> None:
    """Raise NotEnoughMemory if a device has less free memory than the weights take, without the `held_bytes` of them
    that it has already; nothing is allocated.
    """
    need, free = estimate_weight_bytes(config, dtype, quantize), get_free_bytes(device)
    if free is None or need <= free + held_bytes:
        return
    smaller = {
        scheme: num_bytes
        for scheme in SCHEMES_OF_DEVICE.get(device.type, ())
        if (num_bytes := estimate_weight_bytes(config, dtype, scheme)) < need
    }
    fitting = [f"--quantize {scheme} takes {num_bytes / 1e9:.1f} GB" for scheme, num_bytes in smaller.items()
               if num_bytes <= free]  # fmt: skip
    kind = quantize or str(dtype).removeprefix("torch.")
    raise NotEnoughMemory(
        f"there is no memory for {need / 1e9:.1f} GB of weights in {kind}: {free / 1e9:.1f} GB are free on {device}; "
        + (" or ".join([*fitting, "take a smaller model"]))
    )
