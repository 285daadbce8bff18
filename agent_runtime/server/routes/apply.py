"""`POST /apply`, `POST /apply/batch` and `POST /undo`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from hashlib import sha256
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import (
    BadRequest,
    HunkError,
    NoSuchWrite,
    OutsideRoot,
    Stale,
    TooManyRequests,
    Unsupported,
    WorkspaceMissing,
)
from agent_runtime.files import MAX_EDIT_BYTES, MAX_FILE_BYTES, check_size
from agent_runtime.request_context import NO_PROGRESS, FirstTokenTimer, ProgressFanOut, ProgressListener, RequestContext
from agent_runtime.server.auth import require
from agent_runtime.server.openapi import NdJson, describe_apply, describe_batch, describe_problems
from agent_runtime.server.problems import make_bug_fault
from agent_runtime.server.request_body import JsonRoute
from agent_runtime.server.responses import (
    EncodedAnswer,
    IdempotencyKey,
    StreamedResponse,
    encode_problem,
    encode_result,
)
from agent_runtime.server.schemas import (
    EXAMPLES,
    ApplyBody,
    FileBody,
    Text,
    UndoBody,
    UndoResponse,
    UndoResponseFile,
    convert_validation_error,
    get_prediction_text,
)
from agent_runtime.server.service import Service, answer_request, run_in_thread
from agent_runtime.telemetry.metrics import RequestOutcome
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest, Reader
from agent_runtime.workspace.undo import undo_in_workspace
from agent_runtime.workspace.workspace import Workspace, write_if_merged
from editor.codec import to_bytes
from editor.errors import CodecError

ROUTE = "/apply"
BATCH_ROUTE = "/apply/batch"


def apply_body(
    applier: Applier,
    workspace: Workspace | None,
    body: ApplyBody,
    context: RequestContext,
    progress: ProgressListener = NO_PROGRESS,
) -> ApplyResult:
    """Check what the schema cannot, read the files, and merge the edit. Writes nothing. Runs in a thread.

    Files that will be written have to be in the workspace.
    """
    salt = context.principal.salt
    if body.write:
        _refuse_texts_to_write(workspace, body)
    if body.files is not None:
        _refuse_single_fields(body)
        return _apply_files(applier, workspace, body, body.files, context, progress)
    edit = _check_edit(body.edit, "edit")
    if body.path is None and body.original is None and workspace is not None:
        for name in ("prediction", "expected_sha256", "base", "base_sha256"):
            if getattr(body, name) is not None:
                raise BadRequest(f"{name!r} is of one file: name it by 'path', or give 'original'", field=name)
        patch = PatchRequest(edit, **body.options(salt), root=str(workspace.root))
        return applier.apply_patch(patch, workspace.read_if_there, context, progress)
    return applier.apply(_build_request(workspace, body, body, salt), context, progress)


def _apply_files(
    applier: Applier,
    workspace: Workspace | None,
    body: ApplyBody,
    files: list[FileBody],
    context: RequestContext,
    progress: ProgressListener,
) -> ApplyResult:
    salt = context.principal.salt
    twice = [path for path, count in Counter(file.path for file in files if file.path).items() if count > 1]
    if twice:
        raise BadRequest(f"'files' holds {twice[0]} twice", field="files")
    if body.edit is None:
        if not files:
            raise BadRequest("'files' is empty, and there is no 'edit' that names its files", field="files")
        requests = [_build_request(workspace, file, body, salt) for file in files]
        return applier.apply_each(requests, context, progress)
    if any(file.edit is not None for file in files):
        raise BadRequest("give 'edit' once: for each file, or beside 'files' for all", field="edit")
    for name in ("prediction", "base", "base_sha256"):
        if any(getattr(file, name) is not None for file in files):
            raise BadRequest(f"a file has {name!r} where it has its own 'edit'", field=name)
    root = "" if workspace is None or any(file.original is not None for file in files) else str(workspace.root)
    request = PatchRequest(_check_edit(body.edit, "edit"), **body.options(salt), root=root)
    return applier.apply_patch(request, _make_reader(workspace, files), context, progress)


def _refuse_texts_to_write(workspace: Workspace | None, body: ApplyBody) -> None:
    if any(file.original is not None for file in (body, *(body.files or ()))):
        raise BadRequest(
            "only files of a workspace are written: name them by 'path' and leave out 'original'", field="write"
        )
    if workspace is None:
        raise OutsideRoot("this service has no files that it could write: start it with --root DIR")


def _refuse_single_fields(body: ApplyBody) -> None:
    for name in ("path", "original", "expected_sha256", "prediction", "base", "base_sha256"):
        if getattr(body, name) is not None:
            raise BadRequest(f"beside 'files' there is no {name!r}; give it for each file", field=name)


def _build_request(workspace: Workspace | None, file: ApplyBody | FileBody, body: ApplyBody, salt: str) -> ApplyRequest:
    edit = _check_edit(file.edit, "edit" if file is body else "files")
    prediction = get_prediction_text(file.prediction)
    original, root = (
        _read_current(workspace, file),
        "" if workspace is None or file.original is not None else workspace.root,
    )
    base = _find_base(workspace, file, original)
    path, options = file.path or "", body.options(salt)
    return ApplyRequest(original, edit, path, prediction, base, body.on_conflict, **options, root=str(root))


def _find_base(workspace: Workspace | None, file: ApplyBody | FileBody, original: bytes) -> bytes | None:
    """Return the version that the edit was made for, None if it is the current one or none was named.

    Raises Stale if the service does not know the version.
    """
    if file.base is not None and file.base_sha256 is not None:
        raise BadRequest("give 'base' or 'base_sha256', not both", field="base_sha256")
    if file.base is not None:
        return _encode(file.base, file.encoding, "base")
    if workspace is not None and file.original is None and file.path is not None:
        return workspace.versions.find_base(file.path, file.base_sha256, original)
    current = sha256(original).hexdigest()
    if file.base_sha256 not in (None, current):
        raise Stale("'original' is not the version of the edit; send that as 'base'", current_sha256=current)
    return None


def _make_reader(workspace: Workspace | None, files: list[FileBody]) -> Reader:
    """Return a reader of the sent texts; without any, of the workspace's files, whose expected hashes are checked."""
    if files and all(file.original is None for file in files):
        read = {file.path or "": _read_current(workspace, file) for file in files}
        assert workspace is not None
        return partial(_read_once, read, workspace)
    if any(file.path is None or file.original is None for file in files):
        raise BadRequest("beside an edit of all, each of 'files' has 'path' and 'original'", field="files")
    return {file.path: _read_current(workspace, file) for file in files if file.path is not None}.get


