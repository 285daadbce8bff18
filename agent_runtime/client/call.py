"""A request of the API as a value, and the calls about the service itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from agent_runtime.types import Options

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Call(Generic[Value]):
    """A request, and what makes a value of the JSON that answers it.

    changes_nothing: the answer is all that comes of it, as of a GET. works: the service merges or asks the model for
    it, which takes as long as it takes. silence_s: the service may be silent for so long, because that was asked for.
    once: it asks how things are at this moment, so that a later answer is no better.
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
        """Whether it is sent again after a failure: sending it twice does no more than sending it once."""
        is_safe = self.method == "GET" or self.changes_nothing or self.idempotency_key is not None
        return is_safe and not self.once


def build_path(*names: str) -> str:
    """A path of the API in which each name is one segment, whatever characters it has."""
    return "".join("/" + _quote_segment(name) for name in names)


def quote_file_path(path: str) -> str:
    """The path of a file as the end of a path of the API: `..` stays in it, for the service to refuse."""
    return "/".join(_quote_segment(name) for name in path.split("/"))


def _quote_segment(name: str) -> str:
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


@dataclass(frozen=True, slots=True)
class WorkspaceRequest(Options):
    """One edit of a file of a workspace of the service, or, without `path`, of the files that the edit names.

    workspace: its name; None: the folder that the service was started with. expected_sha256: of the file as the sender
    believes it to be, or of several by path; the service refuses the edit where one has another. prediction: what the
    whole file is expected to be after the edit.
    """

    edit: str
    path: str = ""
    workspace: str | None = None
    expected_sha256: str | Mapping[str, str] | None = None
    prediction: str | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model that the service runs; `id` is what a request's `model` names."""

    id: str
    owned_by: str = ""


def models_call() -> Call[tuple[ModelEntry, ...]]:
    """`GET /v1/models`, which has OpenAI's shape."""
    return Call("GET", "/v1/models", lambda answer: tuple(_parse_model(entry) for entry in answer["data"]))


def stats_call() -> Call[dict[str, Any]]:
    """`GET /stats`."""
    return Call("GET", "/stats", lambda answer: dict(answer))


def health_call() -> Call[bool]:
    """`GET /healthz`."""
    return Call("GET", "/healthz", lambda answer: answer["status"] == "ok", once=True)


def ready_call() -> Call[bool]:
    """`GET /readyz`; a service that is not ready answers with a problem."""
    return Call("GET", "/readyz", lambda answer: answer["status"] == "ready", once=True)


def _parse_model(entry: Mapping[str, Any]) -> ModelEntry:
    return ModelEntry(str(entry["id"]), str(entry.get("owned_by", "")))
