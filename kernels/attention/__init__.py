"""Attention over keys and values that lie in several pieces of memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.attention import cpu
from kernels.attention.cpu import decode_attention
from kernels.attention.invariant import invariant_attention
from kernels.attention.types import Run, Scratch, truncate_runs

__all__ = [
    "Run",
    "Scratch",
    "attention_at_positions",
    "causal_attention",
    "decode_attention",
    "invariant_attention",
    "truncate_runs",
]


def causal_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
    """Attend from the last tokens of a sequence to the whole sequence.

    query: [num_tokens, num_heads, head_dim]. runs: keys and values of the sequence in order, `seq_len` positions in
    all; the last `num_tokens` of them belong to the queries. Query row i is at position `seq_len - num_tokens + i` and
    sees the keys [0, that position], or the last `window` of them. Returns [num_tokens, num_heads, head_dim],
    contiguous.
    """
    if query.device.type == "cpu":
        num_tokens, num_heads, _ = query.shape
        seq_len, group = sum(len(keys) for keys, _ in runs), num_heads // runs[0][0].shape[1]
        few = cpu.is_fused_faster(num_tokens, seq_len, group)
        attend = cpu.few_query_attention if few else cpu.block_attention
        return attend(query, runs, scratch, window)
    return cpu.sdpa_attention(query, *_concat_runs(runs), window)


def attention_at_positions(query: Tensor, positions: Tensor, runs: Sequence[Run], scratch: Scratch) -> Tensor:
    """Attend from tokens at any positions of a sequence to everything up to each of them.

    query: [num_tokens, num_heads, head_dim]. positions: int64 [num_tokens], ascending. runs: keys and values of the
    sequence in order from position 0, at least up to the last of `positions`. Query row i sees the keys [0,
    positions[i]]; there is no sliding window. Returns [num_tokens, num_heads, head_dim], contiguous.

    For the last tokens of a sequence the result has the same bits as `causal_attention`.
    """
    at = positions.tolist()
    runs = truncate_runs(runs, at[-1] + 1)
    if at[-1] - at[0] < len(at):
        return causal_attention(query, runs, scratch)
    if query.device.type == "cpu":
        return cpu.attention_at_positions(query, at, runs, scratch)
    return cpu.sdpa_attention_at_positions(query, positions, *_concat_runs(runs))


def _concat_runs(runs: Sequence[Run]) -> tuple[Tensor, Tensor]:
    """Return keys and values, [num_kv_heads, seq_len, head_dim] each."""
    keys, values = runs[0] if len(runs) == 1 else map(torch.cat, zip(*runs, strict=True))
    return keys.transpose(0, 1), values.transpose(0, 1)
