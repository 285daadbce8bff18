"""Progress of a pull: a bar on a terminal, a line now and then in a log, nothing for a program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichBar
    from rich.progress import TaskID

LINE_EVERY_SECONDS = 10.0


class Progress(Protocol):
    """Receives progress in bytes. `update` and `report` may be called outside `track`, too."""

    def track(self, what: str, num_bytes: int) -> AbstractContextManager[None]:
        """Begin a task of `num_bytes`; the block is the task."""

    def update(self, num_bytes: int) -> None:
        """Report that `num_bytes` of the task are done; the number may fall when a source repeats some."""

    def report(self, message: str) -> None:
        """Show a message to the person who waits."""


class SilentProgress:
    """Shows nothing."""

    @contextmanager
    def track(self, what: str, num_bytes: int) -> Iterator[None]:
        yield

    def update(self, num_bytes: int) -> None:
        """Do nothing."""

    def report(self, message: str) -> None:
        """Do nothing."""


class TerminalProgress:
    """Draws a bar with bytes, speed and time left on a console, usually standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: RichBar | None = None
        self._task: TaskID | None = None

    @contextmanager
    def track(self, what: str, num_bytes: int) -> Iterator[None]:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as RichBar

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
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=num_bytes)

    def report(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)


class LineProgress:
    """Prints at most one line every ten seconds, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what, self._total, self._said_at = "", 0, 0.0

    @contextmanager
    def track(self, what: str, num_bytes: int) -> Iterator[None]:
        """Set the text of the next lines."""
        self._what, self._total, self._said_at = what, num_bytes, time.monotonic()
        yield

    def update(self, num_bytes: int) -> None:
        """Print a line if the last one is long enough ago."""
        now = time.monotonic()
        if now - self._said_at >= LINE_EVERY_SECONDS:
            self._said_at = now
            self.report(f"{self._what}: {num_bytes / 1e6:.0f} of {self._total / 1e6:.0f} MB")

    def report(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)


def make_progress(console: Console) -> TerminalProgress | LineProgress:
    """Return a bar for a terminal, else lines."""
    return TerminalProgress(console) if console.is_terminal else LineProgress(console)
