"""A watcher that passes on to another what it is told; those that add something to it build on this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from agent_runtime.errors import HunkError
from agent_runtime.generation.watcher import Piece, Watcher
from agent_runtime.types import AnswerTrace


class Relay(Watcher):
    """Tells another watcher all that it is told."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.wants_text = watcher.wants_text

    @property
    def is_left(self) -> bool:
        """As the other knows it."""
        return self._watcher.is_left

    @property
    def ends_with(self) -> HunkError:
        """As the other has it."""
        return self._watcher.ends_with

    def began(self, stop: Callable[[], None]) -> None:
        """Pass it on."""
        self._watcher.began(stop)

    def entered(self, phase: str, path: str = "") -> None:
        """Pass it on."""
        self._watcher.entered(phase, path)

    def wrote(self, num_tokens: int) -> None:
        """Pass it on."""
        self._watcher.wrote(num_tokens)

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """Pass it on."""
        self._watcher.wrote_pieces(region, pieces, path)

    def answered(self, trace: AnswerTrace) -> None:
        """Pass it on."""
        self._watcher.answered(trace)


class FirstToken(Relay):
    """Notes when the model's first token came."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher)
        self._started = perf_counter()
        self.after_ms: float | None = None
        """From when this was made; None where the model was not asked."""

    def wrote(self, num_tokens: int) -> None:
        """Note it, and pass it on."""
        if num_tokens and self.after_ms is None:
            self.after_ms = (perf_counter() - self._started) * 1e3
        super().wrote(num_tokens)
