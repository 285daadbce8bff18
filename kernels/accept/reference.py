"""The likeliest tokens and how many of a draft they confirm, written out: what the fast ways are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from kernels.accept.types import LEAST_TEMPERATURE, Draws, Likeliest


def likeliest(logits: Tensor) -> Likeliest:
    """Of each row of logits [num_rows, vocab_size]; of equal ones the first."""
    rows = [row.tolist() for row in logits.float()]
    ids = [max(range(len(row)), key=lambda token_id: (row[token_id], -token_id)) for row in rows]
    best = [
        float("nan") if any(value != value for value in row) else row[at] for row, at in zip(rows, ids, strict=True)
    ]
    others = [max([*row[:at], *row[at + 1 :]], default=-float("inf")) for row, at in zip(rows, ids, strict=True)]
    return Likeliest(np.array(ids, dtype=np.intp), np.array(best, dtype=np.float32), np.array(others, dtype=np.float32))


def num_accepted(token_ids: Sequence[int], draft: Sequence[int]) -> int:
    """How many tokens agree before the first that does not."""
    count = 0
    while count < min(len(token_ids), len(draft)) and token_ids[count] == draft[count]:
        count += 1
    return count


def accept(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None) -> tuple[Tensor, ...]:
    """Of each row the chosen token, the likeliest one, its logit and the runner-up's, [num_rows] each, and how many
    tokens of its draft each sequence confirms, [num_seqs]; arguments as `kernels.accept.accept`'s.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest, likeliest = wide.max(dim=-1)  # the first of equals; a NaN, if there is one
    second = wide.scatter(1, likeliest[:, None], -torch.inf).amax(dim=-1)
    token_ids = likeliest if draws is None else drawn(wide, largest, likeliest, draws)
    confirms = ((token_ids == draft) & largest.isfinite()).tolist()
    counts = [[*confirms[first:last], False].index(False) for first, last in pairwise(row_starts.tolist())]
    return token_ids, likeliest, largest, second, torch.tensor(counts, dtype=torch.int64, device=logits.device)


def drawn(logits: Tensor, largest: Tensor, likeliest: Tensor, draws: Draws) -> Tensor:
    """The token that each row's number draws: int64 [num_rows]; borders are sums in float64.

    A row whose largest logit is no finite number has nothing to draw from, and keeps its likeliest token.
    """
    temperatures = draws.temperatures.clamp(min=LEAST_TEMPERATURE).to(logits.dtype)
    ends = ((logits - largest[:, None]) / temperatures[:, None]).exp().double().cumsum(dim=-1)
    total = ends[:, -1:].contiguous()
    places = torch.searchsorted(ends, draws.numbers[:, None].double() * total, right=True)
    places = torch.minimum(places, torch.searchsorted(ends, total))[:, 0]
    return torch.where((draws.temperatures > 0) & largest.isfinite(), places, likeliest)
