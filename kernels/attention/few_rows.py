"""Causal grouped-query attention of a few queries on a CPU: all rows that share a KV head are one block of rows.

Torch's fused kernel takes 32 rows of a head at a time, and a step of it costs about as much for one row as for 32. So
the queries of a group are packed into rows of one head, and the cost of 1 to 4 tokens is nearly the same. Keys and
values are read where they lie, and the scores never leave the first cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from kernels.attention.runs import Run, heads_first
from kernels.attention.scratch import Scratch


def causal_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
    """As `kernels.attention.causal_attention`."""
    num_tokens, num_heads, head_dim = query.shape
    seq_len, num_kv_heads = sum(keys.shape[0] for keys, _ in runs), runs[0][0].shape[1]
    group = num_heads // num_kv_heads
    first_key = 0 if window is None else max(0, seq_len - num_tokens + 1 - window)
    keys = heads_first([keys for keys, _ in runs], scratch, "keys", query.dtype)[:, first_key:]
    values = heads_first([values for _, values in runs], scratch, "values", query.dtype)[:, first_key:]
    bias = None
    if num_tokens > 1:
        bias = scratch.bias(num_tokens, group, window, seq_len - first_key, query.dtype)[None, None]
    rows = query.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    out = F.scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=bias)
    by_head = out.view(num_kv_heads, num_tokens, group, head_dim)
    return by_head.transpose(0, 1).reshape(num_tokens, num_heads, head_dim)
