"""Calls that merge edits: one edit, a stream of its progress, or a batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_runtime.client.call import Call, WorkspaceRequest
from agent_runtime.errors import BadRequest, HunkError
from agent_runtime.serialization import problem_from_json, result_from_json
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest, Reader

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


def apply_call(
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


def apply_patch_call(request: PatchRequest, read: Reader, *, model: str | None = None) -> Call[ApplyResult]:
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
    bodies = [build_body(request) | {"model": model} | (_build_write_fields() if write else {}) for request in requests]
    return [_build_batch_call(bodies[first : first + MAX_BATCH], first) for first in range(0, len(bodies), MAX_BATCH)]


def _build_batch_call(bodies: list[dict[str, Any]], first: int) -> BatchCall:
    def parse_item(line: Mapping[str, Any]) -> BatchItem:
        problem = line.get("problem")
        outcome = problem_from_json(problem) if problem else result_from_json(line["result"])
        return BatchItem(first + int(line["index"]), outcome)

    return BatchCall(Call("POST", "/apply/batch", parse_item, {"requests": bodies}, works=True), len(bodies))


def _build_write_fields() -> dict[str, Any]:
    return {"write": True, "idempotency_key": str(uuid.uuid4())}


def build_body(request: EditRequest) -> dict[str, Any]:
    """Build the body of `POST /apply`."""
    given = {"prediction": request.prediction} if request.prediction is not None else {}
    if isinstance(request, ApplyRequest):
        file = {"path": request.path, **_encode_file(request.original, request.path)}
        return {"edit": request.edit, **file, **given, **request.to_request_options()}
    file = {"path": request.path} if request.path else {}
    workspace = {"workspace": request.workspace} if request.workspace is not None else {}
    precondition = _build_precondition(request)
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
