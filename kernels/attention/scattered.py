"""Attention on a CPU of tokens that stand anywhere in a sequence: a prompt's changed tokens among those with KV.

A few neighbours, such as a prompt's last token, go to the fused kernel, which reads their keys where they lie. The
others are cut into pieces, blocks of `blocked` with a mask of positions: a piece that spans a gap computes scores that
its tokens before the gap do not see, and every piece costs something of its own. 150 tokens in three places behind
6,000 keys take 9.0 ms where as many at the end take 12.7 (7 heads of 64 to each of 2 KV heads), and 13.9 against 18.9
(6 heads of 128).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from kernels.attention import blocked, few_rows
from kernels.attention.blocked import Block
from kernels.attention.reference import position_mask
from kernels.attention.runs import Run, first_keys
from kernels.attention.scratch import Scratch

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
        out[first:last] = few_rows.causal_attention(query[first:last], seen, scratch)
    pieces = [piece for rest in _between(alone, len(positions)) for piece in _pieces(positions, *rest, group)]
    if pieces:
        seq_len = positions[pieces[-1][1] - 1] + 1
        blocks = [block for piece in pieces for block in _blocks(positions, piece, num_kv_heads, group, seq_len)]
        hide = partial(_hide, positions=torch.tensor(positions))
        blocked.attend(query, first_keys(runs, seq_len), scratch, blocks, hide, out)
    return out


def _alone(positions: Sequence[int], group: int) -> list[Range]:
    """The runs of neighbours that are best attended to each alone."""
    borders = [at for at in range(1, len(positions)) if positions[at] > positions[at - 1] + 1]
    ranges = pairwise([0, *borders, len(positions)])
    few = [each for each in ranges if few_rows.is_quicker(each[1] - each[0], positions[each[1] - 1] + 1, group)]
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
    most, num_unseen = blocked.most_tokens(positions[end - 1] + 1, group), 0
    for token in range(first + 1, end):
        num_tokens = token - first
        num_unseen += num_tokens * group * (positions[token] - positions[token - 1] - 1)
        if num_tokens == most or num_unseen > MOST_UNSEEN:
            yield first, token
            first, num_unseen = token, 0
    yield first, end


def _blocks(positions: Sequence[int], piece: Range, num_kv_heads: int, group: int, seq_len: int) -> Iterator[Block]:
    """A piece's blocks, of keys up to its last position: one of all heads, or one for each KV head.

    A batched product would copy keys that are not all that there are.
    """
    first, last = piece
    last_key = positions[last - 1] + 1
    together = last_key == seq_len and blocked.fits_all_heads(last - first, last_key, num_kv_heads * group)
    step = num_kv_heads if together else 1
    for head in range(0, num_kv_heads, step):
        yield Block(first, last, 0, last_key, slice(head, head + step))


def _hide(scores: Tensor, block: Block, positions: Tensor) -> None:
    """Give -inf to the keys behind each query. All of them see those up to the first one's."""
    own = positions[block.first_token : block.last_token]
    first = int(own[0]) + 1
    hidden = ~position_mask(own - first, block.last_key - first)
    scores[..., first:].masked_fill_(hidden[None, :, None, :], float("-inf"))
