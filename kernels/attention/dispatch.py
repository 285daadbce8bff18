"""Attention by device: in blocks on a CPU, torch's fused kernel elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.attention import blocked, sdpa
from kernels.attention.blocked import Run, Scratch

LEAST_KEYS = 2048
"""Up to here torch's fused kernel is quicker for a single query on a CPU (0.06 ms against 0.08 ms at 1,024 keys)."""


def causal_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
    """Attend from the last tokens of a sequence to all of it.

    query: [num_tokens, num_heads, head_dim]; runs: the keys and values of the sequence in order, `seq_len` positions
    in all, the last `num_tokens` of them the queries' own. Query row i stands at `seq_len - num_tokens + i` and sees
    the keys [0, that position], or the last `window` of them. Returns [num_tokens, num_heads, head_dim], contiguous.
    """
    seq_len = sum(keys.shape[0] for keys, _ in runs)
    if query.device.type == "cpu" and (query.shape[0] > 1 or seq_len > LEAST_KEYS):
        return blocked.causal_attention(query, runs, scratch, window)
    keys, values = runs[0] if len(runs) == 1 else map(torch.cat, zip(*runs, strict=True))
    return sdpa.causal_attention(query, keys.transpose(0, 1), values.transpose(0, 1), window)
