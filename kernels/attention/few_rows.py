"""Causal grouped-query attention of a few queries on a CPU: all rows that share a KV head are one block of rows.

Torch's fused kernel takes 32 rows of a head at a time, and most of what a step of it costs is the same for one row and
for 32, so the queries of a group are packed into rows of one head. Keys and values are read where they lie, and its
scores never leave the first cache: behind 4,096 keys that main memory holds, one query takes 0.38 ms where blocks take
0.75 (7 heads of 64 to each of 2 KV heads), and 0.81 against 1.61 (6 heads of 128), with an error of 1.8e-3 where blocks
make 2.2e-3. Scores in bf16 would take 0.28 ms; their error is 1.2e-2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from kernels.attention import sdpa
from kernels.attention.runs import Run, heads_first
from kernels.attention.scratch import Scratch

MOST_FUSED_SCORES = 100_000
"""Scores of a KV head up to which the fused kernel is the quicker one for several tokens on a CPU.

Where both take as long on an AMD EPYC with AVX512-BF16 (2 cores), in the middle of what they take with keys in the
cache and in main memory: 16 tokens of 7 heads at 1,024 keys, 8 at 2,048, 4 to 5 at 4,096; of 6 heads twice as wide 14,
8 and 5.
"""

MOST_FUSED_TOKENS = 16
"""Tokens up to which that was measured; the bias of each number of tokens is kept."""


def is_quicker(num_tokens: int, seq_len: int, group: int) -> bool:
    """Whether this takes less time than `blocked` for the last tokens of `seq_len`, with `group` heads to a KV head."""
    few = num_tokens <= MOST_FUSED_TOKENS and num_tokens * seq_len * group <= MOST_FUSED_SCORES
    return few or num_tokens == 1


def causal_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
    """As `kernels.attention.causal_attention`."""
    keys, values = _heads_first(runs, scratch)
    if query.shape[0] == 1:
        return sdpa.causal_attention(query, keys, values, window)
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, seq_len = keys.shape[:2]
    group = num_heads // num_kv_heads
    first_key = 0 if window is None else max(0, seq_len - num_tokens + 1 - window)
    keys, values = keys[:, first_key:], values[:, first_key:]
    bias = scratch.bias(num_tokens, group, window, seq_len - first_key, query.dtype)[None, None]
    rows = query.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    out = F.scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=bias)
    by_head = out.view(num_kv_heads, num_tokens, group, head_dim)
    return by_head.transpose(0, 1).reshape(num_tokens, num_heads, head_dim)


def _heads_first(runs: Sequence[Run], scratch: Scratch) -> tuple[Tensor, Tensor]:
    """Keys and values, [num_kv_heads, seq_len, head_dim] each; of one run where they lie.

    Several runs are copied: to attend to each alone and merge is no quicker for two, and slower for eight.
    """
    if len(runs) == 1:
        keys, values = runs[0]
        return keys.transpose(0, 1), values.transpose(0, 1)
    dtype = runs[0][0].dtype
    keys = heads_first([keys for keys, _ in runs], scratch, "keys", dtype)
    return keys, heads_first([values for _, values in runs], scratch, "values", dtype)
