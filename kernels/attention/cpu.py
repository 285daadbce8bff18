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
import torch.nn.functional as F
from torch import Tensor

MIN_BIAS_COLUMNS = 512
"""The minimum number of keys that a bias is made for."""


class Scratch:
    """Memory for intermediate values, kept from call to call: fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._behind = torch.empty(0, 0)
        self._biases: dict[tuple[int, int, int | None, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor with undefined contents, valid until the next call with the same name and dtype."""
        size = torch.Size(shape).numel()
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(1 << (size - 1).bit_length(), dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)

    def get_causal_bias(self, num_tokens: int) -> Tensor:
        """Return -inf where a key comes after its query, else 0: float32 [num_tokens, num_tokens], read-only."""
        if len(self._behind) < num_tokens:
            self._behind = torch.full((num_tokens, num_tokens), float("-inf")).triu_(1)
        return self._behind[:num_tokens, :num_tokens]

    def get_bias(self, num_tokens: int, group: int, window: int | None, num_keys: int, dtype: torch.dtype) -> Tensor:
        """Return -inf where a key is hidden, else 0: [num_tokens * group, num_keys], rows by token. Do not write to it.

        It covers the last `num_keys` keys of the sequence, for its last tokens. Whether a key is hidden depends only on
        its distance from the end, so one tensor for each number of tokens serves all lengths.
        """
        name = (num_tokens, group, window, dtype)
        known = self._biases.get(name)
        if known is None or known.shape[1] < num_keys:
            columns = 1 << (max(num_keys, MIN_BIAS_COLUMNS) - 1).bit_length()
            hidden = ~make_causal_mask(num_tokens, columns, torch.device("cpu"), window)
            known = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
            known = self._biases[name] = known.repeat_interleave(group, dim=0)
        return known[:, known.shape[1] - num_keys :]


Run = tuple[Tensor, Tensor]
"""Keys and values of neighbouring positions, [num_positions, num_kv_heads, head_dim] each, with any strides."""


def truncate_runs(runs: Sequence[Run], end: int) -> list[Run]:
    """Return views of the first `end` positions of the runs."""
    first = []
    for keys, values in runs:
        if end <= 0:
            break
        first.append((keys[:end], values[:end]))
        end -= keys.shape[0]
    return first


def concat_by_head(parts: Sequence[Tensor], scratch: Scratch, name: str, dtype: torch.dtype) -> Tensor:
    """Concatenate the parts as `dtype` in the scratch memory `name`: contiguous [num_kv_heads, seq_len, head_dim]."""
    _, num_kv_heads, head_dim = parts[0].shape
    whole = scratch.take(name, (num_kv_heads, sum(part.shape[0] for part in parts), head_dim), dtype)
    start = 0
    for part in parts:
        whole[:, start : start + part.shape[0]].copy_(part.transpose(0, 1))
        start += part.shape[0]
    return whole


