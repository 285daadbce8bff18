"""`POST /apply` and `POST /apply/batch`: from the body to the answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from agent_runtime.access import Principal
from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import BadRequest, HunkError, OutsideRoot, Stale, TooManyRequests, Unsupported
from agent_runtime.limits import MAX_EDIT_BYTES, MAX_FILE_BYTES, check_size
from agent_runtime.progress import FirstToken, Watcher
from agent_runtime.request_context import Finished
from agent_runtime.server.auth import needs
from agent_runtime.server.dependencies import Service
from agent_runtime.server.events import streamed
from agent_runtime.server.executor import Departure, run, run_watched
from agent_runtime.server.idempotency import IdempotencyKey
from agent_runtime.server.openapi import NdJson, apply_responses, batch_responses
from agent_runtime.server.problems import fault_of_bug
from agent_runtime.server.request_body import JsonRoute
from agent_runtime.server.responses import Answer, Streamed, answer_of, answer_of_fault
from agent_runtime.server.schemas import EXAMPLES, ApplyBody, FileBody, Text, fault_of_validation, text_of
from agent_runtime.types import ApplyRequest, ApplyResult, PatchRequest, Reader
from agent_runtime.workspace.workspace import Workspace, write_if_merged
from editor.codec import to_bytes
from editor.errors import CodecError

Work = Callable[[Watcher], ApplyResult]


def work_of(applier: Applier, workspace: Workspace | None, body: ApplyBody, salt: str = "") -> Work:
    """Check what the schema cannot, fetch the files, and return the call that applies the edit.

    `salt` is the tenant's: what is computed for one is taken for no other. What is to be written comes from the
    workspace.
    """
    if body.write:
        _refuse_texts_to_write(workspace, body)
    if body.files is not None:
        _refuse_single_fields(body)
        return _several(applier, workspace, body, body.files, salt)
    edit = _edit(body.edit, "edit")
    if body.path is None and body.original is None and workspace is not None:
        for name in ("prediction", "expected_sha256"):
            if getattr(body, name) is not None:
                raise BadRequest(f"{name!r} is of one file: name it by 'path', or give 'original'", field=name)
        patch = PatchRequest(edit, **body.options(salt), root=str(workspace.root))
        return partial(applier.apply_patch, patch, workspace.read_if_there)
    return partial(applier.apply, _request(workspace, body, body, salt))


def _several(applier: Applier, workspace: Workspace | None, body: ApplyBody, files: list[FileBody], salt: str) -> Work:
    twice = [path for path, count in Counter(file.path for file in files if file.path).items() if count > 1]
    if twice:
        raise BadRequest(f"'files' holds {twice[0]} twice", field="files")
    if body.edit is None:
        if not files:
            raise BadRequest("'files' is empty, and there is no 'edit' that names its files", field="files")
        requests = [_request(workspace, file, body, salt) for file in files]
        return partial(applier.apply_each, requests)
    if any(file.edit is not None for file in files):
        raise BadRequest("give 'edit' once: for each file, or beside 'files' for all", field="edit")
    if any(file.prediction is not None for file in files):
        raise BadRequest("a file has a prediction where it has its own 'edit'", field="prediction")
    root = "" if workspace is None or any(file.original is not None for file in files) else str(workspace.root)
    request = PatchRequest(_edit(body.edit, "edit"), **body.options(salt), root=root)
    return partial(applier.apply_patch, request, _reader(workspace, files))


def _refuse_texts_to_write(workspace: Workspace | None, body: ApplyBody) -> None:
    if any(file.original is not None for file in (body, *(body.files or ()))):
        raise BadRequest(
            "only files of a workspace are written: name them by 'path' and leave out 'original'", field="write"
        )
    if workspace is None:
        raise OutsideRoot("this service has no files that it could write: start it with --root DIR")


def _refuse_single_fields(body: ApplyBody) -> None:
    for name in ("path", "original", "expected_sha256", "prediction"):
        if getattr(body, name) is not None:
            raise BadRequest(f"beside 'files' there is no {name!r}; give it for each file", field=name)


def _request(workspace: Workspace | None, file: ApplyBody | FileBody, body: ApplyBody, salt: str) -> ApplyRequest:
    edit = _edit(file.edit, "edit" if file is body else "files")
    prediction = text_of(file.prediction)
    original, root = _current(workspace, file), "" if workspace is None or file.original is not None else workspace.root
    return ApplyRequest(original, edit, file.path or "", prediction, **body.options(salt), root=str(root))


def _reader(workspace: Workspace | None, files: list[FileBody]) -> Reader:
    """Read from the texts that were sent; without any, below the root, with the hashes held to."""
    if files and all(file.original is None for file in files):
        read = {file.path or "": _current(workspace, file) for file in files}
        assert workspace is not None
        return partial(_read_once, read, workspace)
    if any(file.path is None or file.original is None for file in files):
        raise BadRequest("beside an edit of all, each of 'files' has 'path' and 'original'", field="files")
    return {file.path: _current(workspace, file) for file in files if file.path is not None}.get


def _read_once(read: dict[str, bytes], workspace: Workspace, path: str) -> bytes | None:
    """The bytes whose hash was looked at: the file may be another one by now."""
    return read[path] if path in read else workspace.read_if_there(path)


def _current(workspace: Workspace | None, file: ApplyBody | FileBody) -> bytes:
    """The file's bytes; raises Stale where they are not those that the sender believes."""
    original = _original(workspace, file)
    current = sha256(original).hexdigest()
    if file.expected_sha256 not in (None, current):
        name = file.path or "the file"
        raise Stale(f"{name} is not what the edit was made for; read it again", current_sha256=current)
    return original


