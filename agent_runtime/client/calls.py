"""Requests of the API as values: calls that merge edits, and calls about the service itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from agent_runtime.errors import BadRequest, HunkError
from agent_runtime.serialization import problem_from_json, result_from_json
from agent_runtime.types import (
    ApplyRequest,
    ApplyResult,
    EditInput,
    OnConflict,
    Options,
    PatchRequest,
    Reader,
    encode_edit,
)

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


def make_value(cls: type[Value], values: Mapping[str, Any], **made: Any) -> Value:
    """Make a dataclass of an answer's fields; unknown ones, of a later version, are ignored. Raises TypeError."""
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # all of them are dataclasses
    return cls(**{name: value for name, value in values.items() if name in names} | made)


@dataclass(frozen=True, slots=True)
class WorkspaceRequest(Options):
    """An edit of a file of a workspace of the service, or, without `path`, of the files that the edit names.

    workspace: its name; None: the folder that the service was started with. expected_sha256: the hash that the sender
    expects of the file, or hashes by path; the service refuses the edit where a file has another. prediction: the
    expected text of the whole file after the edit. base: the text that the edit was made for, if the file may have
    changed since, or by `base_sha256` its hash, if the service has shown, written or kept that version; the service
    merges both changes.
    """

    edit: EditInput
    path: str = ""
    workspace: str | None = None
    expected_sha256: str | Mapping[str, str] | None = None
    prediction: str | None = None
    base: str | None = None
    base_sha256: str | None = None
    on_conflict: OnConflict = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "edit", encode_edit(self.edit))


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that the service runs; a request's `model` names its `id`."""

    id: str
    owned_by: str = ""


@dataclass(frozen=True, slots=True)
class UndoneFile:
    """A file that was put back. `before` and `after` are its hashes, None if there was or is no file."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Undo:
    """An undo, which is a write itself: its `id` undoes it. undoes: the ID of the write that was undone."""

    id: str
    undoes: str
    files: tuple[UndoneFile, ...]


def build_undo_call(write_id: str | None, workspace: str | None) -> Call[Undo]:
    """Build `POST /undo`."""

    def parse(answer: Any) -> Undo:
        return make_value(Undo, answer, files=tuple(make_value(UndoneFile, file) for file in answer["files"]))

    return Call("POST", "/undo", parse, {"id": write_id, "workspace": workspace})


def build_models_call() -> Call[tuple[ModelEntry, ...]]:
    """Build `GET /v1/models`, which has OpenAI's format."""

    def parse(answer: Any) -> tuple[ModelEntry, ...]:
        return tuple(ModelEntry(str(entry["id"]), str(entry.get("owned_by", ""))) for entry in answer["data"])

    return Call("GET", "/v1/models", parse)


def build_stats_call() -> Call[dict[str, Any]]:
    """Build `GET /stats`."""
    return Call("GET", "/stats", lambda answer: dict(answer))


def build_health_call() -> Call[bool]:
    """Build `GET /healthz`."""
    return Call("GET", "/healthz", lambda answer: answer["status"] == "ok", once=True)


def build_ready_call() -> Call[bool]:
    """Build `GET /readyz`; a service that is not ready answers with a problem."""
    return Call("GET", "/readyz", lambda answer: answer["status"] == "ready", once=True)


