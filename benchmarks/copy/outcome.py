"""What a contest has measured of one model, before rows and tables are made of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from benchmarks.copy.cases import CopyCase
from benchmarks.copy.measuring import Task
from benchmarks.copy.passes import Pass
from benchmarks.engine.agreement import Agreement

PLAIN, OWN = "plain", "own"
"""A token a pass, and with what a contestant has for speculation."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How much of what a peer wrote is what we wrote: leading equal tokens, and the share of equal lines."""

    agreement: Agreement
    equal_lines: float


@dataclass(slots=True)
class Outcome:
    """All that was measured of one model. `samples`: by case, contestant and figure, a value of each round.

    `parted`: why no speed of a case is told. `settings`: each peer's settings with their tokens a second, best first.
    """

    versions: dict[str, str] = field(default_factory=dict)
    cases: dict[str, CopyCase] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))  # by case
    not_measured: dict[str, str] = field(default_factory=dict)
    parted: dict[str, str] = field(default_factory=dict)
    samples: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    plain: dict[str, Agreement] = field(default_factory=dict)
    likeness: dict[tuple[str, str, str], Likeness] = field(default_factory=dict)  # by case, peer, plain or own
    settings: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    passes: dict[str, list[Pass]] = field(default_factory=dict)
    applies: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    pass_seconds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    left_out: dict[str, str] = field(default_factory=dict)
    num_rounds: int = 0
