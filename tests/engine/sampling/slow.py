"""A slow way to compute the distribution of a request: sort the whole vocabulary and walk down the list."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.sampling import Row
from engine.types import GenerationRequest


def request(**changes: object) -> GenerationRequest:
    return GenerationRequest(**{"prompt": [0], "max_new_tokens": 9, **changes})


def weights_of(row: Row, request: GenerationRequest) -> NDArray[np.float32]:
    """A weight for every token of the vocabulary, 0 for those that are cut."""
    best_first = sorted(range(len(row)), key=lambda token_id: (-row[token_id], token_id))
    with np.errstate(over="ignore"):
        scaled = (row - row.max()) / np.float32(max(request.temperature, 1e-30))
    weights = np.exp(scaled)
    num_kept = request.top_k or len(row)
    kept = [each for each in best_first if row[each] >= row[best_first[min(num_kept, len(row)) - 1]]]
    if request.top_p < 1.0:
        kept = nucleus(weights, kept, request.top_p)
    kept = [each for each in kept if weights[each] >= np.float32(request.min_p)]
    cut = np.zeros_like(weights)
    cut[kept] = weights[kept]
    return cut


def nucleus(weights: NDArray[np.float32], kept: list[int], top_p: float) -> list[int]:
    """Walk down the tokens by weight, equal ones by id: exp may round unequal logits to one weight."""
    best_first = sorted(kept, key=lambda token_id: (-weights[token_id], token_id))
    needed = top_p * float(weights[sorted(best_first)].sum(dtype=np.float64))
    mass = 0.0
    for count, token_id in enumerate(best_first):
        if mass >= needed:
            return best_first[:count]
        mass += float(weights[token_id])
    return best_first


def draw(weights: NDArray[np.float32], number: float) -> int:
    """Lay the weights side by side; the last one that is not 0 takes what rounding leaves over."""
    total = float(weights.sum(dtype=np.float64))
    mass = 0.0
    for place in np.flatnonzero(weights).tolist():
        mass += float(weights[place])
        if mass > number * total:
            break
    return place
