"""Requests of the API as values, and the calls about the service itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from agent_runtime.types import Options

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Call(Generic[Value]):
    """A request; `read` parses the JSON of its answer.

    changes_nothing: it has no side effect, like a GET. works: the service merges or asks the model, which may take
    long. silence_s: seconds that the service may be silent, because the request asks for it. once: it asks for the
    state at this moment, so that it is never repeated.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    read: Callable[[Any], Value]
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str | int | float] = field(default_factory=dict)
    changes_nothing: bool = False
    idempotency_key: str | None = None
    works: bool = False
    silence_s: float = 0.0
    once: bool = False

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent again after a failure: sending it twice has the same effect as sending it once."""
        is_safe = self.method == "GET" or self.changes_nothing or self.idempotency_key is not None
        return is_safe and not self.once


def build_path(*names: str) -> str:
    """Build a path of the API in which each name is one segment, whatever characters it has."""
    return "".join("/" + _quote_segment(name) for name in names)


def quote_file_path(path: str) -> str:
    """Quote a file's path as the end of a path of the API; `..` is kept, so that the service refuses it."""
    return "/".join(_quote_segment(name) for name in path.split("/"))


def _quote_segment(name: str) -> str:
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


@dataclass(frozen=True, slots=True)
class WorkspaceRequest(Options):
    """An edit of a file of a workspace of the service, or, without `path`, of the files that the edit names.

    workspace: its name; None: the folder that the service was started with. expected_sha256: the hash that the sender
    expects of the file, or hashes by path; the service refuses the edit where a file has another. prediction: the
    expected text of the whole file after the edit.
    """

    edit: str
    path: str = ""
    workspace: str | None = None
    expected_sha256: str | Mapping[str, str] | None = None
    prediction: str | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that the service runs; a request's `model` names its `id`."""

    id: str
    owned_by: str = ""


def models_call() -> Call[tuple[ModelEntry, ...]]:
    """Build `GET /v1/models`, which has OpenAI's format."""
    return Call("GET", "/v1/models", lambda answer: tuple(_parse_model(entry) for entry in answer["data"]))


def stats_call() -> Call[dict[str, Any]]:
    """Build `GET /stats`."""
    return Call("GET", "/stats", lambda answer: dict(answer))


def health_call() -> Call[bool]:
    """Build `GET /healthz`."""
    return Call("GET", "/healthz", lambda answer: answer["status"] == "ok", once=True)


def ready_call() -> Call[bool]:
    """Build `GET /readyz`; a service that is not ready answers with a problem."""
    return Call("GET", "/readyz", lambda answer: answer["status"] == "ready", once=True)


def _parse_model(entry: Mapping[str, Any]) -> ModelEntry:
    return ModelEntry(str(entry["id"]), str(entry.get("owned_by", "")))