def _original(workspace: Workspace | None, file: ApplyBody | FileBody) -> bytes:
    if file.original is not None:
        try:
            original = to_bytes(file.original, file.encoding)
        except CodecError as error:
            raise BadRequest(f"'original' is not in {file.encoding}: {error}", field="original") from error
        check_size(len(original), "the file", MAX_FILE_BYTES)
        return original
    if file.path is None:
        raise BadRequest("give 'original', the file's text, or 'path', a file below the service's root", field="path")
    if workspace is None:
        raise OutsideRoot("this service reads no files: send 'original', or start it with --root DIR")
    return workspace.read(file.path)


def _edit(edit: str | None, field: str) -> str:
    if edit is None:
        raise BadRequest("there is no 'edit', neither for each file nor for all", field=field)
    check_size(len(edit), "the edit", MAX_EDIT_BYTES)
    return edit


def apply_body(service: Service, principal: Principal, body: ApplyBody, route: str, watcher: Watcher) -> Answer:
    """Merge the edit, write the files where that is asked for, and tell the observer; runs in a thread."""
    watched = FirstToken(watcher)
    try:
        result = _applied(service, principal, body, watched)
    except HunkError as fault:
        service.observer.finished(Finished.with_fault(route, principal.tenant, fault))
        return answer_of_fault(fault)
    service.observer.finished(Finished.with_result(route, principal.tenant, result, watched.after_ms))
    return answer_of(result)


def _applied(service: Service, principal: Principal, body: ApplyBody, watcher: Watcher) -> ApplyResult:
    if body.model is not None and body.model != service.model.name:
        raise Unsupported(f"this service runs {service.model.name!r}, not {body.model!r}", field="model")
    workspace = service.workspaces.find(body.workspace, principal)
    result = work_of(service.applier, workspace, body, principal.salt)(watcher)
    if not body.write:
        return result
    assert workspace is not None, "`work_of` refuses to write without"
    return write_if_merged(workspace, result, watcher)


MAX_REQUESTS = 256
AT_ONCE = 32
"""Requests of one batch that are worked on at once. What has finished waits for the client, and what comes behind it
waits for that: so a client that does not read holds up so many answers and no more."""

ROUTE = "/apply/batch"

LOG = logging.getLogger("hunk.http")


class BatchItem(ApplyBody):
    """One request of a batch: the body of `POST /apply`, and what its answer is known by."""

    id: Text | int | None = Field(None, description="Given back with the answer.")
    idempotency_key: Text | None = Field(None, description="As the header `Idempotency-Key` of a request of its own.")