def _read_once(read: dict[str, bytes], workspace: Workspace, path: str) -> bytes | None:
    """Return the bytes whose hash was checked: the file may have changed since."""
    return read[path] if path in read else workspace.read_if_there(path)


def _read_current(workspace: Workspace | None, file: ApplyBody | FileBody) -> bytes:
    """Return the file's bytes; raises Stale if their hash is not the expected one."""
    original = _read_original(workspace, file)
    current = sha256(original).hexdigest()
    if file.expected_sha256 not in (None, current):
        name = file.path or "the file"
        raise Stale(f"{name} is not what the edit was made for; read it again", current_sha256=current)
    return original


def _read_original(workspace: Workspace | None, file: ApplyBody | FileBody) -> bytes:
    if file.original is not None:
        return _encode(file.original, file.encoding, "original")
    if file.path is None:
        raise BadRequest("give 'original', the file's text, or 'path', a file below the service's root", field="path")
    if workspace is None:
        raise OutsideRoot("this service reads no files: send 'original', or start it with --root DIR")
    return workspace.read(file.path)


def _encode(text: str, encoding: str, field: str) -> bytes:
    try:
        data = to_bytes(text, encoding)
    except CodecError as error:
        raise BadRequest(f"{field!r} is not in {encoding}: {error}", field=field) from error
    check_size(len(data), "the file" if field == "original" else f"{field!r}", MAX_FILE_BYTES)
    return data


def _check_edit(edit: str | None, field: str) -> str:
    if edit is None:
        raise BadRequest("there is no 'edit', neither for each file nor for all", field=field)
    check_size(len(edit), "the edit", MAX_EDIT_BYTES)
    return edit


def answer_apply(
    service: Service, body: ApplyBody, route: str, context: RequestContext, progress: ProgressListener = NO_PROGRESS
) -> EncodedAnswer:
    """Merge the edit, write the files if requested, and report the outcome. Runs in a thread."""
    timer = FirstTokenTimer()
    try:
        if body.model is not None and body.model != service.model.name:
            raise Unsupported(f"this service runs {service.model.name!r}, not {body.model!r}", field="model")
        workspace = service.workspaces.find(body.workspace, context.principal)
        result = apply_body(service.applier, workspace, body, context, ProgressFanOut(timer, progress))
        if body.write:
            assert workspace is not None, "`apply_body` refuses to write without"
            result = write_if_merged(workspace, result, context.cancel)
    except HunkError as fault:
        service.metering.on_outcome(RequestOutcome.from_fault(route, context.tenant, fault))
        return encode_problem(fault)
    service.metering.on_outcome(RequestOutcome.from_result(route, context.tenant, result, timer.first_token_ms))
    return encode_result(result)


MAX_REQUESTS = 256
MAX_CONCURRENT_REQUESTS = 32
"""Concurrent requests of one batch. Finished ones wait for the client, and later ones for these: so for a client that
does not read, at most so many answers are stored."""

LOG = logging.getLogger("hunk.http")


class BatchRequest(ApplyBody):
    """One request of a batch: the body of `POST /apply`, and an id that its answer has too."""

    id: Text | int | None = Field(None, description="Returned with the answer.")
    idempotency_key: Text | None = Field(None, description="As the header `Idempotency-Key` of `POST /apply`.")


