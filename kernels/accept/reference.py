"""The likeliest tokens and how many of a draft they confirm, written out: what the fast ways are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.accept.draws import LEAST_TEMPERATURE
from kernels.accept.likeliest import Likeliest


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


def drawn(
    logits: Tensor, found: Likeliest, temperatures: Sequence[float], numbers: Sequence[float]
) -> NDArray[np.intp]:
    """The token that each row's number draws (`Draws`), its likeliest where the temperature is 0; sums in float64.

    A row whose largest logit is no finite number has nothing to draw from, and keeps its likeliest.
    """
    ids = found.token_ids.copy()
    for at, (temperature, number) in enumerate(zip(temperatures, numbers, strict=True)):
        if temperature > 0.0 and np.isfinite(found.largest[at]):
            row = logits[at].float().numpy()
            with np.errstate(over="ignore"):  # to -inf, whose weight is 0
                weights = np.exp((row - found.largest[at]) / np.float32(max(temperature, LEAST_TEMPERATURE)))
            ends = weights.cumsum(dtype=np.float64)
            ids[at] = min(ends.searchsorted(number * ends[-1], side="right"), ends.searchsorted(ends[-1]))
    return ids
