"""The cuts: which tokens are left of a row by top-k, top-p and min-p.

Each takes one number a token and gives the places of those that stay, ascending. None of them sorts the vocabulary's
ids: a border value is found, by partition or in a sort of values alone, and the rest is a comparison.
"""

from __future__ import annotations

import numpy as np

from engine.sampling.rows import Ids, Row

LIKELY = 1e-3
"""The nucleus is looked for among tokens so likely, relative to the likeliest, and only then among all."""


def top_k(scores: Row, num_kept: int) -> Ids:
    """The `num_kept` largest and what equals the least of them (Fan et al. 2018, arXiv 1805.04833)."""
    if num_kept >= len(scores):
        return np.arange(len(scores))
    border = np.partition(scores, len(scores) - num_kept)[-num_kept]
    return np.flatnonzero(scores >= border)


def min_p(weights: Row, share: float) -> Ids:
    """Those at least `share` times as likely as the likeliest (Nguyen et al. 2024, arXiv 2407.01082).

    weights: the likeliest has 1.
    """
    return np.flatnonzero(weights >= np.float32(share))


def top_p(weights: Row, share: float) -> Ids:
    """The nucleus: the likeliest until their mass reaches `share` of all (Holtzman et al. 2020, arXiv 1904.09751).

    Of equally likely tokens at its border the first ones are in it. weights: in [0, 1], the likeliest has 1.
    Example: weights [0.2, 1, 0.8] and share 0.7: 1 + 0.8 is the first sum to reach 0.7 * 2, so places [1, 2] stay.
    """
    needed = share * float(weights.sum(dtype=np.float64))
    for floor in (LIKELY, 0.0):
        descending = np.sort(weights[weights >= np.float32(floor)])[::-1]
        mass = descending.cumsum(dtype=np.float64)
        if mass[-1] >= needed:
            break
    num_kept = min(int(mass.searchsorted(needed)) + 1, len(mass))
    border = descending[num_kept - 1]
    stays = weights > border
    num_equal = num_kept - int(np.count_nonzero(stays))
    stays[np.flatnonzero(weights == border)[:num_equal]] = True
    return np.flatnonzero(stays)
