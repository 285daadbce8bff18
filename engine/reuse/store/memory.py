"""The memory of the span store: keys before RoPE and values by slot, taken once."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.reuse.store.entry import Slots


class SpanMemory:
    """`keys[layer]` and `values[layer]` are [num_slots, num_kv_heads, head_dim]; a slot is a token's."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, capacity_bytes: int) -> None:
        """As many slots as the bytes hold. Raises EngineError where that is none, or there is no memory for them."""
        self.token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
        self.num_slots = capacity_bytes // self.token_bytes
        self.config = config
        self.dtype = dtype
        self.device = device
        if self.num_slots < 1:
            raise EngineError(f"the span store has {capacity_bytes} bytes; the KV of a token takes {self.token_bytes}")
        shape = (self.num_slots, config.num_kv_heads, config.head_dim)
        try:  # zeros touch every page of memory now, not under a request
            self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
            self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        except RuntimeError as error:
            raise EngineError(
                f"there is no memory for {capacity_bytes / 1e9:.1f} GB of stored KV; give the span store less"
            ) from error

    def write(self, slots: Slots, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values, [num_tokens, num_kv_heads, head_dim], into slots."""
        places = torch.from_numpy(slots).to(self.device)
        self.keys[layer].index_copy_(0, places, keys)
        self.values[layer].index_copy_(0, places, values)

    def payload(self, slots: Slots) -> memoryview:
        """A copy of what is in these slots: the bytes of [2, num_layers, num_tokens, num_kv_heads, head_dim]."""
        places = torch.from_numpy(slots).to(self.device)
        shape = (2 * len(self.keys), len(slots), *self.keys[0].shape[1:])
        copy = torch.empty(shape, dtype=self.dtype)
        for target, source in zip(copy, chain(self.keys, self.values), strict=True):
            target.copy_(source.index_select(0, places))
        return copy.view(torch.uint8).numpy().data.cast("B")

    def restore(self, slots: Slots, payload: memoryview) -> None:
        """Put what `payload` has returned into slots, as many as it was taken of."""
        places = torch.from_numpy(slots).to(self.device)
        shape = (2 * len(self.keys), len(slots), *self.keys[0].shape[1:])
        copy = torch.frombuffer(payload, dtype=self.dtype).view(shape)
        for source, target in zip(copy, chain(self.keys, self.values), strict=True):
            target.index_copy_(0, places, source.to(self.device))
