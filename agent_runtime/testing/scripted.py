"""What a fake service can be told to answer, and what it remembers of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from math import ceil
from typing import Any

from agent_runtime.apply.file_diff import file_diff
from agent_runtime.client.apply_calls import BatchItem
from agent_runtime.client.events import Phase, Tokens
from agent_runtime.errors import HunkError
from agent_runtime.shapes import problem_of, result_to_json
from agent_runtime.types import ApplyResult, FileResult, Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """Any JSON with any status, after so many seconds; `body` None is no body at all, bytes are sent as they are."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0


Event = Phase | Tokens | ApplyResult | HunkError | Mapping[str, Any]


class Events:
    """A stream: phases, tokens and the answer, or a fault, so many seconds apart. An answer may be any JSON."""

    def __init__(self, *events: Event, every_s: float = 0.0) -> None:
        self.events, self.every_s = events, every_s

    def pieces(self) -> list[bytes]:
        """The bytes, event by event."""
        return [_event(event) for event in self.events]


class Lines:
    """The answer to a batch: what becomes of its requests, in the order in which they finish."""

    def __init__(self, *items: BatchItem, every_s: float = 0.0) -> None:
        self.items, self.every_s = items, every_s

    def pieces(self) -> list[bytes]:
        """The bytes, line by line."""
        return [json.dumps(_line(item)).encode() + b"\n" for item in self.items]


Scripted = Reply | Events | Lines | ApplyResult | HunkError | Mapping[str, Any] | list[Any] | Exception
"""What a route answers: an exception that is no HunkError is raised in the client, as if the network had failed."""


@dataclass(slots=True)
class Recorded:
    """One request: `body` as read from JSON, header names in lower case. left: the client did not take all."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    left: bool = False


def merged_result(original: str, merged: str, path: str = "") -> ApplyResult:
    """The answer to an edit that a rule merges, for scripts; a no-op where both texts are the same."""
    file = FileResult(
        path=path,
        status="merged" if merged != original else "noop",
        merged=merged,
        diff=file_diff(original, merged, path or "file", ""),
        method="deterministic",
        rung="exact",
        candidates=1,
        certainty="certain",
        checks=(),
        sha256_before=sha256(original.encode()).hexdigest(),
        sha256_after=sha256(merged.encode()).hexdigest(),
    )
    return ApplyResult((file,), Usage(), {"total_ms": 0.0})


def reply_of(scripted: ApplyResult | HunkError | Mapping[str, Any] | list[Any] | Reply) -> Reply:
    """An answer that comes in one piece."""
    if isinstance(scripted, Reply):
        return scripted
    if isinstance(scripted, ApplyResult):
        return Reply(result_to_json(scripted))
    if isinstance(scripted, HunkError):
        headers = {"content-type": "application/problem+json"}
        if scripted.retry_after_s is not None:
            headers["retry-after"] = str(ceil(scripted.retry_after_s))
        return Reply(problem_of(scripted), scripted.http_status, headers)
    return Reply(scripted)


def _event(event: Event) -> bytes:
    name, data = _named(event)
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _named(event: Event) -> tuple[str, Any]:
    if isinstance(event, Phase):
        return "phase", {"phase": event.name}
    if isinstance(event, Tokens):
        return "tokens", {"region": event.region, "pieces": [asdict(piece) for piece in event.pieces]}
    if isinstance(event, HunkError):
        return "problem", problem_of(event)
    return "result", result_to_json(event) if isinstance(event, ApplyResult) else event


def _line(item: BatchItem) -> dict[str, Any]:
    outcome = item.outcome
    if isinstance(outcome, HunkError):
        return {"id": None, "index": item.index, "status": outcome.http_status, "problem": problem_of(outcome)}
    return {"id": None, "index": item.index, "status": 200, "result": result_to_json(outcome)}
