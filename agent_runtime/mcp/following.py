"""Follows a merge at a service: tells how far it is, and leaves it, which ends it there, when nobody waits any more."""

from __future__ import annotations

import threading

from agent_runtime.client import Phase, Stream, Tokens
from agent_runtime.errors import Cancelled
from agent_runtime.generation.watcher import Watcher
from agent_runtime.types import ApplyResult


def followed(events: Stream[ApplyResult], watcher: Watcher) -> ApplyResult:
    """The answer that a stream ends with; raises Cancelled, with the stream closed, once the watcher has stopped it.

    That is seen between two events: the service tells of every phase, and of every pass in which the model writes.
    """
    left = threading.Event()
    watcher.began(left.set)
    num_tokens = 0
    with events:
        for event in events:
            if not isinstance(event, Phase | Tokens):
                return event
            if left.is_set():
                break
            if isinstance(event, Phase):
                watcher.entered(event.name)
            else:
                num_tokens += len(event.pieces)
                watcher.wrote(num_tokens)
    raise Cancelled("whoever asked has left; the service was told")
