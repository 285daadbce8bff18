"""The log-probability of a chosen token, and those of the likeliest beside it."""

from __future__ import annotations

import math

import numpy as np

from engine.sampling.filters import top_k
from engine.sampling.rows import Row
from engine.types import TokenLogprob


def token_logprob(row: Row, token_id: int, num_top: int) -> TokenLogprob:
    """Of `token_id` and of the `num_top` likeliest tokens, best first; of equal ones the first id first.

    row: finite at its largest, after bias and penalty. The sum over the vocabulary is taken in float64.
    """
    largest = row.max()
    norm = float(largest) + math.log(np.exp(row - largest).sum(dtype=np.float64))
    likeliest: list[int] = []
    if num_top:
        ids = top_k(row, num_top)
        likeliest = ids[np.argsort(-row[ids], kind="stable")][:num_top].tolist()
    return TokenLogprob(
        token_id, float(row[token_id]) - norm, tuple((id_, float(row[id_]) - norm) for id_ in likeliest)
    )
