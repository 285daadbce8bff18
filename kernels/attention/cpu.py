"""Causal grouped-query attention for a CPU, in blocks of queries whose scores stay in the cache.

Torch's fused attention spends most of its time beside the matrix unit (180 GFLOP/s of 1,000 on two AVX-512 cores).
Here the scores of a block are one matrix product in float32 whose bf16 inputs are multiplied as bf16, so nothing is
rounded that was not before (the flag below), one softmax in place, and one product with the values: 2.1 times as fast
for 512 queries on 2,048 keys and for drafts of 64 tokens, with the same error against float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.attention.runs import Run, heads_first
from kernels.attention.scratch import Scratch

MAX_SCORES = 1 << 22
"""Scores of a block of queries where there are more than 5,400 keys: 16 MB of float32, half of a last-level cache."""

FEWEST_ROWS, MOST_ROWS = 128, 768
"""Rows of a block's matrix product: fewer do not fill the matrix unit, of more the scores leave the cache.

With at most 512, 768 and 1,024 rows 512 queries (6 heads of 128 to a KV head) take 35.3, 34.6 and 56 ms on 4,096 keys,
77, 74 and 74 ms on 8,192; 64 queries 5.0, 5.0 and 5.1, and 9.3, 9.1 and 10.3 (AMD EPYC with AVX512-BF16, 2 cores).
"""


@dataclass(frozen=True, slots=True)
class Block:
    """Some tokens and KV heads: queries [first_token, last_token), keys [first_key, last_key)."""

    first_token: int
    last_token: int
    first_key: int
    last_key: int
    heads: slice


Hide = Callable[[Tensor, Block], None]
"""Gives -inf to what a block's queries do not see in its scores [heads, num_tokens, group, num_keys]."""


def causal_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
    """As `kernels.attention.causal_attention`."""
    num_tokens, num_heads, _ = query.shape
    seq_len, num_kv_heads = sum(keys.shape[0] for keys, _ in runs), runs[0][0].shape[1]
    blocks = _blocks(num_tokens, seq_len, num_kv_heads, num_heads // num_kv_heads, window)
    hide = partial(_hide, scratch=scratch, start=seq_len - num_tokens, window=window)
    out = torch.empty_like(query)
    attend(query, runs, scratch, blocks, hide, out)
    return out


def attend(
    query: Tensor, runs: Sequence[Run], scratch: Scratch, blocks: Iterable[Block], hide: Hide, out: Tensor
) -> None:
    """What the queries of some blocks find, written to their rows of `out`; both [num_tokens, num_heads, head_dim]."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = runs[0][0].shape[1]
    group = num_heads // num_kv_heads
    by_head = out.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1)
    packed = scratch.take("query", tuple(by_head.shape), torch.float32)
    packed.copy_(query.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1))
    keys = heads_first([keys for keys, _ in runs], scratch, "keys", torch.float32)
    values = heads_first([values for _, values in runs], scratch, "values", _dtype_of_shares(query.dtype))
    for block in blocks:
        rows = packed[block.heads, block.first_token : block.last_token]
        seen = slice(block.first_key, block.last_key)
        scores = scratch.take("scores", (*rows.shape[:3], block.last_key - block.first_key), torch.float32)
        with _products_of_bf16(query.dtype):
            _scores(rows.flatten(1, 2), keys[block.heads, seen], scores.flatten(1, 2))
        hide(scores, block)
        shares = _shares(scores.flatten(1, 2), scratch, query.dtype)
        attended = torch.bmm(shares, values[block.heads, seen])
        by_head[block.heads, block.first_token : block.last_token] = attended.view(rows.shape)


def most_tokens(seq_len: int, group: int) -> int:
    """Tokens of a block that looks back on `seq_len` keys with one head."""
    return max(1, min(MOST_ROWS, max(FEWEST_ROWS, MAX_SCORES // seq_len)) // group)


def fits_all_heads(num_tokens: int, seq_len: int, num_heads: int) -> bool:
    """Whether one block may have all heads of these tokens."""
    return num_tokens * num_heads <= min(MOST_ROWS, MAX_SCORES // seq_len)


def _scores(rows: Tensor, keys: Tensor, out: Tensor) -> None:
    """Scaled scores [heads, num_rows, num_keys] of rows [heads, num_rows, head_dim] and keys likewise.

    A head alone is no batch: attention of 256 queries to 4,096 keys takes 8 to 13 % less then.
    """
    scale = rows.shape[-1] ** -0.5
    if len(rows) == 1:
        torch.addmm(out[0], rows[0], keys[0].T, beta=0, alpha=scale, out=out[0])
    else:
        torch.baddbmm(out, rows, keys.transpose(1, 2), beta=0, alpha=scale, out=out)


def _shares(scores: Tensor, scratch: Scratch, dtype: torch.dtype) -> Tensor:
    """The softmax of the scores, which it overwrites, as the values are multiplied with."""
    torch.softmax(scores, dim=-1, out=scores)
    if _dtype_of_shares(dtype) == scores.dtype:
        return scores
    return scratch.take("shares", tuple(scores.shape), dtype).copy_(scores)


def _dtype_of_shares(dtype: torch.dtype) -> torch.dtype:
    """bf16 stays, as everywhere in the field; a CPU multiplies no float16."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def _blocks(num_tokens: int, seq_len: int, num_kv_heads: int, group: int, window: int | None) -> Iterator[Block]:
    """Cut the queries: a block has at most MAX_SCORES scores, unless it has the fewest rows of one head.

    Several blocks have one head each: a batched product would copy its operands, which are slices then.
    """
    start = seq_len - num_tokens
    if fits_all_heads(num_tokens, seq_len, group * num_kv_heads):
        first_key = 0 if window is None else max(0, start + 1 - window)
        yield Block(0, num_tokens, first_key, seq_len, slice(0, num_kv_heads))
        return
    tokens = most_tokens(seq_len, group)
    for first_token in range(0, num_tokens, tokens):
        last_token = min(first_token + tokens, num_tokens)
        first_key = 0 if window is None else max(0, start + first_token + 1 - window)
        for head in range(num_kv_heads):
            yield Block(first_token, last_token, first_key, start + last_token, slice(head, head + 1))


def _hide(scores: Tensor, block: Block, scratch: Scratch, start: int, window: int | None) -> None:
    """Give -inf to the keys behind each query, and to those before its window.

    The first query stands at `start`. Only a block's last `num_tokens` keys can lie behind one of its queries.
    """
    num_tokens, num_keys = scores.shape[1], scores.shape[3]
    if num_tokens > 1:
        scores[..., num_keys - num_tokens :] += scratch.behind(num_tokens)[None, :, None, :]
    if window is not None:
        last_hidden = torch.arange(start + block.first_token, start + block.last_token)[:, None] - window
        before = torch.arange(block.first_key, block.last_key)[None, :] <= last_hidden
        scores.masked_fill_(before[None, :, None, :], float("-inf"))


@contextmanager
def _products_of_bf16(dtype: torch.dtype) -> Iterator[None]:
    """Multiply float32 operands as bf16 and sum in float32, which is exact for operands that were bf16.

    For other dtypes nothing changes. The flag is the process's; it is put back at once.
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    if dtype != torch.bfloat16 or before == "bf16":
        yield
        return
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
