"""A timer without a card: each variant's time is planted, and noise is laid over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from kernels.op import Variant
from kernels.tuning.admission import variant_key
from kernels.tuning.timer import DoesNotLaunch


class PlantedTimer:
    """Draws samples around `cost(variant)`, the seconds of each shape, as a card would measure them.

    A sample is longer by up to `noise` of itself, now and then by ten times that; all of them drift by `drift` of
    themselves with every sample taken.
    """

    def __init__(
        self,
        cost: Callable[[Variant], tuple[float, ...]],
        *,
        noise: float = 0.0,
        drift: float = 0.0,
        launches: Callable[[Variant], bool] = lambda variant: True,
        seed: int = 0,
    ) -> None:
        self._cost, self._noise, self._drift, self._launches = cost, noise, drift, launches
        self._random = Random(seed)
        self.prepared: set[str] = set()
        self.num_samples: Counter[str] = Counter()

    def prepare(self, variant: Variant) -> None:
        if not self._launches(variant):
            raise DoesNotLaunch("planted")
        self.prepared.add(variant_key(variant))

    def seconds(self, variant: Variant) -> tuple[float, ...]:
        key = variant_key(variant)
        if key not in self.prepared:
            raise AssertionError(f"{key} is timed, and was not prepared")
        drifted = 1 + self._drift * self.num_samples.total()
        self.num_samples[key] += 1
        return tuple(each * drifted * (1 + self._noise * self._outlier()) for each in self._cost(variant))

    def release(self, variant: Variant) -> None:
        self.prepared.remove(variant_key(variant))

    def _outlier(self) -> float:
        return self._random.random() * (10 if self._random.random() < 0.05 else 1)
