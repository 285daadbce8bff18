"""Batch-invariant causal attention: a token's result has the same bits whatever else is in the batch.

A query's result depends on its position and its keys alone. Every product has one shape, QUERIES tokens by KEYS keys,
padded if there are fewer. Keys are cut at multiples of KEYS from the start of the sequence, wherever a step begins and
however its pages lie. The softmax is normalised by a query's largest score, which no order changes, and chunks are
added from first to last; a chunk that a query does not see adds zeros (the idea: He and Thinking Machines Lab 2025,
Defeating nondeterminism in LLM inference).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.types import Run

QUERIES, KEYS = 16, 256
"""Tokens of a block of queries, and keys of a chunk."""


def invariant_attention(query: Tensor, runs: Sequence[Run], end: int, window: int | None = None) -> Tensor:
    """Compute `kernels.attention.causal_attention` in float32 throughout; `end` is the position after the last query.

    The runs may begin after the start of the sequence if a window hides the keys before them.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = runs[0][0].shape[1]
    first_key = end - sum(keys.shape[0] for keys, _ in runs)
    keys, values = (_split_into_chunks(parts, first_key) for parts in zip(*runs, strict=True))
    padded = F.pad(query.to(torch.float32), (0, 0, 0, 0, 0, -num_tokens % QUERIES)) * head_dim**-0.5
    out = torch.empty_like(query)
    for first in range(0, num_tokens, QUERIES):
        rows = padded[first : first + QUERIES].view(QUERIES, num_kv_heads, -1, head_dim).transpose(0, 1)
        attended = _attend_block(rows.flatten(1, 2), keys, values, end - num_tokens + first, first_key, window)
        whole = attended.view(num_kv_heads, QUERIES, -1, head_dim).transpose(0, 1).reshape(QUERIES, num_heads, -1)
        out[first : first + QUERIES] = whole[: num_tokens - first]
    return out


def _split_into_chunks(parts: Sequence[Tensor], first_key: int) -> Tensor:
    """Return float32 chunks [num_chunks, num_kv_heads, KEYS, head_dim], padded with zeros; `first_key` is in the first
    chunk.
    """
    before = first_key % KEYS
    num_keys = before + sum(part.shape[0] for part in parts)
    num_kv_heads, head_dim = parts[0].shape[1:]
    whole = torch.zeros(-(-num_keys // KEYS) * KEYS, num_kv_heads, head_dim, device=parts[0].device)
    whole[before:num_keys] = torch.cat(list(parts))
    return whole.view(-1, KEYS, num_kv_heads, head_dim).transpose(1, 2).contiguous()


def _attend_block(rows: Tensor, keys: Tensor, values: Tensor, start: int, first_key: int, window: int | None) -> Tensor:
    """Attend from queries [num_kv_heads, QUERIES * group, head_dim]; the first token is at position `start`."""
    group = rows.shape[1] // QUERIES
    places = torch.arange(start, start + QUERIES, device=rows.device).repeat_interleave(group)[:, None]
    first_chunk = first_key // KEYS
    num_chunks = min(len(keys), (start + QUERIES - 1) // KEYS + 1 - first_chunk)
    scores = []
    for chunk in range(num_chunks):
        at = torch.arange((first_chunk + chunk) * KEYS, (first_chunk + chunk + 1) * KEYS, device=rows.device)[None]
        hidden = (at > places) | (at < first_key)
        if window is not None:
            hidden |= at <= places - window
        scores.append(torch.bmm(rows, keys[chunk].transpose(1, 2)).masked_fill_(hidden, float("-inf")))
    largest = torch.stack([each.amax(dim=-1, keepdim=True) for each in scores]).amax(dim=0)
    attended, total = torch.zeros_like(rows), torch.zeros_like(largest)
    for chunk, each in enumerate(scores):
        shares = each.sub_(largest).exp_()
        total += shares.sum(dim=-1, keepdim=True)
        attended += torch.bmm(shares, values[chunk])
    return attended.div_(total)
