"""Naive causal grouped-query attention, which the fast versions are compared with, and masks."""

from __future__ import annotations

import torch
from torch import Tensor


def naive_causal_attention(query: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """Attend from the last tokens of a sequence to the whole sequence, in float32 or float64.

    query: [num_tokens, num_heads, head_dim], the last `num_tokens` of the sequence. keys, values: [num_kv_heads,
    seq_len, head_dim]. Query row i is at position `seq_len - num_tokens + i` and sees keys [0, that position], or the
    last `window` of them. Returns [num_tokens, num_heads, head_dim].
    """
    mask = make_causal_mask(query.shape[0], keys.shape[1], query.device, window)
    return _attend_with_mask(query, keys, values, mask)


def naive_attention_at_positions(query: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend from tokens at any positions of a sequence to everything up to each of them, in float32 or float64.

    query: [num_tokens, num_heads, head_dim]. positions: int64 [num_tokens]. keys, values: [num_kv_heads, seq_len,
    head_dim]. Query row i sees the keys [0, positions[i]]. Returns [num_tokens, num_heads, head_dim].
    """
    return _attend_with_mask(query, keys, values, make_position_mask(positions, keys.shape[1]))


def _attend_with_mask(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Compute softmax attention of each query row over the keys where its row of the mask is True."""
    num_heads, head_dim = query.shape[1:]
    group, dtype = num_heads // keys.shape[0], torch.promote_types(query.dtype, torch.float32)
    wide_keys = keys.to(dtype).repeat_interleave(group, dim=0)
    wide_values = values.to(dtype).repeat_interleave(group, dim=0)
    scores = torch.einsum("thd,hsd->hts", query.to(dtype), wide_keys) / head_dim**0.5
    scores.masked_fill_(~mask, float("-inf"))
    return torch.einsum("hts,hsd->thd", scores.softmax(dim=-1), wide_values).to(query.dtype)


def make_causal_mask(num_tokens: int, seq_len: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return which keys each query sees: bool [num_tokens, seq_len], aligned to the bottom right.

    With a sliding window (Beltagy et al. 2020, arXiv 2004.05150) each row has at most `window` True, its own position
    last.
    """
    mask = torch.ones(num_tokens, seq_len, dtype=torch.bool, device=device).tril(seq_len - num_tokens)
    return mask if window is None else mask.triu(seq_len - num_tokens - window + 1)


def make_position_mask(positions: Tensor, seq_len: int) -> Tensor:
    """Return which keys each query sees, its own position included: bool [num_tokens, seq_len]."""
    return torch.arange(seq_len, device=positions.device)[None, :] <= positions[:, None]
