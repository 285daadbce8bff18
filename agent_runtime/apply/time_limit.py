"""Ends what rules do with an edit once nobody waits for it, or it has had its time on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from time import thread_time

from agent_runtime.apply.refusals import refusal
from agent_runtime.generation.watcher import Watcher
from agent_runtime.types import Reason
from editor.effort import ended_by, look

RULE_SECONDS = 10.0
"""Of the processor, for one edit. The longest that the bounds of the editor let through take some seconds."""


@contextmanager
def rule_time(watcher: Watcher, seconds: float = RULE_SECONDS) -> Iterator[None]:
    """What the editor does in the block ends once the watcher is left as it says, with EditRefused past the time.

    Only the time of this thread counts, and only where it works: not the wait for the model, or for other threads.
    """
    thread, end = get_ident(), thread_time() + seconds

    def verdict() -> Exception | None:
        if watcher.is_left:
            return watcher.ends_with
        if get_ident() == thread and thread_time() > end:
            return refusal([_too_much(seconds)])
        return None

    with ended_by(verdict):
        look()
        yield


def _too_much(seconds: float) -> Reason:
    return Reason(
        "too_much_work",
        f"The edit is past a bound of work: the rules took more than {seconds:g} s of the processor for it.",
        suggestion="Send the edit in several parts, each with lines that stand only once in the file.",
    )
