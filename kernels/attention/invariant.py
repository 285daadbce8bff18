"""Causal attention whose result for a token has the same bits whatever else is in the batch.

What a query gets depends on its position and its keys alone: every product has one shape, QUERIES tokens by KEYS keys,
padded where there are fewer, and the keys are cut at multiples of KEYS from the sequence's start, wherever a pass
begins and however its pages lie. The shares of a query are normed by its largest score, which no order changes, and its
chunks are added from the first to the last; a chunk that it may not look at adds zeros (the idea: He and Thinking
Machines Lab 2025, Defeating nondeterminism in LLM inference).
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
    """As `kernels.attention.causal_attention`, in float32 throughout; `end`: the position behind the last query.

    The runs may begin behind the sequence's start, where a window hides what lies before.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = runs[0][0].shape[1]
    first_key = end - sum(keys.shape[0] for keys, _ in runs)
    keys, values = (_chunks(parts, first_key) for parts in zip(*runs, strict=True))
    padded = F.pad(query.to(torch.float32), (0, 0, 0, 0, 0, -num_tokens % QUERIES)) * head_dim**-0.5
    out = torch.empty_like(query)
    for first in range(0, num_tokens, QUERIES):
        rows = padded[first : first + QUERIES].view(QUERIES, num_kv_heads, -1, head_dim).transpose(0, 1)
        attended = _block(rows.flatten(1, 2), keys, values, end - num_tokens + first, first_key, window)
        whole = attended.view(num_kv_heads, QUERIES, -1, head_dim).transpose(0, 1).reshape(QUERIES, num_heads, -1)
        out[first : first + QUERIES] = whole[: num_tokens - first]
    return out


def _chunks(parts: Sequence[Tensor], first_key: int) -> Tensor:
    """float32 [num_chunks, num_kv_heads, KEYS, head_dim] from where `first_key` lies in a chunk; zeros are missing."""
    before = first_key % KEYS
    num_keys = before + sum(part.shape[0] for part in parts)
    num_kv_heads, head_dim = parts[0].shape[1:]
    whole = torch.zeros(-(-num_keys // KEYS) * KEYS, num_kv_heads, head_dim, device=parts[0].device)
    whole[before:num_keys] = torch.cat(list(parts))
    return whole.view(-1, KEYS, num_kv_heads, head_dim).transpose(1, 2).contiguous()


def _block(rows: Tensor, keys: Tensor, values: Tensor, start: int, first_key: int, window: int | None) -> Tensor:
    """What the queries `rows` [num_kv_heads, QUERIES * group, head_dim] find; the first token stands at `start`."""
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
