"""The span store: the memory of stored keys and values, and the index of what lies in it."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.reuse.store.entry import Slots
from engine.reuse.store.index import SpanIndex
from engine.reuse.store.kgrams import TokenIds
from engine.reuse.store.stats import SpanStats
from engine.reuse.types import Match


class SpanStore:
    """Keys before RoPE and values by slot: `keys[layer]` and `values[layer]` are [num_slots, num_kv_heads, head_dim].

    All its methods are called from one thread.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, *, capacity_bytes: int) -> None:
        """Raises EngineError where there is no memory for `capacity_bytes`, or they are too few for one token."""
        self.token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
        num_slots = capacity_bytes // self.token_bytes
        if num_slots < 1:
            raise EngineError(f"the span store has {capacity_bytes} bytes; the KV of a token takes {self.token_bytes}")
        shape = (num_slots, config.num_kv_heads, config.head_dim)
        try:  # zeros touch every page of memory now, not under a request
            self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
            self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        except RuntimeError as error:
            raise EngineError(
                f"there is no memory for {capacity_bytes / 1e9:.1f} GB of stored KV; give the span store less"
            ) from error
        self.device = device
        self._index = SpanIndex(num_slots)

    @property
    def num_slots(self) -> int:
        """Tokens that it has memory for."""
        return self._index.num_slots

    def find(self, root: bytes, token_ids: TokenIds, first: int) -> list[Match]:
        """What is stored of a prompt's tokens [first, len - 1), as `SpanIndex.find` has it."""
        return self._index.find(root, token_ids, first)

    def new_record(self) -> int:
        """A number for one more prompt."""
        return self._index.new_record()

    def reserve(self, num_tokens: int) -> Slots | None:
        """Slots for so many tokens, by evicting if need be; None: there are not as many."""
        return self._index.reserve(num_tokens)

    def give_back(self, slots: Slots) -> None:
        """Reserved slots are not needed after all."""
        self._index.give_back(slots)

    def write(self, slots: Slots, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store keys before RoPE and values, [num_tokens, num_kv_heads, head_dim], in slots that were reserved."""
        places = torch.from_numpy(slots).to(self.device)
        self.keys[layer].index_copy_(0, places, keys)
        self.values[layer].index_copy_(0, places, values)

    def enter(
        self, root: bytes, token_ids: TokenIds, slots: Slots, generation: int, start: int, record: int | None = None
    ) -> None:
        """The KV of these tokens is written in all layers, and found from now on; see `SpanIndex.enter`."""
        self._index.enter(root, token_ids, slots, generation, start, record)

    def stats(self) -> SpanStats:
        """Hits since the start, and what is stored now."""
        return self._index.stats(self.token_bytes)

    def forget(self) -> None:
        """Drop all that is stored; slots that were reserved are free again too."""
        self._index.forget()

    def close(self) -> None:
        """Nothing is asked of it any more."""

    def check_integrity(self) -> None:
        """The parts add up (AssertionError: they do not). As slow as the store is large: for tests."""
        self._index.check_integrity()
