"""The order of readings: a softmax over their linear scores and "none of these", fitted by L-BFGS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.train_reader.labelled import Floats, Labelled

_BLANK_SHARE = 0.15
"""What a reading with other blank lines than expected is worth where an exact one is among them."""
_MEMORY = 12


@dataclass(frozen=True)
class Order:
    """A weight for each feature, and the score of "none of these"."""

    weights: Floats
    none: float

    def scores(self, features: Floats) -> Floats:
        """Return the score of each reading."""
        return features @ self.weights

    def probabilities(self, features: Floats) -> Floats:
        """Return the probability of each reading; what they lack of 1 is that of none."""
        scores = self.scores(features)
        top = max(float(scores.max(initial=self.none)), self.none)
        powers = np.exp(scores - top)
        return np.asarray(powers / (powers.sum() + np.exp(self.none - top)), dtype=np.float64)


@dataclass(frozen=True)
class _Batch:
    """All cases in one array: a last row of each is "none of these", whose only feature is the bias, the last one."""

    features: Floats
    mask: Floats
    right: Floats
    weight: Floats


def fit(cases: Sequence[Labelled], l2: float, made_weight: float = 1.0, steps: int = 200) -> Order:
    """Fit the weights on cases; a made one counts `made_weight`. `l2` holds the weights of scaled features small.

    The readings that are right share the probability. Cases without readings say nothing about the order.
    """
    some = [case for case in cases if len(case.features)]
    scale = np.concatenate([case.features for case in some]).std(axis=0) + 1e-6
    batch = _batch(some, scale, made_weight)
    held = np.full(batch.features.shape[2], l2)
    held[-1] = 0.0
    found = minimise(lambda w: _loss(w, batch, held), np.zeros(batch.features.shape[2]), steps)
    return Order(found[:-1] / scale, float(found[-1]))


def minimise(loss: Callable[[Floats], tuple[float, Floats]], start: Floats, steps: int) -> Floats:
    """Return where a smooth function (value and gradient) is small, by L-BFGS with a search for enough descent."""
    at, (value, slope) = start, loss(start)
    pairs: deque[tuple[Floats, Floats]] = deque(maxlen=_MEMORY)
    for _ in range(steps):
        way = _direction(slope, pairs)
        length = 1.0 if pairs else min(1.0, 1.0 / (float(np.abs(slope).sum()) + 1e-12))
        descent = float(slope @ way)
        while True:
            there = at + length * way
            value_there, slope_there = loss(there)
            if value_there <= value + 1e-4 * length * descent or length < 1e-10:
                break
            length /= 2
        step, turn = there - at, slope_there - slope
        if float(step @ turn) > 1e-12:
            pairs.append((step, turn))
        done = value - value_there < 1e-9 * max(1.0, abs(value))
        at, value, slope = there, value_there, slope_there
        if done:
            break
    return at


def _direction(slope: Floats, pairs: Sequence[tuple[Floats, Floats]]) -> Floats:
    way = -slope
    shares = []
    for step, turn in reversed(pairs):
        share = float(step @ way) / float(step @ turn)
        shares.append(share)
        way = way - share * turn
    if pairs:
        step, turn = pairs[-1]
        way = way * (float(step @ turn) / float(turn @ turn))
    for (step, turn), share in zip(pairs, reversed(shares), strict=True):
        way = way + step * (share - float(turn @ way) / float(step @ turn))
    return way


def _batch(cases: Sequence[Labelled], scale: Floats, made_weight: float) -> _Batch:
    most = max(len(case.features) for case in cases) + 1
    features = np.zeros((len(cases), most, len(scale) + 1))
    mask = np.full((len(cases), most), -1e9)
    right = np.zeros((len(cases), most))
    for row, case in enumerate(cases):
        num = len(case.features)
        features[row, :num, :-1] = case.features / scale
        features[row, num, -1] = 1.0
        mask[row, : num + 1] = 0.0
        right[row, : num + 1] = _targets(case)
    weight = np.array([made_weight if case.made else 1.0 for case in cases])
    return _Batch(features, mask, right, weight / weight.sum())


def _targets(case: Labelled) -> Floats:
    """Return what each reading is worth, and "none of these" behind them."""
    if case.exact.any():
        worth = np.where(case.exact, 1.0, np.where(case.modulo, _BLANK_SHARE, 0.0))
    else:
        worth = case.modulo.astype(np.float64)
    return np.append(worth, 0.0 if worth.any() else 1.0)


def _loss(weights: Floats, batch: _Batch, held: Floats) -> tuple[float, Floats]:
    scores = batch.features @ weights + batch.mask
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    all_of_them = powers / powers.sum(axis=1, keepdims=True)
    right = powers * batch.right
    mass = right.sum(axis=1, keepdims=True) + 1e-300
    lost = np.log(powers.sum(axis=1)) - np.log(mass[:, 0])
    error = (all_of_them - right / mass) * batch.weight[:, None]
    slope = np.einsum("nk,nkf->f", error, batch.features) + held * weights
    return float(batch.weight @ lost + 0.5 * (held * weights) @ weights), np.asarray(slope, dtype=np.float64)
