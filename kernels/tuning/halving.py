"""Successive halving: time all a little, keep the fastest, time these more (Jamieson & Talwalkar, arXiv 1502.07943).

Of 100 variants, all are timed 3 times, 34 of them 6 times more, 12 of them 12 times, the last 4 another 48 times: most
of the time goes to those among which it is hard to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, fsum, log
from random import Random
from statistics import median

from kernels.op import Variant

FIRST_REPEATS = 3
KEPT = 1 / 3
NUM_FINALISTS = 4
FINAL_REPEATS = 48

Sample = Callable[[Variant], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Timed:
    """A variant and the median time of one run, for each shape that it was timed at."""

    variant: Variant
    seconds: tuple[float, ...]
    num_samples: int

    @property
    def score(self) -> float:
        """The geometric mean over the shapes: a tenth off any of them counts alike, whatever its length."""
        return exp(fsum(map(log, self.seconds)) / len(self.seconds))


def halve(
    candidates: Sequence[Variant],
    sample: Sample,
    random: Random,
    *,
    baseline: Variant | None = None,
    dropped: Callable[[Variant], None] = lambda variant: None,
    expired: Callable[[], bool] = lambda: False,
) -> list[Timed]:
    """The finalists, fastest first, the baseline among them; more than these where the time expires before.

    A round runs each variant once, in an order of its own: what drifts (clocks, heat, a neighbour) drifts for all.
    """
    samples: list[list[tuple[float, ...]]] = [[] for _ in candidates]
    left, repeats = list(range(len(candidates))), FIRST_REPEATS
    while left:
        is_final = len(left) <= NUM_FINALISTS + 1
        for _ in range(FINAL_REPEATS if is_final else repeats):
            for index in random.sample(left, len(left)):
                samples[index].append(sample(candidates[index]))
            if expired():
                break
        timed = {index: _median(candidates[index], samples[index]) for index in left}
        left.sort(key=lambda index: timed[index].score)
        if is_final or expired():
            return [timed[index] for index in left]
        num_kept = max(NUM_FINALISTS, ceil(len(left) * KEPT))
        for index in [index for index in left[num_kept:] if candidates[index] != baseline]:
            left.remove(index)
            dropped(candidates[index])
        repeats *= 2
    return []


def _median(variant: Variant, samples: Sequence[tuple[float, ...]]) -> Timed:
    return Timed(variant, tuple(median(times) for times in zip(*samples, strict=True)), len(samples))