EditRequest = ApplyRequest | WorkspaceRequest
"""An edit of a file whose text is sent along, or of files that the service reads."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """The outcome of one request of a batch; `index` is its position in the batch, from 0."""

    index: int
    outcome: ApplyResult | HunkError

    @property
    def result(self) -> ApplyResult:
        """The answer; raises the error with which the request was refused."""
        if isinstance(self.outcome, HunkError):
            raise self.outcome
        return self.outcome


def build_apply_call(
    request: EditRequest,
    *,
    model: str | None = None,
    write: bool = False,
    stream: bool = False,
    idempotency_key: str | None = None,
) -> Call[ApplyResult]:
    """Build the call of one edit. With `write` it has a key, so that a repeated call does not write twice."""
    key = idempotency_key if idempotency_key is not None else str(uuid.uuid4()) if write else None
    flags = {name: True for name, on in (("write", write), ("stream", stream)) if on}
    return Call(
        "POST",
        "/apply",
        result_from_json,
        build_body(request) | {"model": model} | flags,
        changes_nothing=not write,
        idempotency_key=key,
        works=True,
    )


def build_patch_call(request: PatchRequest, read: Reader, *, model: str | None = None) -> Call[ApplyResult]:
    """Build the call of an edit of several files, whose texts are sent along.

    Raises what parsing the edit or reading the files raises.
    """
    from agent_runtime.apply.multi_file import parse_edits, read_files

    texts = [
        {"path": path, **_encode_file(data, path)} for path, data in read_files(parse_edits(request), read).items()
    ]
    body = {"edit": request.edit, "files": texts, **request.to_request_options(), "model": model}
    return Call("POST", "/apply", result_from_json, body, changes_nothing=True, works=True)


MAX_BATCH = 256
"""Maximum edits of one call; more are sent as several calls."""


@dataclass(frozen=True, slots=True)
class BatchCall:
    """A call with some of the edits of a batch; its answer has `num_requests` lines."""

    call: Call[BatchItem]
    num_requests: int


def build_batch_calls(
    requests: Iterable[EditRequest], *, model: str | None = None, write: bool = False
) -> list[BatchCall]:
    """Build the calls of a batch of independent edits; the answers are lines, in the order in which edits finish."""
    bodies = [build_body(request) | {"model": model} for request in requests]
    if write:
        bodies = [body | {"write": True, "idempotency_key": str(uuid.uuid4())} for body in bodies]
    return [_build_batch_call(bodies[first : first + MAX_BATCH], first) for first in range(0, len(bodies), MAX_BATCH)]


def _build_batch_call(bodies: list[dict[str, Any]], first: int) -> BatchCall:
    def parse_item(line: Mapping[str, Any]) -> BatchItem:
        problem = line.get("problem")
        outcome = problem_from_json(problem) if problem else result_from_json(line["result"])
        return BatchItem(first + int(line["index"]), outcome)

    return BatchCall(Call("POST", "/apply/batch", parse_item, {"requests": bodies}, works=True), len(bodies))


def build_body(request: EditRequest) -> dict[str, Any]:
    """Build the body of `POST /apply`."""
    given = {"prediction": request.prediction} if request.prediction is not None else {}
    if request.on_conflict != "refuse":
        given["on_conflict"] = request.on_conflict
    if isinstance(request, ApplyRequest):
        file = {"path": request.path, **_encode_file(request.original, request.path)}
        if request.base is not None:
            file["base"] = request.base.decode(file["encoding"])
        return {"edit": request.edit, **file, **given, **request.to_request_options()}
    file = {"path": request.path} if request.path else {}
    workspace = {"workspace": request.workspace} if request.workspace is not None else {}
    precondition = _build_precondition(request)
    given |= {name: value for name in ("base", "base_sha256") if (value := getattr(request, name)) is not None}
    return {"edit": request.edit, **file, **workspace, **precondition, **given, **request.to_request_options()}


def _build_precondition(request: WorkspaceRequest) -> dict[str, Any]:
    expected = request.expected_sha256
    if expected is None:
        return {}
    if isinstance(expected, str):
        if not request.path:
            raise BadRequest("give expected_sha256 of several files by path: {path: hash}", field="expected_sha256")
        return {"expected_sha256": expected}
    if request.path:
        raise BadRequest("give expected_sha256 of one file as a string", field="expected_sha256")
    return {"files": [{"path": path, "expected_sha256": one} for path, one in expected.items()]}


def _encode_file(data: bytes, path: str) -> dict[str, str]:
    """Return a file's encoding and its whole text, with BOM and line endings."""
    from agent_runtime.apply.result import decode

    encoding = decode(data, path).encoding
    return {"original": data.decode(encoding), "encoding": encoding}
