"""The random stream of a request, and how one of its numbers picks a token."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from engine.sampling.rows import Row

BLOCK = 512
"""Weights that are summed as one, before the block that holds the token is looked into."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1] that only the seed and the output token's number decide."""
    digest = blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


def draw(weights: Row, number: float) -> int:
    """The place that `number` in [0, 1] falls on when the weights are laid side by side, in their order.

    A weight of 0 is never drawn. Example: of weights [1, 0, 3] the numbers below 0.25 draw 0, the others 2.
    """
    ends = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK), dtype=np.float64).cumsum()
    target = number * ends[-1]
    block = min(int(ends.searchsorted(target, side="right")), int(ends.searchsorted(ends[-1])))
    inside = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    begin = ends[block - 1] if block else 0.0
    place = min(int(inside.searchsorted(target - begin, side="right")), int(inside.searchsorted(inside[-1])))
    return block * BLOCK + place
