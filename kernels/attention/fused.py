"""Attention by torch's fused kernel, and when it is faster on a CPU than blocks of queries."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.runs import Run, Scratch, cap_scores, concat_by_head, make_causal_mask, make_position_mask


def decode_attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float | None = None) -> Tensor:
    """Attend from the last token of each sequence to the whole sequence.

    query: [num_seqs, num_heads, head_dim]. keys, values: [num_seqs, seq_len, num_kv_heads, head_dim], padded for
    shorter sequences. bias: [num_seqs, 1, 1, seq_len], 0, or -inf where a key is hidden; hidden values must still be
    finite. Returns [num_seqs, num_heads, head_dim] in the query's dtype, in which all is computed.
    """
    num_seqs, num_heads, head_dim = query.shape
    keys, values, bias = (each.to(query.dtype) for each in (keys, values, bias))
    packed = query.reshape(num_seqs, keys.shape[2], -1, head_dim)
    out = F.scaled_dot_product_attention(
        packed, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=bias, scale=scale
    )
    return out.reshape(num_seqs, num_heads, head_dim)


def sdpa_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from the last tokens of a sequence by torch's fused attention, which knows no cap of scores.

    One query is packed with its group into rows of one KV head: torch's CPU kernel is ten times slower in bf16 with one
    row a head (0.16 against 1.5 ms over 1,500 keys).
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, seq_len, _ = keys.shape
    if num_tokens == 1 and cap is None:
        seen = slice(0 if window is None else max(0, seq_len - window), None)
        packed = query.view(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(packed, keys[None, :, seen], values[None, :, seen], scale=scale)
        return out.reshape(1, num_heads, head_dim)
    mask = make_causal_mask(num_tokens, seq_len, query.device, window)
    return _attend_with_mask(query, keys, values, mask, scale, cap)


def sdpa_attention_at_positions(
    query: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from tokens at any positions by torch's fused attention."""
    mask = make_position_mask(positions, keys.shape[1], window)
    return _attend_with_mask(query, keys, values, mask, scale, cap)


def _attend_with_mask(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None, cap: float | None
) -> Tensor:
    heads_first = query.transpose(0, 1)[None]
    group = query.shape[1] // keys.shape[0]
    if cap is not None:
        scale = query.shape[2] ** -0.5 if scale is None else scale
        scores = cap_scores(heads_first[0].float() @ keys.float().repeat_interleave(group, 0).mT * scale, cap)
        shares = scores.masked_fill_(~mask, float("-inf")).softmax(dim=-1)
        attended = shares @ values.float().repeat_interleave(group, 0)
        return attended.transpose(0, 1).to(query.dtype).contiguous()
    out = F.scaled_dot_product_attention(
        heads_first, keys[None], values[None], attn_mask=mask, enable_gqa=group > 1, scale=scale
    )
    return out[0].transpose(0, 1).contiguous()


MAX_FUSED_SCORES = 100_000
"""Scores of a KV head up to which the fused kernel is faster for several tokens on a CPU.

Break-even on an AMD EPYC with AVX512-BF16 (2 cores), midway between keys in the cache and in main memory: 16 tokens of
7 heads at 1,024 keys, 8 at 2,048, 4 to 5 at 4,096; of 6 heads twice as wide 14, 8 and 5.
"""

MAX_FUSED_TOKENS = 16
"""The largest number of tokens that was measured. The bias of each number of tokens is cached."""


def is_fused_faster(num_tokens: int, seq_len: int, group: int) -> bool:
    """Return whether the fused kernel is faster than blocks for the last tokens of a sequence."""
    few = num_tokens <= MAX_FUSED_TOKENS and num_tokens * seq_len * group <= MAX_FUSED_SCORES
    return few or num_tokens == 1


def few_query_attention(
    query: Tensor,
    runs: Sequence[Run],
    scratch: Scratch,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute `kernels.attention.causal_attention` by the fused kernel, with a group's queries packed into one head."""
    keys, values = _concat_runs_by_head(runs, scratch, query.dtype)
    if query.shape[0] == 1:
        return sdpa_attention(query, keys, values, window, scale)
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, seq_len = keys.shape[:2]
    group = num_heads // num_kv_heads
    first_key = 0 if window is None else max(0, seq_len - num_tokens + 1 - window)
    keys, values = keys[:, first_key:], values[:, first_key:]
    bias = scratch.get_bias(num_tokens, group, window, seq_len - first_key, query.dtype)[None, None]
    rows = query.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    out = F.scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=bias, scale=scale)
    by_head = out.view(num_kv_heads, num_tokens, group, head_dim)
    return by_head.transpose(0, 1).reshape(num_tokens, num_heads, head_dim)


def _concat_runs_by_head(runs: Sequence[Run], scratch: Scratch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return keys and values as `dtype`, [num_kv_heads, seq_len, head_dim] each; of a single run of it a view.

    Several runs are copied. Attending to each run and merging the results is not faster for two runs, and slower for
    eight.
    """
    if len(runs) == 1 and runs[0][0].dtype == dtype:
        keys, values = runs[0]
        return keys.transpose(0, 1), values.transpose(0, 1)
    keys = concat_by_head([keys for keys, _ in runs], scratch, "keys", dtype)
    return keys, concat_by_head([values for _, values in runs], scratch, "values", dtype)
