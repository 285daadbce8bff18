"""What a request's tokens are drawn from: temperature and cuts over one row of logits."""

from __future__ import annotations

import numpy as np

from engine.sampling.filters import min_p, top_k, top_p
from engine.sampling.rows import Ids, Row
from engine.types import GenerationRequest

LEAST_TEMPERATURE = 1e-30
"""Below it float32 would divide by zero; any temperature so small is greedy."""


def distribution(row: Row, request: GenerationRequest) -> tuple[Ids | None, Row]:
    """The ids that may be drawn, ascending (None: all), and a weight for each, which is 1 for the likeliest.

    row: logits [vocab_size], the largest finite. Top-k is cut first, before the exponentials are taken: temperature
    does not change which logits are largest.
    """
    ids = top_k(row, request.top_k) if 0 < request.top_k < len(row) else None
    scores = row if ids is None else row[ids]
    with np.errstate(over="ignore"):  # to -inf, whose weight is 0
        below_best = (scores - scores.max()) / np.float32(max(request.temperature, LEAST_TEMPERATURE))
    weights: Row = np.exp(below_best)
    if request.top_p < 1.0:
        ids, weights = _keep(ids, weights, top_p(weights, request.top_p))
    if request.min_p > 0.0:
        ids, weights = _keep(ids, weights, min_p(weights, request.min_p))
    return ids, weights


def _keep(ids: Ids | None, weights: Row, places: Ids) -> tuple[Ids, Row]:
    return places if ids is None else ids[places], weights[places]
