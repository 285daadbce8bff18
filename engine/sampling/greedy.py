"""The likeliest token of many rows at once, which may belong to many requests."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from engine.sampling.rows import check_largest, read_row


def greedy(logits: Tensor) -> list[int]:
    """The likeliest token of each row of logits [num_rows, vocab_size]; of equal ones the first.

    Raises NumericFault where a row's largest logit is no number; its `row` says which (the first).
    """
    return _by_rows(logits) if logits.device.type == "cpu" else _at_once(logits)


def _by_rows(logits: Tensor) -> list[int]:
    """64 rows of 151,936 in bf16: 1.5 ms, where torch.max takes 9 and torch.argmax 68."""
    chosen: list[int] = []
    for index in range(len(logits)):
        row = read_row(logits, index)
        best = int(row.argmax())  # of the first NaN, if there is one
        check_largest(float(row[best]), index, f"row {index}")
        chosen.append(best)
    return chosen


def _at_once(logits: Tensor) -> list[int]:
    """One pass on the device, and one wait for it."""
    values, chosen = logits.max(dim=-1)
    for index in np.flatnonzero(~values.isfinite().cpu().numpy()):
        check_largest(float(values[index]), int(index), f"row {index}")
    ids: list[int] = chosen.tolist()
    return ids
