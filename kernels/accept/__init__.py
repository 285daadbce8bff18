"""Chooses the token of each row, greedily or by sampling, and counts how many draft tokens are accepted."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.accept.cpu import TILE, find_top_tokens, find_top_tokens_by_tile
from kernels.accept.op import OP, naive_accept
from kernels.accept.types import AcceptOutput, Draws, TopTokens, count_accepted
from kernels.op import runs_triton

__all__ = [
    "TILE",
    "AcceptOutput",
    "Draws",
    "TopTokens",
    "accept",
    "count_accepted",
    "find_top_tokens",
    "find_top_tokens_by_tile",
]


def accept(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None = None) -> AcceptOutput:
    """Choose a token for each row and count how many draft tokens each sequence accepts.

    logits: [num_rows, vocab_size] in any floating-point dtype. draft: int64 [num_rows], the draft token that follows
    each row, or -1. row_starts: int32 [num_seqs + 1]; sequence i has the rows [row_starts[i], row_starts[i + 1]). All
    tensors are on one device. The result stays there until `to_host` is called. Results of rows that belong to no
    sequence are undefined.

    The chosen token is the one with the largest logit (the first of equals), or the one sampled by `draws`. A sequence
    accepts draft tokens up to the first row whose chosen token differs from the draft's, or whose largest logit is not
    finite.
    """
    _check(logits, draft, row_starts, draws)
    if runs_triton(logits):
        return OP.run_kernels({"logits": logits, "draft": draft, "row_starts": row_starts, "draws": draws})
    token_ids, likeliest, largest, second, counts = naive_accept(logits, draft, row_starts, draws)
    numbers = torch.cat((largest, second)).to(torch.float32).view(torch.int32)
    return AcceptOutput(torch.cat((token_ids.int(), likeliest.int(), numbers, counts.int())), len(logits))


def _check(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0 or logits.stride(1) != 1:
        raise ValueError(f"logits must be [num_rows, vocab_size] with contiguous rows, not {list(logits.shape)}")
    num_rows = len(logits)
    if draft.shape != (num_rows,) or row_starts.dim() != 1 or len(row_starts) == 0:
        raise ValueError(f"{num_rows} rows do not fit draft {list(draft.shape)}, row_starts {list(row_starts.shape)}")
    if draws is not None and not draws.temperatures.shape == draws.numbers.shape == (num_rows,):
        raise ValueError(f"temperatures {list(draws.temperatures.shape)} do not fit {num_rows} rows")
