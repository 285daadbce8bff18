"""Causal grouped-query attention on a CPU, by the number and the positions of the queries.

Torch's fused attention spends most of its time outside the matrix unit (180 GFLOP/s of 1,000 on two AVX-512 cores).
Here the scores of a block are one matrix product in float32 whose bf16 inputs are multiplied as bf16, so nothing is
rounded that was not rounded before (see the flag below), then one softmax in place and one product with the values.
That is 2.1 times as fast for 512 queries on 2,048 keys and for drafts of 64 tokens, with the same error against
float64.

For few queries torch's fused kernel is faster. It takes 32 rows of a head at a time, and a step costs nearly the same
for one row as for 32, so the queries of a group are packed into rows of one head. Keys and values are read in place,
and the scores stay in the first-level cache. After 4,096 keys in main memory one query takes 0.38 ms, blocks take 0.75
ms (7 heads of 64 for each of 2 KV heads); for 6 heads of 128 it is 0.81 against 1.61 ms. The error is 1.8e-3, that of
blocks 2.2e-3. Scores in bf16 would take 0.28 ms with an error of 1.2e-2.

Queries at scattered positions are split. A few neighbours, such as the last token of a prompt, use the fused kernel on
the keys in place. The others are cut into blocks with a mask of positions. A block that spans a gap computes scores
that its tokens before the gap do not see, and every block has a fixed cost. 150 tokens at three places after 6,000 keys
take 9.0 ms, and as many at the end 12.7 ms (7 heads of 64 for each of 2 KV heads); 13.9 and 18.9 ms for 6 heads of 128.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from kernels.attention.fused import few_query_attention, is_fused_faster
from kernels.attention.runs import Run, Scratch, cap_scores, concat_by_head, make_position_mask, truncate_runs

MAX_SCORES = 1 << 22
"""Scores of a block of queries if there are more than 5,400 keys: 16 MB of float32, half of a last-level cache."""

MIN_ROWS, MAX_ROWS = 128, 768
"""Rows of a block's matrix product. Fewer rows do not fill the matrix unit; the scores of more rows leave the cache.

With at most 512, 768 and 1,024 rows, 512 queries (6 heads of 128 for a KV head) take 35.3, 34.6 and 56 ms on 4,096
keys, and 77, 74 and 74 ms on 8,192; 64 queries take 5.0, 5.0 and 5.1 ms, and 9.3, 9.1 and 10.3 ms (AMD EPYC with
AVX512-BF16, 2 cores).
"""


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens [first_token, last_token) and keys [first_key, last_key) of some KV heads."""

    first_token: int
    last_token: int
    first_key: int
    last_key: int
    heads: slice


ScoreMask = Callable[[Tensor, Block], None]
"""Sets a block's scores [heads, num_tokens, group, num_keys] to -inf for keys that a query does not see."""


def block_attention(
    query: Tensor,
    runs: Sequence[Run],
    scratch: Scratch,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Compute `kernels.attention.causal_attention` in blocks of queries."""
    num_tokens, num_heads, _ = query.shape
    seq_len, num_kv_heads = sum(keys.shape[0] for keys, _ in runs), runs[0][0].shape[1]
    blocks = _split_into_blocks(num_tokens, seq_len, num_kv_heads, num_heads // num_kv_heads, window)
    mask_scores = partial(_mask_causally, scratch=scratch, start=seq_len - num_tokens, window=window)
    out = torch.empty_like(query)
    attend_blocks(query, runs, scratch, blocks, mask_scores, out, scale, cap)
    return out


def attend_blocks(
    query: Tensor,
    runs: Sequence[Run],
    scratch: Scratch,
    blocks: Iterable[Block],
    mask_scores: ScoreMask,
    out: Tensor,
    scale: float | None = None,
    cap: float | None = None,
) -> None:
    """Attend from the queries of some blocks and write the results to their rows of `out`.

    query and out are [num_tokens, num_heads, head_dim].
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = runs[0][0].shape[1]
    group = num_heads // num_kv_heads
    by_head = out.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1)
    packed = scratch.take("query", tuple(by_head.shape), torch.float32)
    packed.copy_(query.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1))
    keys = concat_by_head([keys for keys, _ in runs], scratch, "keys", torch.float32)
    values = concat_by_head([values for _, values in runs], scratch, "values", _get_softmax_dtype(query.dtype))
    for block in blocks:
        rows = packed[block.heads, block.first_token : block.last_token]
        seen = slice(block.first_key, block.last_key)
        scores = scratch.take("scores", (*rows.shape[:3], block.last_key - block.first_key), torch.float32)
        with _bf16_products(query.dtype):
            _compute_scores(rows.flatten(1, 2), keys[block.heads, seen], scores.flatten(1, 2), scale)
        mask_scores(cap_scores(scores, cap), block)
        shares = _compute_softmax(scores.flatten(1, 2), scratch, query.dtype)
        attended = torch.bmm(shares, values[block.heads, seen])
        by_head[block.heads, block.first_token : block.last_token] = attended.view(rows.shape)


