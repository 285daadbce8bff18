"""Causal grouped-query attention on a CPU, by the number and the positions of the queries.

Torch's fused attention spends most of its time beside the matrix unit (180 GFLOP/s of 1,000 on two AVX-512 cores).
Here the scores of a block are one matrix product in float32 whose bf16 inputs are multiplied as bf16, so nothing is
rounded that was not before (the flag below), one softmax in place, and one product with the values: 2.1 times as fast
for 512 queries on 2,048 keys and for drafts of 64 tokens, with the same error against float64.

Torch's fused kernel takes 32 rows of a head at a time, and most of what a step of it costs is the same for one row and
for 32, so the queries of a group are packed into rows of one head. Keys and values are read where they lie, and its
scores never leave the first cache: behind 4,096 keys that main memory holds, one query takes 0.38 ms where blocks take
0.75 (7 heads of 64 to each of 2 KV heads), and 0.81 against 1.61 (6 heads of 128), with an error of 1.8e-3 where blocks
make 2.2e-3. Scores in bf16 would take 0.28 ms; their error is 1.2e-2.

A few neighbours, such as a prompt's last token, go to the fused kernel, which reads their keys where they lie. The
others are cut into pieces, blocks of `blocked` with a mask of positions: a piece that spans a gap computes scores that
its tokens before the gap do not see, and every piece costs something of its own. 150 tokens in three places behind
6,000 keys take 9.0 ms where as many at the end take 12.7 (7 heads of 64 to each of 2 KV heads), and 13.9 against 18.9
(6 heads of 128).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.reference import causal_mask, position_mask
from kernels.attention.types import Run, Scratch, first_keys, heads_first

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


def block_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
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


def single_queries(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend from each sequence's last token to all of it.

    query: [num_seqs, num_heads, head_dim]; keys, values: [num_seqs, seq_len, num_kv_heads, head_dim], of which shorter
    sequences hide some; bias: [num_seqs, 1, 1, seq_len] in the query's dtype, 0, or -inf where a key is hidden (hidden
    values must be finite all the same). Returns [num_seqs, num_heads, head_dim].
    """
    num_seqs, num_heads, head_dim = query.shape
    packed = query.reshape(num_seqs, keys.shape[2], -1, head_dim)
    out = F.scaled_dot_product_attention(packed, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=bias)
    return out.reshape(num_seqs, num_heads, head_dim)


def sdpa_attention(query: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """As `reference.causal_attention`.

    One query is packed with its group into rows of one KV head: torch's CPU kernel is ten times slower in bf16 when
    it is given one row a head (0.16 ms against 1.5 ms over 1,500 keys).
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, seq_len, _ = keys.shape
    if num_tokens == 1:
        seen = slice(0 if window is None else max(0, seq_len - window), None)
        packed = query.view(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(packed, keys[None, :, seen], values[None, :, seen])
        return out.reshape(1, num_heads, head_dim)
    return _masked_attention(query, keys, values, causal_mask(num_tokens, seq_len, query.device, window))


def sdpa_scattered_attention(query: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """As `reference.scattered_attention`."""
    return _masked_attention(query, keys, values, position_mask(positions, keys.shape[1]))


def _masked_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    heads_first = query.transpose(0, 1)[None]
    grouped = query.shape[1] != keys.shape[0]
    out = F.scaled_dot_product_attention(heads_first, keys[None], values[None], attn_mask=mask, enable_gqa=grouped)
    return out[0].transpose(0, 1).contiguous()


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


def few_query_attention(query: Tensor, runs: Sequence[Run], scratch: Scratch, window: int | None = None) -> Tensor:
    """As `kernels.attention.causal_attention`."""
    keys, values = _heads_first(runs, scratch)
    if query.shape[0] == 1:
        return sdpa_attention(query, keys, values, window)
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


MOST_UNSEEN = 1 << 16
"""Scores of a head that a piece computes of keys in gaps, for tokens before them: about what a piece costs at least."""

MOST_ALONE = 4
"""Runs of a few neighbours that are attended to each alone; with more of them, blocks cost less."""

Range = tuple[int, int]
"""Tokens [first, last) of the query."""


def scattered_attention(query: Tensor, positions: Sequence[int], runs: Sequence[Run], scratch: Scratch) -> Tensor:
    """As `kernels.attention.scattered_attention`."""
    num_heads, num_kv_heads = query.shape[1], runs[0][0].shape[1]
    group, out = num_heads // num_kv_heads, torch.empty_like(query)
    alone = _alone(positions, group)
    for first, last in alone:
        seen = first_keys(runs, positions[last - 1] + 1)
        out[first:last] = few_query_attention(query[first:last], seen, scratch)
    pieces = [piece for rest in _between(alone, len(positions)) for piece in _pieces(positions, *rest, group)]
    if pieces:
        seq_len = positions[pieces[-1][1] - 1] + 1
        blocks = [
            block for piece in pieces for block in _scattered_blocks(positions, piece, num_kv_heads, group, seq_len)
        ]
        hide = partial(_hide_scattered, positions=torch.tensor(positions))
        attend(query, first_keys(runs, seq_len), scratch, blocks, hide, out)
    return out


def _alone(positions: Sequence[int], group: int) -> list[Range]:
    """The runs of neighbours that are best attended to each alone."""
    borders = [at for at in range(1, len(positions)) if positions[at] > positions[at - 1] + 1]
    ranges = pairwise([0, *borders, len(positions)])
    few = [each for each in ranges if is_quicker(each[1] - each[0], positions[each[1] - 1] + 1, group)]
    return few if len(few) <= MOST_ALONE else []


def _between(ranges: Sequence[Range], num_tokens: int) -> Iterator[Range]:
    """What these ranges leave of all tokens."""
    first = 0
    for taken, end in [*ranges, (num_tokens, num_tokens)]:
        if taken > first:
            yield first, taken
        first = end


def _pieces(positions: Sequence[int], first: int, end: int, group: int) -> Iterator[Range]:
    """The tokens [first, end), cut where a block is full or a gap too wide."""
    most, num_unseen = most_tokens(positions[end - 1] + 1, group), 0
    for token in range(first + 1, end):
        num_tokens = token - first
        num_unseen += num_tokens * group * (positions[token] - positions[token - 1] - 1)
        if num_tokens == most or num_unseen > MOST_UNSEEN:
            yield first, token
            first, num_unseen = token, 0
    yield first, end


def _scattered_blocks(
    positions: Sequence[int], piece: Range, num_kv_heads: int, group: int, seq_len: int
) -> Iterator[Block]:
    """A piece's blocks, of keys up to its last position: one of all heads, or one for each KV head.

    A batched product would copy keys that are not all that there are.
    """
    first, last = piece
    last_key = positions[last - 1] + 1
    together = last_key == seq_len and fits_all_heads(last - first, last_key, num_kv_heads * group)
    step = num_kv_heads if together else 1
    for head in range(0, num_kv_heads, step):
        yield Block(first, last, 0, last_key, slice(head, head + step))


def _hide_scattered(scores: Tensor, block: Block, positions: Tensor) -> None:
    """Give -inf to the keys behind each query. All of them see those up to the first one's."""
    own = positions[block.first_token : block.last_token]
    first = int(own[0]) + 1
    hidden = ~position_mask(own - first, block.last_key - first)
    scores[..., first:].masked_fill_(hidden[None, :, None, :], float("-inf"))
