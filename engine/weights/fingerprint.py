"""A short name for a model's weights, under which its KV is kept: other weights must have another one."""

from __future__ import annotations

from hashlib import blake2b

import torch

from engine.weights.parameters import Parameters

NUM_SAMPLED = 4096
"""Elements of each tensor that are looked at, evenly spaced: a fine-tune or a merged adapter changes nearly all."""


def fingerprint(parameters: Parameters, quantize: str | None = None) -> bytes:
    """blake2b-128 over the config (RoPE among it), the dtype, how the weights are going to be quantised, and a sample
    of every tensor; some milliseconds.
    """
    digest = blake2b(f"{parameters.config} {parameters.dtype} {quantize}".encode(), digest_size=16)
    for name, tensor in sorted(parameters.slots().items()):
        flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.flatten()
        sample = flat[:: max(1, flat.numel() // NUM_SAMPLED)].contiguous()
        digest.update(name.encode() + sample.view(torch.uint8).cpu().numpy().tobytes())
    return digest.digest()