def get_max_block_tokens(seq_len: int, group: int) -> int:
    """Return how many tokens a block of one head may have if it sees `seq_len` keys."""
    return max(1, min(MAX_ROWS, max(MIN_ROWS, MAX_SCORES // seq_len)) // group)


def fits_all_heads(num_tokens: int, seq_len: int, num_heads: int) -> bool:
    """Return whether one block may have all heads of these tokens."""
    return num_tokens * num_heads <= min(MAX_ROWS, MAX_SCORES // seq_len)


def _compute_scores(rows: Tensor, keys: Tensor, out: Tensor, scale: float | None) -> None:
    """Compute scaled scores [heads, num_rows, num_keys] of rows [heads, num_rows, head_dim] and keys likewise.

    A single head is not computed as a batch: attention of 256 queries to 4,096 keys then takes 8 to 13 % less time.
    """
    scale = rows.shape[-1] ** -0.5 if scale is None else scale
    if len(rows) == 1:
        torch.addmm(out[0], rows[0], keys[0].T, beta=0, alpha=scale, out=out[0])
    else:
        torch.baddbmm(out, rows, keys.transpose(1, 2), beta=0, alpha=scale, out=out)


def _compute_softmax(scores: Tensor, scratch: Scratch, dtype: torch.dtype) -> Tensor:
    """Return the softmax of the scores, which it overwrites, in the dtype of the product with the values."""
    torch.softmax(scores, dim=-1, out=scores)
    if _get_softmax_dtype(dtype) == scores.dtype:
        return scores
    return scratch.take("shares", tuple(scores.shape), dtype).copy_(scores)


def _get_softmax_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return bf16 for bf16, as is usual in the field; otherwise float32, as a CPU cannot multiply float16."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def _split_into_blocks(
    num_tokens: int, seq_len: int, num_kv_heads: int, group: int, window: int | None
) -> Iterator[Block]:
    """Split the queries into blocks of at most MAX_SCORES scores, or of the minimum number of rows of one head.

    If there are several blocks, each has one head: a batched product would copy its operands, which are slices then.
    """
    start = seq_len - num_tokens
    if fits_all_heads(num_tokens, seq_len, group * num_kv_heads):
        first_key = 0 if window is None else max(0, start + 1 - window)
        yield Block(0, num_tokens, first_key, seq_len, slice(0, num_kv_heads))
        return
    tokens = get_max_block_tokens(seq_len, group)
    for first_token in range(0, num_tokens, tokens):
        last_token = min(first_token + tokens, num_tokens)
        first_key = 0 if window is None else max(0, start + first_token + 1 - window)
        for head in range(num_kv_heads):
            yield Block(first_token, last_token, first_key, start + last_token, slice(head, head + 1))


def _mask_causally(scores: Tensor, block: Block, scratch: Scratch, start: int, window: int | None) -> None:
    """Set scores to -inf for keys after each query, and for keys before its window.

    The first query is at position `start`. Only the last `num_tokens` keys of a block can come after one of its
    queries.
    """
    num_tokens, num_keys = scores.shape[1], scores.shape[3]
    if num_tokens > 1:
        scores[..., num_keys - num_tokens :] += scratch.get_causal_bias(num_tokens)[None, :, None, :]
    if window is not None:
        last_hidden = torch.arange(start + block.first_token, start + block.last_token)[:, None] - window
        before = torch.arange(block.first_key, block.last_key)[None, :] <= last_hidden
        scores.masked_fill_(before[None, :, None, :], float("-inf"))


@contextmanager
def _bf16_products(dtype: torch.dtype) -> Iterator[None]:
    """Multiply float32 operands as bf16 and sum in float32, which is exact for operands that were bf16.

    For other dtypes nothing changes. The flag belongs to the process; it is restored on exit.
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


MAX_HIDDEN_SCORES = 1 << 16
"""Scores of a head that a block may compute for hidden keys in gaps: about the fixed cost of a block."""

MAX_FUSED_RANGES = 4
"""Ranges of neighbours that use the fused kernel one by one; with more of them blocks are faster."""

Range = tuple[int, int]
"""Tokens [first, last) of the query."""


def attention_at_positions(
    query: Tensor,
    positions: Sequence[int],
    runs: Sequence[Run],
    scratch: Scratch,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Compute `kernels.attention.attention_at_positions`: short ranges by the fused kernel, the rest in blocks."""
    num_heads, num_kv_heads = query.shape[1], runs[0][0].shape[1]
    group, out = num_heads // num_kv_heads, torch.empty_like(query)
    alone = _find_fused_ranges(positions, group) if cap is None else []
    for first, last in alone:
        seen = truncate_runs(runs, positions[last - 1] + 1)
        out[first:last] = few_query_attention(query[first:last], seen, scratch, window, scale)
    pieces = [
        piece
        for rest in _find_remaining_ranges(alone, len(positions))
        for piece in _split_at_gaps(positions, *rest, group)
    ]
    if pieces:
        seq_len = positions[pieces[-1][1] - 1] + 1
        blocks = [
            block for piece in pieces for block in _make_position_blocks(positions, piece, num_kv_heads, group, seq_len)
        ]
        hide = partial(_mask_by_position, positions=torch.tensor(positions), window=window)
        attend_blocks(query, truncate_runs(runs, seq_len), scratch, blocks, hide, out, scale, cap)
    return out


def _find_fused_ranges(positions: Sequence[int], group: int) -> list[Range]:
    """Find the ranges of neighbours for which the fused kernel is faster."""
    borders = [at for at in range(1, len(positions)) if positions[at] > positions[at - 1] + 1]
    ranges = pairwise([0, *borders, len(positions)])
    few = [each for each in ranges if is_fused_faster(each[1] - each[0], positions[each[1] - 1] + 1, group)]
    return few if len(few) <= MAX_FUSED_RANGES else []


def _find_remaining_ranges(ranges: Sequence[Range], num_tokens: int) -> Iterator[Range]:
    """Return the ranges between the given ones."""
    first = 0
    for taken, end in [*ranges, (num_tokens, num_tokens)]:
        if taken > first:
            yield first, taken
        first = end


def _split_at_gaps(positions: Sequence[int], first: int, end: int, group: int) -> Iterator[Range]:
    """Split the tokens [first, end) where a block is full or a gap too wide."""
    most, num_unseen = get_max_block_tokens(positions[end - 1] + 1, group), 0
    for token in range(first + 1, end):
        num_tokens = token - first
        num_unseen += num_tokens * group * (positions[token] - positions[token - 1] - 1)
        if num_tokens == most or num_unseen > MAX_HIDDEN_SCORES:
            yield first, token
            first, num_unseen = token, 0
    yield first, end


def _make_position_blocks(
    positions: Sequence[int], piece: Range, num_kv_heads: int, group: int, seq_len: int
) -> Iterator[Block]:
    """Make the blocks of a range with keys up to its last position: one of all heads, or one for each KV head.

    A batched product over only a part of the keys would copy them.
    """
    first, last = piece
    last_key = positions[last - 1] + 1
    together = last_key == seq_len and fits_all_heads(last - first, last_key, num_kv_heads * group)
    step = num_kv_heads if together else 1
    for head in range(0, num_kv_heads, step):
        yield Block(first, last, 0, last_key, slice(head, head + step))


def _mask_by_position(scores: Tensor, block: Block, positions: Tensor, window: int | None) -> None:
    """Set scores to -inf for keys after each query, and before its window. Without one, all queries see the keys up to
    the first query's position.
    """
    own = positions[block.first_token : block.last_token]
    first = int(own[0]) + 1 if window is None else 0
    hidden = ~make_position_mask(own - first, block.last_key - first, window)
    scores[..., first:].masked_fill_(hidden[None, :, None, :], float("-inf"))
