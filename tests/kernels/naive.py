"""Naive attention and top tokens, which the fast implementations are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.accept import TopTokens
from kernels.attention.runs import make_causal_mask, make_position_mask


def naive_causal_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from the last tokens of a sequence to the whole sequence, in float32 or float64.

    query: [num_tokens, num_heads, head_dim], the last `num_tokens` of the sequence. keys, values: [num_kv_heads,
    seq_len, head_dim]. Query row i is at position `seq_len - num_tokens + i` and sees keys [0, that position], or the
    last `window` of them. `scale` and `cap` are those of `attend_with_mask`. Returns [num_tokens, num_heads, head_dim].
    """
    mask = make_causal_mask(query.shape[0], keys.shape[1], query.device, window)
    return attend_with_mask(query, keys, values, mask, scale, cap)


def naive_attention_at_positions(
    query: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from tokens at any positions of a sequence to everything up to each of them, in float32 or float64.

    query: [num_tokens, num_heads, head_dim]. positions: int64 [num_tokens]. keys, values: [num_kv_heads, seq_len,
    head_dim]. Query row i sees the keys [0, positions[i]]. Returns [num_tokens, num_heads, head_dim].
    """
    mask = make_position_mask(positions, keys.shape[1], window)
    return attend_with_mask(query, keys, values, mask, scale, cap)


def attend_with_mask(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Compute softmax attention of each query row over the keys where its row of the mask is True. Scores are
    multiplied by `scale` (None: head_dim**-0.5), and then x becomes cap * tanh(x / cap).
    """
    num_heads, head_dim = query.shape[1:]
    group, dtype = num_heads // keys.shape[0], torch.promote_types(query.dtype, torch.float32)
    wide_keys = keys.to(dtype).repeat_interleave(group, dim=0)
    wide_values = values.to(dtype).repeat_interleave(group, dim=0)
    scores = torch.einsum("thd,hsd->hts", query.to(dtype), wide_keys)
    scores *= head_dim**-0.5 if scale is None else scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores.masked_fill_(~mask, float("-inf"))
    return torch.einsum("hts,hsd->thd", scores.softmax(dim=-1), wide_values).to(query.dtype)


def naive_top_tokens(logits: Tensor) -> TopTokens:
    """Find the top token of each row of logits [num_rows, vocab_size]; of equal logits the first."""
    rows = [row.tolist() for row in logits.float()]
    ids = [max(range(len(row)), key=lambda token_id: (row[token_id], -token_id)) for row in rows]
    best = [
        float("nan") if any(value != value for value in row) else row[at] for row, at in zip(rows, ids, strict=True)
    ]
    others = [max([*row[:at], *row[at + 1 :]], default=-float("inf")) for row, at in zip(rows, ids, strict=True)]
    return TopTokens(np.array(ids, dtype=np.intp), np.array(best, dtype=np.float32), np.array(others, dtype=np.float32))


def naive_count_accepted(token_ids: Sequence[int], draft: Sequence[int]) -> int:
    """Count the tokens that agree before the first that does not."""
    count = 0
    while count < min(len(token_ids), len(draft)) and token_ids[count] == draft[count]:
        count += 1
    return count
