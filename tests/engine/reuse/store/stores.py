"""Small span stores for tests, and texts with random KV in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig
from engine.reuse.store import SpanStore

CPU = torch.device("cpu")

CONFIG = ModelConfig(
    architecture="llama",
    num_layers=4,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_size=64,
    vocab_size=1000,
    max_positions=4096,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    tied_embeddings=True,
    qkv_bias=False,
)

TOKEN_BYTES = 2 * CONFIG.num_layers * CONFIG.num_kv_heads * CONFIG.head_dim * 2
"""In bfloat16."""


@dataclass(frozen=True)
class Remembered:
    """What was stored of a text: keys and values, [num_layers, num_tokens, num_kv_heads, head_dim]."""

    record: int
    keys: Tensor
    values: Tensor


def text(seed: int, num_tokens: int) -> NDArray[np.uint32]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, 1000, num_tokens).astype(np.uint32)


def store_of(num_slots: int, dtype: torch.dtype = torch.bfloat16) -> SpanStore:
    """A store that has memory for so many tokens."""
    token_bytes = TOKEN_BYTES // 2 * dtype.itemsize
    return SpanStore(CONFIG, dtype, CPU, capacity_bytes=num_slots * token_bytes)


def remembered(
    store: SpanStore, token_ids: NDArray[np.uint32], root: bytes = b"root", generation: int = 0, start: int = 0
) -> Remembered:
    """Store a text with random KV."""
    shape = (2, CONFIG.num_layers, len(token_ids), CONFIG.num_kv_heads, CONFIG.head_dim)
    keys, values = torch.randn(shape).to(store.keys[0].dtype)
    slots = store.reserve(len(token_ids))
    assert slots is not None
    for layer in range(CONFIG.num_layers):
        store.write(slots, layer, keys[layer], values[layer])
    record = store.new_record()
    store.enter(root, token_ids, slots, generation, start, record)
    return Remembered(record, keys, values)
