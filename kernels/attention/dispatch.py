"""Attention by device and by how many queries there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.attention import blocked, few_rows, sdpa
from kernels.attention.runs import Run
from kernels.attention.scratch import Scratch

MOST_FUSED_SCORES = 1 << 17
"""Scores of a KV head up to which a CPU's fused kernel is quicker than blocks, if there are a few tokens."""

MOST_FUSED_TOKENS = 16
"""More than one token and at most as many are looked at with the fused kernel; the bias of each number is kept."""


def causal_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
    """Attend from the last tokens of a sequence to all of it.

    query: [num_tokens, num_heads, head_dim]; runs: the keys and values of the sequence in order, `seq_len` positions
    in all, the last `num_tokens` of them the queries' own. Query row i stands at `seq_len - num_tokens + i` and sees
    the keys [0, that position], or the last `window` of them. Returns [num_tokens, num_heads, head_dim], contiguous.
    """
    if query.device.type == "cpu":
        attend = few_rows.causal_attention if _few(query, runs) else blocked.causal_attention
        return attend(query, runs, scratch, window)
    keys, values = runs[0] if len(runs) == 1 else map(torch.cat, zip(*runs, strict=True))
    return sdpa.causal_attention(query, keys.transpose(0, 1), values.transpose(0, 1), window)


def _few(query: Tensor, runs: Sequence[Run]) -> bool:
    """Whether the fused kernel is the quicker one for these queries on a CPU."""
    num_tokens, num_heads, _ = query.shape
    if num_tokens == 1:
        return True
    seq_len, num_kv_heads = sum(keys.shape[0] for keys, _ in runs), runs[0][0].shape[1]
    few_scores = num_tokens * seq_len * num_heads <= MOST_FUSED_SCORES * num_kv_heads
    return num_tokens <= MOST_FUSED_TOKENS and few_scores
