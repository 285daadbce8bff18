"""Chooses the likeliest or the drawn token of each row, and counts how many tokens of a draft are confirmed."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.accept import reference
from kernels.accept.cpu import TILE, likeliest, likeliest_of
from kernels.accept.op import OP
from kernels.accept.types import Accepted, Draws, Likeliest, num_accepted
from kernels.backend import runs_triton

__all__ = ["TILE", "Accepted", "Draws", "Likeliest", "accept", "likeliest", "likeliest_of", "num_accepted"]


def accept(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None = None) -> Accepted:
    """Choose a token behind each row, and count how many tokens of its draft each sequence confirms.

    logits: [num_rows, vocab_size] in any float dtype; draft: int64 [num_rows], the draft's token behind each row, -1
    where it has none; row_starts: int32 [num_seqs + 1], sequence i has the rows [row_starts[i], row_starts[i + 1]). All
    are on one device, where the result stays until it is asked for by `to_host`. What is said of rows in no sequence
    means nothing.

    Chosen is the likeliest token, of equal ones the first, or what `draws` draws. A sequence confirms tokens up to the
    first row whose chosen token is another than the draft's, or whose largest logit is no finite number.
    """
    _check(logits, draft, row_starts, draws)
    if runs_triton(logits):
        return OP.accepted({"logits": logits, "draft": draft, "row_starts": row_starts, "draws": draws})
    token_ids, likeliest, largest, second, counts = reference.accept(logits, draft, row_starts, draws)
    numbers = torch.cat((largest, second)).to(torch.float32).view(torch.int32)
    return Accepted(torch.cat((token_ids.int(), likeliest.int(), numbers, counts.int())), len(logits))


def _check(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0 or logits.stride(1) != 1:
        raise ValueError(f"logits are [num_rows, vocab_size], rows without gaps, not {list(logits.shape)}")
    num_rows = len(logits)
    if draft.shape != (num_rows,) or row_starts.dim() != 1 or len(row_starts) == 0:
        raise ValueError(f"{num_rows} rows have no draft {list(draft.shape)} and starts {list(row_starts.shape)}")
    if draws is not None and not draws.temperatures.shape == draws.numbers.shape == (num_rows,):
        raise ValueError(f"{num_rows} rows do not draw {list(draws.temperatures.shape)} times")
