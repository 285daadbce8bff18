"""Attention over keys and values that lie in several pieces of memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.attention import cpu
from kernels.attention.cpu import single_queries
from kernels.attention.invariant import invariant_attention
from kernels.attention.types import Run, Scratch, first_keys

__all__ = [
    "Run",
    "Scratch",
    "causal_attention",
    "first_keys",
    "invariant_attention",
    "scattered_attention",
    "single_queries",
]


def causal_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
    """Attend from the last tokens of a sequence to all of it.

    query: [num_tokens, num_heads, head_dim]; runs: the keys and values of the sequence in order, `seq_len` positions
    in all, the last `num_tokens` of them the queries' own. Query row i stands at `seq_len - num_tokens + i` and sees
    the keys [0, that position], or the last `window` of them. Returns [num_tokens, num_heads, head_dim], contiguous.
    """
    if query.device.type == "cpu":
        num_tokens, num_heads, _ = query.shape
        seq_len, group = sum(len(keys) for keys, _ in runs), num_heads // runs[0][0].shape[1]
        few = cpu.is_quicker(num_tokens, seq_len, group)
        attend = cpu.few_query_attention if few else cpu.block_attention
        return attend(query, runs, scratch, window)
    return cpu.sdpa_attention(query, *_whole(runs), window)


def scattered_attention(query: Tensor, positions: Tensor, runs: Sequence[Run], scratch: Scratch) -> Tensor:
    """Attend from tokens that stand anywhere in a sequence to what stands before each of them.

    query: [num_tokens, num_heads, head_dim]; positions: int64 [num_tokens], where they stand, ascending; runs: the keys
    and values of the sequence's positions from 0 on, in order, up to the last of these at least. Query row i sees the
    keys [0, positions[i]]. There is no sliding window. Returns [num_tokens, num_heads, head_dim], contiguous.

    The last tokens of a sequence get the bits of `causal_attention`.
    """
    at = positions.tolist()
    runs = first_keys(runs, at[-1] + 1)
    if at[-1] - at[0] < len(at):
        return causal_attention(query, runs, scratch)
    if query.device.type == "cpu":
        return cpu.scattered_attention(query, at, runs, scratch)
    return cpu.sdpa_scattered_attention(query, positions, *_whole(runs))


def _whole(runs: Sequence[Run]) -> tuple[Tensor, Tensor]:
    """Keys and values, [num_kv_heads, seq_len, head_dim] each."""
    keys, values = runs[0] if len(runs) == 1 else map(torch.cat, zip(*runs, strict=True))
    return keys.transpose(0, 1), values.transpose(0, 1)
