"""An op with a known fastest variant, and searches for it without a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import log2
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.op import Cost, Inputs, Shape, Variant
from kernels.tuner.search import (
    Budget,
    Check,
    LaunchFailed,
    Search,
    Target,
    Timer,
    get_variant_key,
    group_targets,
    list_valid_variants,
)
from kernels.tuner.store import Store, Versions

CARD = "Planted Card 80GB"
VERSIONS = Versions(source="kernel as it is", driver="550.1", torch="2.13.0", triton="3.9.0")
SHAPES: Sequence[Shape] = ({"rows": 64, "size": 512}, {"rows": 64, "size": 2048})
BEST = {"block": 128, "num_warps": 4, "num_stages": 3}
DEFAULT = {"block": 64, "num_warps": 4, "num_stages": 1}


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
            raise LaunchFailed("planted")
        self.prepared.add(get_variant_key(variant))

    def sample(self, variant: Variant) -> tuple[float, ...]:
        key = get_variant_key(variant)
        if key not in self.prepared:
            raise AssertionError(f"{key} is timed, and was not prepared")
        drifted = 1 + self._drift * self.num_samples.total()
        self.num_samples[key] += 1
        return tuple(each * drifted * (1 + self._noise * self._draw_noise()) for each in self._cost(variant))

    def release(self, variant: Variant) -> None:
        self.prepared.remove(get_variant_key(variant))

    def _draw_noise(self) -> float:
        return self._random.random() * (10 if self._random.random() < 0.05 else 1)


@dataclass
class PlantedOp:
    """Doubles its input. `num_warps` 16 is not valid with the smallest block."""

    name: str = "swiglu"  # an op of the catalogue: its source is hashed
    parity_shapes: Sequence[Shape] = ({"rows": 64, "size": 3}, {"rows": 1, "size": 1}, {"rows": 5, "size": 16})
    benchmark_shapes: Sequence[Shape] = SHAPES
    space: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: {
            "block": (16, 32, 64, 128, 256),
            "num_warps": (1, 2, 4, 8, 16),
            "num_stages": (1, 2, 3),
        }
    )

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        return not (variant["block"] == 16 and variant["num_warps"] == 16)

    def default(self, shape: Shape) -> Variant:
        return DEFAULT

    def shape_class(self, shape: Shape) -> str:
        return f"rows={shape['rows']}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        return {"x": torch.randn(shape["rows"], shape["size"], dtype=dtype, device=device, generator=generator)}

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        return (inputs["x"] * 2,)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return (inputs["x"] + inputs["x"],)

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Any]:
        return {}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        return Cost(0, 0)


def planted_cost(variant: Variant) -> tuple[float, ...]:
    """Least for BEST, and a tenth or more away from it for every other variant."""
    steps = sum(abs(log2(variant[name] / BEST[name])) for name in ("block", "num_warps"))
    steps += BEST["num_stages"] - variant["num_stages"]
    return 1e-5 * (1 + 0.1 * steps), 4e-5 * (1 + 0.1 * steps)


def target(op: PlantedOp | None = None) -> Target:
    (found,) = group_targets(op or PlantedOp(), torch.bfloat16, SHAPES)
    return found


def variants() -> list[Variant]:
    return list_valid_variants(target())


def right(variant: Variant, shape: Shape) -> float:
    return 1e-4


def search(
    folder: Path,
    *,
    check: Check = right,
    timer: Timer | None = None,
    versions: Versions = VERSIONS,
    budget_seconds: float = float("inf"),
    say: Callable[[str], None] = lambda text: None,
) -> Search:
    """A search in bfloat16; its clock goes on by a second each time that it is looked at."""
    clock = map(float, count())
    return Search(
        target=target(),
        variants=variants(),
        check=check,
        bound=1e-2,
        timer=timer or PlantedTimer(planted_cost),
        store=Store(folder, CARD),
        versions=versions,
        budget=Budget(lambda: next(clock), 0.0, budget_seconds),
        seed=1,
        say=say,
    )