class BatchBody(BaseModel):
    """Independent requests; each is answered or refused on its own."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"requests": [{"id": number, **one} for number, one in enumerate(EXAMPLES)]}]},
    )

    requests: list[SkipValidation[BatchRequest]] = Field(max_length=MAX_REQUESTS)
    """Not validated here: a malformed request gets a problem of its own."""


class ApplyBatch:
    """A running batch; each of its requests counts for the tenant's rate."""

    def __init__(self, service: Service, context: RequestContext, requests: list[Any]) -> None:
        """Charge all requests; raises TooManyRequests, and starts none, if the rate does not allow them."""
        try:
            service.tenants.charge_requests(context.tenant, max(len(requests), 1))
        except TooManyRequests as fault:
            service.metering.counters.count_refusal(fault.limit)
            raise
        self._service = service
        self._context = context
        self._requests = requests

    async def encode_lines(self) -> AsyncIterator[bytes]:
        """Yield a line of JSON for each request, as it finishes."""
        waiting = iter(enumerate(self._requests))
        running: set[asyncio.Task[bytes]] = set()
        while True:
            for index, request in waiting:
                running.add(asyncio.create_task(self._encode_line(index, request)))
                if len(running) == MAX_CONCURRENT_REQUESTS:
                    break
            if not running:
                return
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                yield task.result()

    async def _encode_line(self, index: int, request: Any) -> bytes:
        name = request.get("id") if isinstance(request, dict) else None
        try:
            answer = await self._answer(request)
        except HunkError as fault:
            answer = encode_problem(fault)
        except Exception as error:
            LOG.error("a bug ended a request of a batch", exc_info=error)
            answer = encode_problem(make_bug_fault(error))
        head = {"id": name if isinstance(name, str | int) else None, "index": index, "status": answer.status}
        kind = b"problem" if answer.is_problem else b"result"
        return json.dumps(head)[:-1].encode() + b', "' + kind + b'": ' + answer.content + b"}\n"

    async def _answer(self, request: Any) -> EncodedAnswer:
        try:
            body = BatchRequest.model_validate(request)
        except ValidationError as error:
            raise convert_validation_error(error.errors(), "the request") from error
        if body.stream:
            raise Unsupported("a batch is a stream already; leave 'stream' out", field="stream")
        service, context = self._service, self._context

        def run() -> Awaitable[EncodedAnswer]:
            return run_in_thread(service, context, lambda context: answer_apply(service, body, BATCH_ROUTE, context))

        sent = json.dumps({name: value for name, value in request.items() if name != "id"}, sort_keys=True)
        return await service.idempotency.run_once(context.tenant, body.idempotency_key, sent.encode(), run)


MayApply = Annotated[RequestContext, Depends(require("apply"))]

NoIdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", include_in_schema=False)]
"""Refused, because a client that sends it relies on it."""


def build_apply_routes(service: Service) -> APIRouter:
    """Return the routes that merge edits."""
    router = APIRouter(route_class=JsonRoute, tags=["apply"])

    @router.post("/apply", summary="Merge an edit", responses=describe_apply())
    async def apply(
        body: ApplyBody, request: Request, context: MayApply, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Merge an edit into its file, or into several files: all or none.

        Rules first; the model only where none decides. Nothing is written without `write`. With `stream`, the answer is
        events.
        """

        def work(context: RequestContext, progress: ProgressListener) -> EncodedAnswer:
            return answer_apply(service, body, ROUTE, context, progress)

        sent = await request.body()
        return await answer_request(service, request, context, idempotency_key, sent, work, stream=body.stream)

    @router.post("/apply/batch", summary="Merge many edits", response_class=NdJson, responses=describe_batch())
    async def apply_batch(body: BatchBody, context: MayApply, idempotency_key: NoIdempotencyKey = None) -> Response:
        """Merge many independent edits; each is answered as it finishes.

        They run concurrently and share the model's passes. Send all edits of one file in one request.
        """
        if idempotency_key is not None:
            raise Unsupported("give each request of a batch its own 'idempotency_key' instead", field="Idempotency-Key")
        batch = ApplyBatch(service, context, list(body.requests))
        return StreamedResponse(batch.encode_lines(), context.cancel.cancel, "application/x-ndjson", {})

    @router.post("/undo", summary="Undo a write", responses=describe_problems(NoSuchWrite, Stale, WorkspaceMissing))
    async def undo(body: UndoBody, context: MayApply) -> UndoResponse:
        """Put the files of a write back as they were before it, all or none; without `id` those of the last write."""
        workspace = service.workspaces.get(body.workspace, context.principal)
        write = await run_sync(undo_in_workspace, workspace, body.id)
        files = [UndoResponseFile(path=file.path, before=file.before, after=file.after) for file in write.files]
        return UndoResponse(id=write.id, undoes=write.undoes or "", files=files)

    return router
