"""Lets whoever waits for a merge end it: long work looks, each few milliseconds, whether it still is to go on.

What an edit may cost is bounded by counts where it is done (`TooMuchWorkError`); here somebody outside decides, because
the client has left or others want the processor, too. Without anybody outside, a look costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Verdict = Callable[[], Exception | None]
"""Gives what the work is to end with, None while it may go on; called from the thread that works."""

_VERDICT: ContextVar[Verdict | None] = ContextVar("editor_effort", default=None)


@contextmanager
def ended_by(verdict: Verdict) -> Iterator[None]:
    """All work of the editor within the block ends with what `verdict` gives, once it gives something."""
    token = _VERDICT.set(verdict)
    try:
        yield
    finally:
        _VERDICT.reset(token)


def look() -> None:
    """Raise what the work is to end with, if it is; to be called between two steps of it."""
    verdict = _VERDICT.get()
    if verdict is not None and (fault := verdict()) is not None:
        raise fault


def is_to_end() -> bool:
    """Whether `look` would raise, for where nothing may be raised."""
    verdict = _VERDICT.get()
    return verdict is not None and verdict() is not None
