"""Cancellation of a merge from outside, and a cache of the last results of its costly steps.

Counts bound what an edit may cost (`TooMuchWorkError`). A caller may also stop it, for instance because the client has
left. The cache is kept by owner: a merge of a file that was merged a moment ago takes 1 ms instead of 120, and nobody
may learn from that time which texts others send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import ParamSpec, TypeVar

StopCheck = Callable[[], Exception | None]
"""Returns the exception to stop with, None to go on; called from the thread that works."""

_VERDICT: ContextVar[StopCheck | None] = ContextVar("editor_effort", default=None)


@contextmanager
def stop_when(check: StopCheck) -> Iterator[None]:
    """Stop all work of the editor within the block with the first exception that `check` returns."""
    token = _VERDICT.set(check)
    try:
        yield
    finally:
        _VERDICT.reset(token)


def check_stopped() -> None:
    """Raise the exception that stops the work, if any; called between two steps of it."""
    verdict = _VERDICT.get()
    if verdict is not None and (fault := verdict()) is not None:
        raise fault


def is_stopped() -> bool:
    """Return whether `check_stopped` would raise, for callbacks that must not raise."""
    verdict = _VERDICT.get()
    return verdict is not None and verdict() is not None


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_OWNER: ContextVar[str] = ContextVar("editor_owner", default="")

_FORGET: list[Callable[[], None]] = []


@contextmanager
def use_cache_of(owner: str) -> Iterator[None]:
    """Read and write only this owner's cached results within the block."""
    token = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(token)


def cache_results(maxsize: int) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function to cache its last `maxsize` results, of all owners together, by owner and arguments."""

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
    """Drop all cached results, so that the next merge takes as long as the first one."""
    for clear in _FORGET:
        clear()
