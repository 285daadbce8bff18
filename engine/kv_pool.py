"""The memory of all pages: every layer's keys and values, taken once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.paging import PageCopy
from kernels.attention import Run

SlotRange = tuple[int, int]
"""Token slots [first, last) of the pool; slot `page * page_size + i` is the page's token i."""


class KVPool:
    """Keys and values by token slot: `keys[layer]` and `values[layer]` are [num_slots, num_kv_heads, head_dim].

    With the slot first, neighbouring pages are one run that attention reads without a copy.
    """

    def __init__(
        self, config: ModelConfig, num_pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Raises EngineError where there is no memory for so many pages."""
        self.page_size = page_size
        self.device = device
        shape = (num_pages * page_size, config.num_kv_heads, config.head_dim)
        try:  # zeros touch every page of memory now, not under a request
            self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
            self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        except RuntimeError as error:
            size_gb = num_pages * page_bytes(config, page_size, dtype) / 1e9
            raise EngineError(
                f"there is no memory for {size_gb:.1f} GB of KV; give the engine a smaller pool"
            ) from error

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Carry out copies of the first tokens of pages, in order."""
        for each in copies:
            source, target = each.source * self.page_size, each.target * self.page_size
            for tensor in chain(self.keys, self.values):
                tensor[target : target + each.num_tokens] = tensor[source : source + each.num_tokens]

    def view(self, reads: Sequence[Sequence[SlotRange]], writes: Sequence[SlotRange]) -> PoolView:
        """One batch's view: what each of its sequences reads, and where its tokens are written, in order."""
        return PoolView(self, reads, writes)


class PoolView:
    """The pool as a `KVStore` of one batch."""

    def __init__(self, pool: KVPool, reads: Sequence[Sequence[SlotRange]], writes: Sequence[SlotRange]) -> None:
        self._pool = pool
        self._reads = reads
        slots = [slot for first, last in writes for slot in range(first, last)]
        self._slots = torch.tensor(slots, dtype=torch.int64, device=pool.keys[0].device)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the batch's keys and values, [num_tokens, num_kv_heads, head_dim]."""
        self._pool.keys[layer].index_copy_(0, self._slots, keys)
        self._pool.values[layer].index_copy_(0, self._slots, values)

    def runs(self, layer: int, index: int) -> list[Run]:
        """Views of the pool."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        return [(keys[first:last], values[first:last]) for first, last in self._reads[index]]


def page_bytes(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page in all layers."""
    return 2 * config.num_layers * page_size * config.num_kv_heads * config.head_dim * dtype.itemsize
