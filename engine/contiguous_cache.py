"""A contiguous KV cache, for callers that run one sequence at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engine.errors import DoesNotFit
from kernels.attention import Run, RunTable


class KVCache:
    """One layer's keys and values for up to `max_batch_size` sequences of up to `max_seq_len` tokens.

    `keys` and `values` are [max_batch_size, num_kv_heads, max_seq_len, head_dim] (or wider: `KVFormat`); in slot b the
    tokens [0, `lengths[b]`) are valid, and the rest is never read. Without values of their own both are the same.
    """

    def __init__(
        self,
        max_batch_size: int,
        max_seq_len: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        *,
        has_values: bool = True,
    ) -> None:
        shape = (max_batch_size, max_seq_len, num_kv_heads, head_dim)  # a token's heads are neighbours, as in a pool
        parts = [  # zeros touch every page of memory now, not under a request
            torch.zeros(shape, device=device, dtype=dtype).transpose(1, 2) for _ in range(1 + has_values)
        ]
        self.keys, self.values = parts[0], parts[-1]
        self.lengths = [0] * max_batch_size
        self.max_seq_len = max_seq_len

    @classmethod
    def from_model_config(
        cls,
        max_batch_size: int,
        max_seq_len: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        *,
        has_values: bool = True,
    ) -> list[KVCache]:
        """Return one cache for each layer."""
        sizes = max_batch_size, max_seq_len, num_kv_heads, head_dim
        return [cls(*sizes, device, dtype, has_values=has_values) for _ in range(num_layers)]

    def append(self, slot: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the next tokens' keys and values, [num_tokens, num_kv_heads, head_dim]; return all of the slot's.

        Returns views [num_kv_heads, length, head_dim]. Raises DoesNotFit if the cache is too short.
        """
        start, end = self.lengths[slot], self.lengths[slot] + keys.shape[0]
        if end > self.max_seq_len:
            raise DoesNotFit(f"{end} tokens do not fit a cache of {self.max_seq_len}")
        self.keys[slot, :, start:end] = keys.transpose(0, 1)
        if self.values is not self.keys:
            self.values[slot, :, start:end] = values.transpose(0, 1)
        self.lengths[slot] = end
        return self.keys[slot, :, :end], self.values[slot, :, :end]

    def run(self, slot: int, first: int = 0) -> Run:
        """Return views of a slot's keys and values from token `first` on, [num_tokens, num_kv_heads, head_dim]."""
        seen = slice(first, self.lengths[slot])
        return self.keys[slot, :, seen].transpose(0, 1), self.values[slot, :, seen].transpose(0, 1)

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens [length, ...) of a slot: a rejected draft, or another continuation."""
        assert 0 <= length <= self.lengths[slot]
        self.lengths[slot] = length


def reset_all_caches(caches: Iterable[KVCache]) -> None:
    """Forget every token of every slot; the memory stays allocated."""
    for cache in caches:
        cache.lengths = [0] * len(cache.lengths)


class CacheView:
    """One slot of every layer's cache as the `KVStore` of a batch with `num_tokens` tokens of one sequence."""

    singles: Sequence[int] = ()

    def __init__(self, caches: Sequence[KVCache], slot: int, window: int | None, num_tokens: int) -> None:
        self._caches = caches
        self._slot = slot
        start = caches[0].lengths[slot]
        self._first_key = 0 if window is None else max(0, start + 1 - window)
        if start + num_tokens > caches[0].max_seq_len:
            raise DoesNotFit(f"{start + num_tokens} tokens do not fit a cache of {caches[0].max_seq_len}")

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Append to the layer's cache."""
        self._caches[layer].append(self._slot, keys, values)

    def runs(self, layer: int, index: int) -> list[Run]:
        """Return one run: the cache is contiguous."""
        assert index == 0, "a slot holds one sequence"
        return [self._caches[layer].run(self._slot, self._first_key)]

    def tabulate(
        self, ends: Sequence[int | None], ranges: Sequence[tuple[int, int]], positions: Sequence[int]
    ) -> RunTable:
        """Never called: there is one sequence."""
        raise AssertionError("a contiguous cache has one sequence")

    def point_at(self, table: RunTable, layer: int) -> None:
        """Never called: there is one sequence."""
        raise AssertionError("a contiguous cache has one sequence")

    def gather(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Never called: there is one sequence."""
        raise AssertionError("a contiguous cache has no singles")
