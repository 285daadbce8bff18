"""Causal grouped-query attention written out: the truth that the fast path is compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_attention(query: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """Attend from the last tokens of a sequence to all of it, in float32.

    query: [num_tokens, num_heads, head_dim], the last `num_tokens` of the sequence; keys, values:
    [num_kv_heads, seq_len, head_dim]. Query row i stands at position `seq_len - num_tokens + i` and sees keys
    [0, that position], or the last `window` of them. Returns [num_tokens, num_heads, head_dim].
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, seq_len, _ = keys.shape
    group = num_heads // num_kv_heads
    wide_keys = keys.to(torch.float32).repeat_interleave(group, dim=0)
    wide_values = values.to(torch.float32).repeat_interleave(group, dim=0)
    scores = torch.einsum("thd,hsd->hts", query.to(torch.float32), wide_keys) / head_dim**0.5
    scores.masked_fill_(~causal_mask(num_tokens, seq_len, query.device, window), float("-inf"))
    return torch.einsum("hts,hsd->thd", scores.softmax(dim=-1), wide_values).to(query.dtype)


def causal_mask(num_tokens: int, seq_len: int, device: torch.device, window: int | None = None) -> Tensor:
    """True where a query may look: bool [num_tokens, seq_len], aligned to the bottom right.

    With a sliding window (Beltagy et al. 2020, arXiv 2004.05150) each row holds at most `window` True, its own last.
    """
    mask = torch.ones(num_tokens, seq_len, dtype=torch.bool, device=device).tril(seq_len - num_tokens)
    return mask if window is None else mask.triu(seq_len - num_tokens - window + 1)
