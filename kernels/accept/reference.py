"""The likeliest tokens and how many of a draft they confirm, written out: what the fast ways are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

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
