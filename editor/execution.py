"""Bounds on the work of one merge: cancellation, and a memory of what was computed last.

What an edit may cost is bounded by counts where it is done (`TooMuchWorkError`); here somebody outside decides, because
the client has left or others want the processor, too. Without anybody outside, a look costs next to nothing.

An edit of a file that was merged a moment ago takes 1 ms in place of 120: whoever could see that for the texts of
others would know what they send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import ParamSpec, TypeVar

StopCheck = Callable[[], Exception | None]
"""Gives what the work is to end with, None while it may go on; called from the thread that works."""

_VERDICT: ContextVar[StopCheck | None] = ContextVar("editor_effort", default=None)


@contextmanager
def stop_when(verdict: StopCheck) -> Iterator[None]:
    """All work of the editor within the block ends with what `verdict` gives, once it gives something."""
    token = _VERDICT.set(verdict)
    try:
        yield
    finally:
        _VERDICT.reset(token)


def check_stopped() -> None:
    """Raise what the work is to end with, if it is; to be called between two steps of it."""
    verdict = _VERDICT.get()
    if verdict is not None and (fault := verdict()) is not None:
        raise fault


def is_stopped() -> bool:
    """Whether `check_stopped` would raise, for where nothing may be raised."""
    verdict = _VERDICT.get()
    return verdict is not None and verdict() is not None


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_OWNER: ContextVar[str] = ContextVar("editor_owner", default="")

_FORGET: list[Callable[[], None]] = []


@contextmanager
def use_cache_of(owner: str) -> Iterator[None]:
    """What is remembered in the block is of this owner, and only that is found."""
    token = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(token)


def cache_results(maxsize: int) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Have a function's last results remembered by owner and arguments, so many of all owners together."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @lru_cache(maxsize)
        def compute(owner: str, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
            return function(*args, **named)

        def call(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
            return compute(_OWNER.get(), *args, **named)  # type: ignore[arg-type]

        _FORGET.append(compute.cache_clear)
        return call

    return decorate


def clear_caches() -> None:
    """Drop all that is remembered, so that the next merge takes the time of a first one."""
    for clear in _FORGET:
        clear()
