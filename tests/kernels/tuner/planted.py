"""An op whose fastest variant is known, and searches for it without a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import log2
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.op import Cost, Inputs, Shape, Variant
from kernels.tuner.search import Budget, Check, Search
from kernels.tuner.space import Target, Timer, targets, valid
from kernels.tuner.store import Store, Versions
from kernels.tuner.timers import PlantedTimer

CARD = "Planted Card 80GB"
VERSIONS = Versions(source="kernel as it is", driver="550.1", torch="2.13.0", triton="3.9.0")
SHAPES: Sequence[Shape] = ({"rows": 64, "size": 512}, {"rows": 64, "size": 2048})
BEST = {"block": 128, "num_warps": 4, "num_stages": 3}
DEFAULT = {"block": 64, "num_warps": 4, "num_stages": 1}


@dataclass
class PlantedOp:
    """Doubles its input. `num_warps` 16 is not valid with the smallest block."""

    name: str = "swiglu"  # an op of the catalogue: its source is hashed
    parity_shapes: Sequence[Shape] = ({"rows": 64, "size": 3}, {"rows": 1, "size": 1}, {"rows": 5, "size": 16})
    timed_shapes: Sequence[Shape] = SHAPES
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

    def torch_ways(self, inputs: Inputs) -> Mapping[str, Any]:
        return {}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        return Cost(0, 0)


def planted_cost(variant: Variant) -> tuple[float, ...]:
    """Least for BEST, and a tenth or more away from it for every other variant."""
    steps = sum(abs(log2(variant[name] / BEST[name])) for name in ("block", "num_warps"))
    steps += BEST["num_stages"] - variant["num_stages"]
    return 1e-5 * (1 + 0.1 * steps), 4e-5 * (1 + 0.1 * steps)


def target(op: PlantedOp | None = None) -> Target:
    (found,) = targets(op or PlantedOp(), torch.bfloat16, SHAPES)
    return found


def variants() -> list[Variant]:
    return valid(target())


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