class BatchBody(BaseModel):
    """Requests that have nothing to do with one another; each is answered, or refused, on its own."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"requests": [{"id": number, **one} for number, one in enumerate(EXAMPLES)]}]},
    )

    requests: list[SkipValidation[BatchItem]] = Field(max_length=MAX_REQUESTS)
    """As they were sent: one that is malformed has a problem of its own."""


class Batch:
    """The requests of one batch on their way; each counts for its tenant's rate."""

    def __init__(self, service: Service, principal: Principal, requests: list[Any]) -> None:
        """Raises TooManyRequests where the rate does not carry all of them: then none begins."""
        _count(service, principal, len(requests))
        self._service = service
        self._principal = principal
        self._requests = requests
        self._departure = Departure()

    def end(self) -> None:
        """Nobody waits any more: what runs is stopped, and nothing begins."""
        self._departure.happen()

    async def lines(self) -> AsyncIterator[bytes]:
        """A line of JSON for each request, as it finishes."""
        waiting = iter(enumerate(self._requests))
        running: set[asyncio.Task[bytes]] = set()
        while True:
            for index, request in waiting:
                running.add(asyncio.create_task(self._line(index, request)))
                if len(running) == AT_ONCE:
                    break
            if not running:
                return
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                yield task.result()

    async def _line(self, index: int, request: Any) -> bytes:
        name = request.get("id") if isinstance(request, dict) else None
        try:
            answer = await self._answer(request)
        except HunkError as fault:
            answer = answer_of_fault(fault)
        except Exception as error:
            LOG.error("a bug ended a request of a batch", exc_info=error)
            answer = answer_of_fault(fault_of_bug(error))
        head = {"id": name if isinstance(name, str | int) else None, "index": index, "status": answer.status}
        kind = b"problem" if answer.is_problem else b"result"
        return json.dumps(head)[:-1].encode() + b', "' + kind + b'": ' + answer.content + b"}\n"

    async def _answer(self, request: Any) -> Answer:
        try:
            item = BatchItem.model_validate(request)
        except ValidationError as error:
            raise fault_of_validation(error.errors(), "the request") from error
        if item.stream:
            raise Unsupported("a batch is a stream already; leave 'stream' out", field="stream")

        async def work() -> Answer:
            merge = partial(apply_body, self._service, self._principal, item, ROUTE)
            return await run_watched(self._service, merge, self._departure)

        sent = json.dumps({name: value for name, value in request.items() if name != "id"}, sort_keys=True)
        return await self._service.answers.once(self._principal, item.idempotency_key, sent.encode(), work)


def _count(service: Service, principal: Principal, num_requests: int) -> None:
    try:
        service.tenants.count_as(principal.tenant, max(num_requests, 1))
    except TooManyRequests as fault:
        service.metering.counters.refused(fault.limit)
        raise


MayApply = Annotated[Principal, Depends(needs("apply"))]

NoIdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", include_in_schema=False)]
"""Refused: who sends one relies on it."""


def apply_routes(service: Service) -> APIRouter:
    """The routes that merge edits."""
    router = APIRouter(route_class=JsonRoute, tags=["apply"])

    @router.post("/apply", summary="Merge an edit", responses=apply_responses())
    async def apply(
        body: ApplyBody, request: Request, principal: MayApply, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Merge an edit into its file, or into several files: all or none.

        Rules first; the model only where none decides. Nothing is written without `write`. With `stream`, the answer is
        events.
        """
        work = partial(apply_body, service, principal, body, "/apply")
        once = partial(service.answers.once, principal, idempotency_key, await request.body())

        if body.stream:

            async def followed(watcher: Watcher) -> Answer:
                return await once(partial(run_watched, service, work, watcher))

            return await streamed(request, followed)
        answer: Answer = await once(partial(run, service, request, work))
        return answer.response()

    @router.post("/apply/batch", summary="Merge many edits", response_class=NdJson, responses=batch_responses())
    async def apply_batch(body: BatchBody, principal: MayApply, idempotency_key: NoIdempotencyKey = None) -> Response:
        """Merge many edits that have nothing to do with one another; each is answered as it finishes.

        They run at once and share the model's passes. Edits of one file belong into one request.
        """
        if idempotency_key is not None:
            raise Unsupported("give each request of a batch its own 'idempotency_key' instead", field="Idempotency-Key")
        batch = Batch(service, principal, list(body.requests))
        return Streamed(batch.lines(), batch.end, "application/x-ndjson", {})

    return router
