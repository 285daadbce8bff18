"""Milliseconds by phase of one apply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timings:
    """Adds up the milliseconds of each phase, whose beginning `entered` is told.

    `total_ms` runs from the start to the end.
    """

    entered: Callable[[str], None] = lambda phase: None
    by_phase: dict[str, float] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as `<name>_ms`."""
        started = time.perf_counter()
        self.entered(name)
        yield
        self.add({f"{name}_ms": (time.perf_counter() - started) * 1e3})

    def add(self, by_phase: Mapping[str, float]) -> None:
        """Add phases that were timed elsewhere; a total among them is left out."""
        for name, value in by_phase.items():
            if name != "total_ms":
                self.by_phase[name] = self.by_phase.get(name, 0.0) + value

    def finished(self) -> dict[str, float]:
        """All phases and `total_ms`."""
        return self.by_phase | {"total_ms": (time.perf_counter() - self._started) * 1e3}
