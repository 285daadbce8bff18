"""Attention over keys and values that lie in several pieces of memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention import cpu
from kernels.attention.fused import (
    decode_attention,
    few_query_attention,
    is_fused_faster,
    sdpa_attention,
    sdpa_attention_at_positions,
)
from kernels.attention.kv_format import KVFormat
from kernels.attention.native import RunTable, attend_sequences, can_attend
from kernels.attention.native import attend as attend_by_kernel
from kernels.attention.runs import Run, Scratch, cap_scores, truncate_runs

__all__ = [
    "KVFormat",
    "Run",
    "RunTable",
    "Scratch",
    "attend_sequences",
    "attention_at_positions",
    "can_attend",
    "causal_attention",
    "decode_attention",
    "invariant_attention",
    "truncate_runs",
]


def causal_attention(
    query: Tensor,
    runs: Sequence[Run],
    scratch: Scratch,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
    end: int | None = None,
) -> Tensor:
    """Attend from the last tokens of a sequence to the whole sequence.

    query: [num_tokens, num_heads, head_dim]. runs: keys and values of the sequence in order, `seq_len` positions in
    all; the last `num_tokens` of them belong to the queries. Query row i is at position `seq_len - num_tokens + i` and
    sees the keys [0, that position], or the last `window` of them. Scores are multiplied by `scale`, or head_dim**-0.5;
    with a `cap`, a score x becomes cap * tanh(x / cap). `end` is the position after the last query, if the runs begin
    after the start of the sequence. Returns [num_tokens, num_heads, head_dim], contiguous.
    """
    if query.device.type == "cpu":
        num_tokens, num_heads, width = query.shape
        if can_attend(query.dtype, runs[0][0].dtype, width):
            end = sum(len(keys) for keys, _ in runs) if end is None else end
            return attend_by_kernel(query, range(end - num_tokens, end), runs, end, window, scale, cap)
        seq_len, group = sum(len(keys) for keys, _ in runs), num_heads // runs[0][0].shape[1]
        if cap is None and is_fused_faster(num_tokens, seq_len, group):
            return few_query_attention(query, runs, scratch, window, scale)
        return cpu.block_attention(query, runs, scratch, window, scale, cap)
    return sdpa_attention(query, *_concat_runs(runs), window, scale, cap)


def attention_at_positions(
    query: Tensor,
    positions: Tensor,
    runs: Sequence[Run],
    scratch: Scratch,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from tokens at any positions of a sequence to everything up to each of them.

    query: [num_tokens, num_heads, head_dim]. positions: int64 [num_tokens], ascending. runs: keys and values of the
    sequence in order from position 0, at least up to the last of `positions`. Query row i sees the keys [0,
    positions[i]], or the last `window` of them; scale, cap: as for `causal_attention`. Returns [num_tokens, num_heads,
    head_dim], contiguous.

    For the last tokens of a sequence the result has the same bits as `causal_attention`.
    """
    at = positions.tolist()
    runs = truncate_runs(runs, at[-1] + 1)
    if at[-1] - at[0] < len(at):
        return causal_attention(query, runs, scratch, window, scale, cap)
    if query.device.type == "cpu":
        if can_attend(query.dtype, runs[0][0].dtype, query.shape[2]):
            return attend_by_kernel(query, at, runs, at[-1] + 1, window, scale, cap)
        return cpu.attention_at_positions(query, at, runs, scratch, window, scale, cap)
    return sdpa_attention_at_positions(query, positions, *_concat_runs(runs), window, scale, cap)


def _concat_runs(runs: Sequence[Run]) -> tuple[Tensor, Tensor]:
    """Return keys and values, [num_kv_heads, seq_len, head_dim] each."""
    keys, values = runs[0] if len(runs) == 1 else map(torch.cat, zip(*runs, strict=True))
    return keys.transpose(0, 1), values.transpose(0, 1)


QUERIES, KEYS = 16, 256
"""Tokens of a block of queries, and keys of a chunk, of `invariant_attention`."""


def invariant_attention(
    query: Tensor,
    runs: Sequence[Run],
    end: int,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Compute `causal_attention` so that a token's result has the same bits whatever else is in the batch.

    A query's result depends on its position and its keys alone. Every product has one shape, QUERIES tokens by KEYS
    keys, padded if there are fewer. Keys are cut at multiples of KEYS from the start of the sequence, wherever a step
    begins and however its pages lie. The softmax is normalised by a query's largest score, which no order changes, and
    chunks are added from first to last; a chunk that a query does not see adds zeros (the idea: He and Thinking
    Machines Lab 2025, Defeating nondeterminism in LLM inference).

    Everything is computed in float32. `end` is the position after the last query. The runs may begin after the start of
    the sequence if a window hides the keys before them.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = runs[0][0].shape[1]
    first_key = end - sum(keys.shape[0] for keys, _ in runs)
    keys, values = (_split_into_chunks(parts, first_key) for parts in zip(*runs, strict=True))
    padded = F.pad(query.to(torch.float32), (0, 0, 0, 0, 0, -num_tokens % QUERIES))
    padded *= head_dim**-0.5 if scale is None else scale
    out = torch.empty_like(query)
    for first in range(0, num_tokens, QUERIES):
        rows = padded[first : first + QUERIES].view(QUERIES, num_kv_heads, -1, head_dim).transpose(0, 1)
        attended = _attend_block(rows.flatten(1, 2), keys, values, end - num_tokens + first, first_key, window, cap)
        whole = attended.view(num_kv_heads, QUERIES, -1, head_dim).transpose(0, 1).reshape(QUERIES, num_heads, -1)
        out[first : first + QUERIES] = whole[: num_tokens - first]
    return out


def _split_into_chunks(parts: Sequence[Tensor], first_key: int) -> Tensor:
    """Return float32 chunks [num_chunks, num_kv_heads, KEYS, head_dim], zero-padded, from `first_key`'s chunk on."""
    before = first_key % KEYS
    num_keys = before + sum(part.shape[0] for part in parts)
    num_kv_heads, head_dim = parts[0].shape[1:]
    whole = torch.zeros(-(-num_keys // KEYS) * KEYS, num_kv_heads, head_dim, device=parts[0].device)
    whole[before:num_keys] = torch.cat(list(parts))
    return whole.view(-1, KEYS, num_kv_heads, head_dim).transpose(1, 2).contiguous()


def _attend_block(
    rows: Tensor, keys: Tensor, values: Tensor, start: int, first_key: int, window: int | None, cap: float | None
) -> Tensor:
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
        products = cap_scores(torch.bmm(rows, keys[chunk].transpose(1, 2)), cap)
        scores.append(products.masked_fill_(hidden, float("-inf")))
    largest = torch.stack([each.amax(dim=-1, keepdim=True) for each in scores]).amax(dim=0)
    attended, total = torch.zeros_like(rows), torch.zeros_like(largest)
    for chunk, each in enumerate(scores):
        shares = each.sub_(largest).exp_()
        total += shares.sum(dim=-1, keepdim=True)
        attended += torch.bmm(shares, values[chunk])
    return attended.div_(total)
