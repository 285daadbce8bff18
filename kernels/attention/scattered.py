"""Attention on a CPU of tokens that stand anywhere in a sequence: a prompt's changed tokens among those with KV.

The blocks of `blocked` with a mask of positions. What decides is where the tokens are cut into blocks: one that spans a
gap computes scores that its tokens before the gap do not see, and every block costs something of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from kernels.attention import blocked
from kernels.attention.blocked import Block
from kernels.attention.reference import position_mask
from kernels.attention.runs import Run
from kernels.attention.scratch import Scratch

MOST_UNSEEN = 1 << 16
"""Scores of a head that a block computes of keys in gaps, for tokens before them: about what a block costs at least."""


def scattered_attention(query: Tensor, positions: Sequence[int], runs: Sequence[Run], scratch: Scratch) -> Tensor:
    """As `kernels.attention.scattered_attention`; the runs end with the last position."""
    num_heads, num_kv_heads = query.shape[1], runs[0][0].shape[1]
    blocks = _blocks(positions, num_kv_heads, num_heads // num_kv_heads)
    return blocked.attend(query, runs, scratch, blocks, partial(_hide, positions=torch.tensor(positions)))


def _blocks(positions: Sequence[int], num_kv_heads: int, group: int) -> Iterator[Block]:
    """Cut the queries where a block is full or a gap too wide; a block reads keys up to its last position."""
    most = blocked.most_tokens(positions[-1] + 1, group)
    first_token = num_unseen = 0
    for token in range(1, len(positions) + 1):
        num_tokens = token - first_token
        if token < len(positions):
            num_unseen += num_tokens * group * (positions[token] - positions[token - 1] - 1)
            if num_tokens < most and num_unseen <= MOST_UNSEEN:
                continue
        yield from _by_heads(first_token, token, positions[token - 1] + 1, num_kv_heads, group)
        first_token, num_unseen = token, 0


def _by_heads(first_token: int, last_token: int, last_key: int, num_kv_heads: int, group: int) -> Iterator[Block]:
    """All heads at once where they fit, or one after the other."""
    together = blocked.fits_all_heads(last_token - first_token, last_key, num_kv_heads * group)
    step = num_kv_heads if together else 1
    for head in range(0, num_kv_heads, step):
        yield Block(first_token, last_token, 0, last_key, slice(head, head + step))


def _hide(scores: Tensor, block: Block, positions: Tensor) -> None:
    """Give -inf to the keys behind each query. All of them see those up to the first one's."""
    own = positions[block.first_token : block.last_token]
    first = int(own[0]) + 1
    hidden = ~position_mask(own - first, block.last_key - first)
    scores[..., first:].masked_fill_(hidden[None, :, None, :], float("-inf"))
