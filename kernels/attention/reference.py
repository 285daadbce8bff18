"""Causal grouped-query attention written out: the truth that the fast path is compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_attention(query: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """Attend from the last tokens of a sequence to all of it, in float32 at least.

    query: [num_tokens, num_heads, head_dim], the last `num_tokens` of the sequence; keys, values:
    [num_kv_heads, seq_len, head_dim]. Query row i stands at position `seq_len - num_tokens + i` and sees keys
    [0, that position], or the last `window` of them. Returns [num_tokens, num_heads, head_dim].
    """
    mask = causal_mask(query.shape[0], keys.shape[1], query.device, window)
    return _masked_attention(query, keys, values, mask)


def scattered_attention(query: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend from tokens that stand anywhere in a sequence to what stands before each, in float32 at least.

    query: [num_tokens, num_heads, head_dim]; positions: int64 [num_tokens]; keys, values:
    [num_kv_heads, seq_len, head_dim]. Query row i sees the keys [0, positions[i]]. Returns
    [num_tokens, num_heads, head_dim].
    """
    return _masked_attention(query, keys, values, position_mask(positions, keys.shape[1]))


def _masked_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention of each query row over the keys where its row of the mask is True."""
    num_heads, head_dim = query.shape[1:]
    group, dtype = num_heads // keys.shape[0], torch.promote_types(query.dtype, torch.float32)
    wide_keys = keys.to(dtype).repeat_interleave(group, dim=0)
    wide_values = values.to(dtype).repeat_interleave(group, dim=0)
    scores = torch.einsum("thd,hsd->hts", query.to(dtype), wide_keys) / head_dim**0.5
    scores.masked_fill_(~mask, float("-inf"))
    return torch.einsum("hts,hsd->thd", scores.softmax(dim=-1), wide_values).to(query.dtype)


def causal_mask(num_tokens: int, seq_len: int, device: torch.device, window: int | None = None) -> Tensor:
    """True where a query may look: bool [num_tokens, seq_len], aligned to the bottom right.

    With a sliding window (Beltagy et al. 2020, arXiv 2004.05150) each row holds at most `window` True, its own last.
    """
    mask = torch.ones(num_tokens, seq_len, dtype=torch.bool, device=device).tril(seq_len - num_tokens)
    return mask if window is None else mask.triu(seq_len - num_tokens - window + 1)


def position_mask(positions: Tensor, seq_len: int) -> Tensor:
    """True where a query at its position may look: bool [num_tokens, seq_len], its own position included."""
    return torch.arange(seq_len, device=positions.device)[None, :] <= positions[:, None]
