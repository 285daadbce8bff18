"""Loads the weights of a decoder and computes their fingerprint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b, sha256
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

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
    tensors = source.tensors() if isinstance(source, GGUFModel) else safetensors.read_tensors(source)
    if adapter is not None:
        adapter.check_fits(parameters.slots())
        tensors = adapter.merge_into(tensors)
    parameters.fill(tensors)
    return parameters


CHUNK_BYTES = 64 << 20
"""Bytes that one thread hashes at a time; hashlib lets other threads run meanwhile."""

MAX_THREADS = 16


def fingerprint(parameters: Parameters, quantize: str | None = None) -> bytes:
    """Return blake2b-128 over the config (including RoPE), the dtype, the quantization, and SHA-256 of all bytes of
    every tensor; this takes a second for 2 GB and one core.
    """
    digest = blake2b(f"{parameters.config} {parameters.dtype} {quantize}".encode(), digest_size=16)
    slots = sorted(parameters.slots().items())
    chunks = chain.from_iterable(_chunks(tensor) for _, tensor in slots)
    for name, tensor in slots:
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "fingerprint") as threads:
        for hashed in threads.map(_hash, chunks):
            digest.update(hashed)
    return digest.digest()


def _chunks(tensor: Tensor) -> Sequence[Tensor]:
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.flatten()
    return torch.split(flat.view(torch.uint8), CHUNK_BYTES)


def _hash(chunk: Tensor) -> bytes:
    return sha256(chunk.cpu().numpy().data).digest()
