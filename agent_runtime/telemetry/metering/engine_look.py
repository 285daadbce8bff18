"""A look at the engine's counts that many may ask for at once, and that costs the engine one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the engine brings torch along, which takes a second to import
    from engine.engine import EngineStats

FRESH_S = 0.25
"""How old a look may be. The engine answers between two of its passes, so a page that asks often would wait often."""


class EngineLook:
    """The engine's counts, at most `FRESH_S` old; blocks for a pass of the model where they are older."""

    def __init__(self, ask: Callable[[], EngineStats | None], clock: Callable[[], float] = time.monotonic) -> None:
        """`ask` gives None while there is no engine."""
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._last: EngineStats | None = None
        self._last_at: float | None = None

    def __call__(self) -> EngineStats | None:
        """The counts, None while no model is loaded."""
        with self._lock:  # who comes meanwhile takes what this one is told
            if self._last_at is None or self._clock() - self._last_at > FRESH_S:
                self._last = self._ask()
                self._last_at = self._clock()
            return self._last
