"""From a probability to how often it is right: a monotone line of few points, and the bars above which is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.train_reader.labelled import Floats

_FEWEST = 20
"""So many cases at least are behind a point of the line."""


@dataclass(frozen=True)
class Answer:
    """The first reading of a held-out case: its probability, and whether it is right exactly and modulo blank lines.

    `allowed` says what an answer with its features may be, "certain" and "likely" among it.
    """

    probability: float
    exact: bool
    modulo: bool
    allowed: tuple[str, ...] = ("certain", "likely")


Line = list[tuple[float, float]]
"""Points (probability, share right), rising in both; between them it is straight."""


def calibrate(answers: Sequence[Answer]) -> Line:
    """Return the share right as a monotone function of the probability (isotonic: neighbours that fall are pooled).

    Each point stands for `_FEWEST` cases or more, as their mean probability and (right + 1/2) / (cases + 1).
    """
    ordered = sorted(answers, key=lambda one: one.probability)
    pools = [
        [float(len(some)), sum(one.probability for one in some), float(sum(one.modulo for one in some))]
        for some in (ordered[at : at + _FEWEST] for at in range(0, len(ordered), _FEWEST))
    ]
    if len(pools) > 1 and pools[-1][0] < _FEWEST:
        last = pools.pop()
        pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    merged: list[list[float]] = []
    for pool in pools:
        merged.append(pool)
        while len(merged) > 1 and _share(merged[-2]) >= _share(merged[-1]):
            last = merged.pop()
            merged[-1] = [a + b for a, b in zip(merged[-1], last, strict=True)]
    return [(round(total / num, 6), round(_share((num, total, right)), 6)) for num, total, right in merged]


def confidence(probability: float, line: Line) -> float:
    """Return the calibrated confidence; beyond the ends of the line it is that of the end."""
    return float(np.interp(probability, [x for x, _ in line], [y for _, y in line]))


def bar(answers: Sequence[Answer], most_wrong: float) -> float:
    """Return the lowest probability above which no more than this share is wrong modulo blank lines; 2 where none is.

    It is the share of all answered at that bar.
    """
    ordered = sorted(answers, key=lambda one: -one.probability)
    wrong = np.cumsum([not one.modulo for one in ordered])
    good = np.flatnonzero(wrong <= most_wrong * np.arange(1, len(ordered) + 1))
    ends = [at for at in good if at + 1 == len(ordered) or ordered[at + 1].probability < ordered[at].probability]
    return ordered[ends[-1]].probability if ends else 2.0


def reliability(answers: Sequence[Answer], probabilities: Floats, num_bins: int = 10) -> list[dict[str, float]]:
    """Return bins of as many answers each: mean confidence, share right modulo blank lines, and how many they are."""
    order = np.argsort(probabilities, kind="stable")
    right = np.array([one.modulo for one in answers], dtype=np.float64)
    return [
        {
            "n": len(some),
            "confidence": round(float(probabilities[some].mean()), 4),
            "right": round(float(right[some].mean()), 4),
        }
        for some in np.array_split(order, num_bins)
        if len(some)
    ]


def _share(pool: Sequence[float]) -> float:
    num, _, right = pool
    return (right + 0.5) / (num + 1)
