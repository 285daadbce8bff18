"""Checks shapes and picks the implementation by device."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kernels.accept import reference
from kernels.accept.accepted import Accepted, num_accepted
from kernels.accept.draws import Draws
from kernels.accept.rows import likeliest_of


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
    return _on_cpu(logits.cpu(), draft.cpu(), row_starts.cpu(), draws)


def _on_cpu(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None) -> Accepted:
    found = likeliest_of(logits)
    token_ids = found.token_ids
    if draws is not None:
        token_ids = reference.drawn(logits, found, draws.temperatures.tolist(), draws.numbers.tolist())
    confirmable = torch.where(torch.from_numpy(found.largest).isfinite(), draft, -1).tolist()
    starts = row_starts.tolist()
    counts = [num_accepted(token_ids[first:last], confirmable[first:last]) for first, last in pairwise(starts)]
    return Accepted.of(found, token_ids, counts)


def _check(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None) -> None:
    assert logits.dim() == 2, f"logits are [num_rows, vocab_size], not {tuple(logits.shape)}"
    num_rows, vocab_size = logits.shape
    assert vocab_size > 0, "one of no tokens cannot be chosen"
    assert draft.shape == (num_rows,), f"{tuple(draft.shape)} draft tokens of {num_rows} rows"
    assert len(row_starts) > 0, "row_starts has one more number than there are sequences"
    if draws is not None:
        assert draws.temperatures.shape == draws.numbers.shape == (num_rows,), f"draws are for {num_rows} rows"