def make_causal_mask(num_tokens: int, seq_len: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return which keys each query sees: bool [num_tokens, seq_len], aligned to the bottom right.

    With a sliding window (Beltagy et al. 2020, arXiv 2004.05150) each row has at most `window` True, its own position
    last.
    """
    mask = torch.ones(num_tokens, seq_len, dtype=torch.bool, device=device).tril(seq_len - num_tokens)
    return mask if window is None else mask.triu(seq_len - num_tokens - window + 1)


def make_position_mask(positions: Tensor, seq_len: int, window: int | None = None) -> Tensor:
    """Return which keys each query sees, its own position included: bool [num_tokens, seq_len]."""
    keys = torch.arange(seq_len, device=positions.device)[None, :]
    seen = keys <= positions[:, None]
    return seen if window is None else seen & (keys > positions[:, None] - window)


def cap_scores(scores: Tensor, cap: float | None) -> Tensor:
    """Change scores x to cap * tanh(x / cap) in place, if there is a cap (Gemma 2, arXiv 2408.00118)."""
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)


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


def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float | None = None
) -> Tensor:
    """Attend from the last token of each sequence to the whole sequence.

    query: [num_seqs, num_heads, head_dim]. keys, values: [num_seqs, seq_len, num_kv_heads, head_dim], padded for
    shorter sequences. bias: [num_seqs, 1, 1, seq_len], 0, or -inf where a key is hidden; hidden values must still be
    finite. Returns [num_seqs, num_heads, head_dim] in the query's dtype, in which all is computed.
    """
    num_seqs, num_heads, head_dim = query.shape
    keys, values, bias = (each.to(query.dtype) for each in (keys, values, bias))
    packed = query.reshape(num_seqs, keys.shape[2], -1, head_dim)
    out = F.scaled_dot_product_attention(
        packed, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=bias, scale=scale
    )
    return out.reshape(num_seqs, num_heads, head_dim)


def sdpa_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from the last tokens of a sequence by torch's fused attention, which knows no cap of scores.

    One query is packed with its group into rows of one KV head: torch's CPU kernel is ten times slower in bf16 with one
    row a head (0.16 against 1.5 ms over 1,500 keys).
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, seq_len, _ = keys.shape
    if num_tokens == 1 and cap is None:
        seen = slice(0 if window is None else max(0, seq_len - window), None)
        packed = query.view(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(packed, keys[None, :, seen], values[None, :, seen], scale=scale)
        return out.reshape(1, num_heads, head_dim)
    mask = make_causal_mask(num_tokens, seq_len, query.device, window)
    return _attend_with_mask(query, keys, values, mask, scale, cap)


def sdpa_attention_at_positions(
    query: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from tokens at any positions by torch's fused attention."""
    mask = make_position_mask(positions, keys.shape[1], window)
    return _attend_with_mask(query, keys, values, mask, scale, cap)


def _attend_with_mask(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None, cap: float | None
) -> Tensor:
    heads_first = query.transpose(0, 1)[None]
    group = query.shape[1] // keys.shape[0]
    if cap is not None:
        scale = query.shape[2] ** -0.5 if scale is None else scale
        scores = cap_scores(heads_first[0].float() @ keys.float().repeat_interleave(group, 0).mT * scale, cap)
        shares = scores.masked_fill_(~mask, float("-inf")).softmax(dim=-1)
        attended = shares @ values.float().repeat_interleave(group, 0)
        return attended.transpose(0, 1).to(query.dtype).contiguous()
    out = F.scaled_dot_product_attention(
        heads_first, keys[None], values[None], attn_mask=mask, enable_gqa=group > 1, scale=scale
    )
    return out[0].transpose(0, 1).contiguous()


MAX_FUSED_SCORES = 100_000
"""Scores of a KV head up to which the fused kernel is faster for several tokens on a CPU.

Break-even on an AMD EPYC with AVX512-BF16 (2 cores), midway between keys in the cache and in main memory: 16 tokens of
7 heads at 1,024 keys, 8 at 2,048, 4 to 5 at 4,096; of 6 heads twice as wide 14, 8 and 5.
"""

MAX_FUSED_TOKENS = 16
"""The largest number of tokens that was measured. The bias of each number of tokens is cached."""


def is_fused_faster(num_tokens: int, seq_len: int, group: int) -> bool:
    """Return whether the fused kernel is faster than blocks for the last tokens of a sequence."""
    few = num_tokens <= MAX_FUSED_TOKENS and num_tokens * seq_len * group <= MAX_FUSED_SCORES
    return few or num_tokens == 1


def few_query_attention(
    query: Tensor,
    runs: Sequence[Run],
    scratch: Scratch,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute `kernels.attention.causal_attention` by the fused kernel, with a group's queries packed into one head."""
    keys, values = _concat_runs_by_head(runs, scratch, query.dtype)
    if query.shape[0] == 1:
        return sdpa_attention(query, keys, values, window, scale)
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, seq_len = keys.shape[:2]
    group = num_heads // num_kv_heads
    first_key = 0 if window is None else max(0, seq_len - num_tokens + 1 - window)
    keys, values = keys[:, first_key:], values[:, first_key:]
    bias = scratch.get_bias(num_tokens, group, window, seq_len - first_key, query.dtype)[None, None]
    rows = query.view(num_tokens, num_kv_heads, group, head_dim).transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    out = F.scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=bias, scale=scale)
    by_head = out.view(num_kv_heads, num_tokens, group, head_dim)
    return by_head.transpose(0, 1).reshape(num_tokens, num_heads, head_dim)


def _concat_runs_by_head(runs: Sequence[Run], scratch: Scratch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return keys and values as `dtype`, [num_kv_heads, seq_len, head_dim] each; of a single run of it a view.

    Several runs are copied. Attending to each run and merging the results is not faster for two runs, and slower for
    eight.
    """
    if len(runs) == 1 and runs[0][0].dtype == dtype:
        keys, values = runs[0]
        return keys.transpose(0, 1), values.transpose(0, 1)
    keys = concat_by_head([keys for keys, _ in runs], scratch, "keys", dtype)
    return keys, concat_by_head([values for _, values in runs], scratch, "values", dtype)


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
