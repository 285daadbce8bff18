"""Small span stores, and texts with random KV in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import LayerSpec, ModelConfig, Rope
from engine.reuse import Match
from engine.reuse.disk_tier import KVTier, SpanHeader
from engine.reuse.span_store import SpanStore

CPU = torch.device("cpu")

CONFIG = ModelConfig(
    architecture="llama",
    layers=(LayerSpec(Rope(1e4)),) * 4,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_size=64,
    vocab_size=1000,
    max_positions=4096,
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


def store_of(num_slots: int, disk: KVTier | None = None, dtype: torch.dtype = torch.bfloat16) -> SpanStore:
    """A store that has memory for so many tokens."""
    token_bytes = TOKEN_BYTES // 2 * dtype.itemsize
    return SpanStore(CONFIG, dtype, CPU, capacity_bytes=num_slots * token_bytes, disk=disk)


def flush(store: SpanStore) -> None:
    """Wait until the tier has what has left the memory."""
    assert store._tier is not None
    store._tier.flush()


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


def stop(store: SpanStore) -> None:
    """End a store's thread as its process would: what is in memory is not written."""
    assert store._tier is not None
    store._tier.close()


def held(store: SpanStore, match: Match) -> tuple[Tensor, Tensor]:
    """The keys and values of a match, [num_layers, num_tokens, num_kv_heads, head_dim]."""
    keys = torch.stack([each[match.slots] for each in store.keys])
    return keys, torch.stack([each[match.slots] for each in store.values])


def header_of(token_ids: NDArray[np.uint32], num_bytes: int, **changes: Any) -> SpanHeader:
    """The header of an entry of these tokens."""
    header = SpanHeader(b"r" * 32, 7, 40, 1, 4, 2, 8, "bfloat16", token_ids.astype("<u4").tobytes(), num_bytes)
    return replace(header, **changes)
