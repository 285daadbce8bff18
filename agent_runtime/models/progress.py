"""How far a pull is: a bar for a person at a terminal, a line now and then for a log, nothing for a program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichBar

LINE_EVERY_SECONDS = 10.0


class Progress(Protocol):
    """Hears of work measured in bytes. `at` and `say` may be called outside a task, too."""

    def track(self, what: str, num_bytes: int) -> AbstractContextManager[None]:
        """Around a piece of work of `num_bytes`."""

    def update(self, num_bytes: int) -> None:
        """`num_bytes` of the task are done; may fall back, when a source has to repeat some."""

    def report(self, message: str) -> None:
        """Something that a person who waits should know."""


class SilentProgress:
    """Hears and says nothing."""

    @contextmanager
    def track(self, what: str, num_bytes: int) -> Iterator[None]:
        """Does nothing."""
        yield

    def update(self, num_bytes: int) -> None:
        """Does nothing."""

    def report(self, message: str) -> None:
        """Does nothing."""


class TerminalProgress:
    """A bar with bytes, speed and time left, on the console given (standard error, as a rule)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: RichBar | None = None
        self._task = TaskID(0)

    @contextmanager
    def track(self, what: str, num_bytes: int) -> Iterator[None]:
        """Draws the bar until the block ends."""
        bar = RichBar(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        with bar:
            self._task = bar.add_task(what, total=num_bytes)
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def update(self, num_bytes: int) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=num_bytes)

    def report(self, message: str) -> None:
        """A line above the bar."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)


class LineProgress:
    """A line at most every ten seconds, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what, self._total, self._said_at = "", 0, 0.0

    @contextmanager
    def track(self, what: str, num_bytes: int) -> Iterator[None]:
        """Remembers what the next lines are about."""
        self._what, self._total, self._said_at = what, num_bytes, time.monotonic()
        yield

    def update(self, num_bytes: int) -> None:
        """Says a line if the last one is long enough ago."""
        now = time.monotonic()
        if now - self._said_at >= LINE_EVERY_SECONDS:
            self._said_at = now
            self.report(f"{self._what}: {num_bytes / 1e6:.0f} of {self._total / 1e6:.0f} MB")

    def report(self, message: str) -> None:
        """One line."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)


def make_progress(console: Console) -> TerminalProgress | LineProgress:
    """The bar if the console is a terminal, else the lines."""
    return TerminalProgress(console) if console.is_terminal else LineProgress(console)
