"""The MCP tools and their answers: edit a file, read a file, undo an edit, describe the workspace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio
from anyio.to_thread import run_sync
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, TextContent, Tool, ToolAnnotations
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from agent_runtime.apply.rule_process import limit_rule_time
from agent_runtime.client.calls import Undo
from agent_runtime.errors import BadRequest, EditRefused, HunkError, ModelUnavailable, Stale
from agent_runtime.mcp.backends import Backend, BackendStatus, Edit, FileText
from agent_runtime.quotas import CpuSlots
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.server.auth import get_flow
from agent_runtime.server.schemas import encode_objects
from agent_runtime.types import ApplyResult, Certainty, FileResult, Method, Reason, Status, format_percent
from agent_runtime.version import __version__
from editor.types import LineKind

MAX_REASONS = 5

MAX_READ_CHARACTERS = 200_000
"""Maximum characters of one answer: more would fill much of an agent's context."""


class LineAnswer(BaseModel):
    """One changed line that the edit does not account for."""

    line: int
    kind: LineKind
    text: str


class CheckAnswer(BaseModel):
    """A check of the merged text."""

    name: str
    ok: bool
    detail: str
    lines: list[LineAnswer] = []


class EditAnswer(BaseModel):
    """The outcome of an edit."""

    path: str
    status: Status = Field(description="`rejected`: a check failed, nothing is written; `noop`: nothing to do.")
    written: bool
    diff: str
    method: Method = Field(description="`deterministic`: by rule; `model`: a model wrote it.")
    rung: str
    certainty: Certainty = Field(
        description="Most certain first: `certain`, `likely` (a reading that is very probably right), `scored` (a "
        "model chose a reading), `model` (a model wrote it)."
    )
    confidence: float | None = Field(description="Probability, 0 to 1, that the reading or choice is right.")
    candidates: int = Field(description="Number of places or readings considered.")
    checks: list[CheckAnswer]
    repaired: list[LineAnswer] = Field(description="Lines of the model's text that were replaced by the file's own.")
    sha256_before: str
    sha256: str = Field(description="Hash of the file now; pass it as `expected_sha256` of the next edit.")
    write_id: str = Field(description="Pass it to undo_edit to undo this edit; empty if nothing was written or kept.")
    milliseconds: float


class FileAnswer(BaseModel):
    """A file, or some of its lines."""

    model_config = ConfigDict(title="ReadAnswer")  # the published name

    path: str
    text: str
    first_line: int
    last_line: int
    num_lines: int = Field(description="Of the whole file.")
    truncated: bool = Field(description="The lines do not fit one answer: ask for the rest.")
    encoding: str
    sha256: str = Field(description="Hash of the whole file; pass it as `expected_sha256` of an edit.")


class UndoAnswer(BaseModel):
    """What was put back."""

    id: str = Field(description="The undo; pass it to undo_edit to do the edit again.")
    undoes: str
    files: dict[str, str | None] = Field(description="Paths, and the hashes of the files now; null: removed.")


class StatusAnswer(BaseModel):
    """Where the files are, and where edits are merged."""

    version: str
    root: str | None = Field(description="The folder, if it is on this machine.")
    url: str | None = Field(description="The service that merges, if it is not this process.")
    workspace: str | None = Field(description="The service's workspace, if it has the files.")
    model: str | None
    model_state: str
    details: dict[str, Any]


def edit_response(result: ApplyResult, *, written: bool) -> CallToolResult:
    """Return the answer to an edit; one that a check rejected is an error, so that an agent does not overlook it."""
    file = result.file
    written = written and result.status == "merged"
    now = file.sha256_after if written or file.status == "noop" else file.sha256_before
    answer = EditAnswer(
        path=file.path,
        status=file.status,
        written=written,
        diff=file.diff,
        method=file.method,
        rung=file.rung,
        certainty=file.certainty,
        confidence=file.confidence,
        candidates=file.candidates,
        checks=[CheckAnswer.model_validate(asdict(check)) for check in file.checks],
        repaired=[LineAnswer.model_validate(asdict(line)) for line in file.repaired],
        sha256_before=file.sha256_before,
        sha256=now,
        write_id=result.write_id,
        milliseconds=round(result.timings.get("total_ms", 0.0), 3),
    )
    failed = [f"{check.name}: {check.detail}" for check in file.checks if not check.ok]
    texts = [_format_headline(file, written=written), *failed, f"sha256: {now}"]
    if file.diff:
        texts += ["", file.diff.rstrip("\n")]
    return CallToolResult(
        content=[_make_text("\n".join(texts))],
        structured_content=answer.model_dump(mode="json"),
        is_error=file.status == "rejected",
    )


def fault_response(fault: HunkError) -> CallToolResult:
    """Return an error as text: what is wrong, the nearest miss, what to send instead.

    It has no structured content: MCP's TypeScript SDK checks that against the tool's output schema, in errors too, and
    its clients would show the schema's complaint and not this text.
    """
    texts = [str(fault)]
    if isinstance(fault, Stale):
        texts.append(f"its sha256 is now {fault.current_sha256}")
    if isinstance(fault, EditRefused | ModelUnavailable):
        if isinstance(fault, ModelUnavailable) and fault.reasons:
            texts.append("A model is needed because no rule decides this edit; one that matches exactly needs none.")
        for reason in fault.reasons[:MAX_REASONS]:
            texts += _format_reason(reason, message=str(fault))
    return CallToolResult(content=[_make_text("\n".join(texts))], is_error=True)


def read_response(file: FileText, start_line: int | None, end_line: int | None) -> CallToolResult:
    """Return the requested lines, counted from 1, both ends included, as far as they fit."""
    lines = file.text.split("\n")
    if lines[-1] == "":
        lines.pop()  # a final newline ends a line and starts none
    first = max(1, start_line or 1)
    asked = lines[first - 1 : end_line]
    shown: list[str] = []
    room = MAX_READ_CHARACTERS
    for line in asked:
        room -= len(line) + 1
        if room < 0 and shown:
            break
        shown.append(line[:MAX_READ_CHARACTERS])
    last = first + len(shown) - 1
    text = "\n".join(shown)
    if shown and (last < len(lines) or file.text.endswith("\n")):
        text += "\n"
    answer = FileAnswer(
        path=file.path,
        text=text,
        first_line=first,
        last_line=last,
        num_lines=len(lines),
        truncated=len(shown) < len(asked) or any(len(line) > MAX_READ_CHARACTERS for line in asked),
        encoding=file.encoding,
        sha256=file.sha256,
    )
    where = f"lines {first} to {last} of {len(lines)}" if shown else f"no lines: the file has {len(lines)}"
    more = f"; ask again with start_line {last + 1}" if answer.truncated else ""
    about = f"{file.path}: {where}{more}; sha256: {file.sha256}"
    return CallToolResult(
        content=[_make_text(text), _make_text(about)], structured_content=answer.model_dump(mode="json")
    )


def undo_response(undo: Undo) -> CallToolResult:
    """Return which files were put back."""
    answer = UndoAnswer(id=undo.id, undoes=undo.undoes, files={file.path: file.after for file in undo.files})
    texts = [f"{'put back' if file.after else 'removed'} {file.path}" for file in undo.files]
    return CallToolResult(content=[_make_text("\n".join(texts))], structured_content=answer.model_dump(mode="json"))


def status_response(status: BackendStatus) -> CallToolResult:
    """Return where the files are and where edits are merged."""
    answer = StatusAnswer(version=__version__, **asdict(status))
    texts = [f"{name}: {value}" for name, value in answer.model_dump().items() if value not in (None, {})]
    return CallToolResult(content=[_make_text("\n".join(texts))], structured_content=answer.model_dump(mode="json"))


def _format_headline(file: FileResult, *, written: bool) -> str:
    if file.status == "noop":
        return f"{file.path}: nothing to do: {file.checks[0].detail}"
    if file.status == "rejected":
        return f"{file.path}: rejected by a check; nothing was written"
    return f"{file.path}: merged {file.summary}; {'written' if written else 'not written (dry_run)'}"


def _format_reason(reason: Reason, *, message: str) -> list[str]:
    texts = [] if reason.reason in message else [reason.reason]
    if reason.nearest:
        texts += ["", reason.nearest]
    for number, reading in enumerate(reason.candidates, 1):
        sure = "" if reading.confidence is None else f" ({format_percent(reading.confidence)} sure)"
        texts += ["", f"reading {number}: {reading.why}{sure}", reading.diff]
    if reason.suggestion:
        texts += ["", reason.suggestion]
    return texts


def _make_text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


INSTRUCTIONS = (
    "Edits files of one folder. Send edit_file only what changes: it finds the place, merges, checks the result and "
    "writes it, or refuses with the nearest place and what to send instead; then correct the edit and call it again. "
    "It never guesses: where the old text of an edit is not found, or matches two places, the edit is refused. A "
    "snippet that shows the changed parts and quotes no old text is merged where its meaning is certain enough, and "
    "otherwise refused with the possible readings; the answer's certainty says how certain a merge is. Pass the sha256 "
    "that read_file or edit_file returned as expected_sha256, so that a file that somebody changed meanwhile is not "
    "overwritten. Paths are relative to the folder that workspace_status names."
)

EDIT = (
    "What changes, in one of these forms: SEARCH/REPLACE blocks (<<<<<<< SEARCH, the old lines, =======, the new "
    "lines, >>>>>>> REPLACE), which are certain and fast; a unified diff; a V4A patch; the changed parts "
    "of the file with a comment such as `// ... existing code ...` for what stays; or the whole file."
)

MIN_CERTAINTY = (
    "Refuse a merge that is less certain, and return the possible readings; most certain first: certain, likely, "
    "scored, model. A value below the server's own (usually likely: no model decides) has no effect."
)

REPORT_EVERY_SECONDS = 1.0

Path = Annotated[str, Field(description="The file, relative to the folder, or absolute and inside it.")]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Line = Annotated[int, Field(ge=1)]
Result = TypeVar("Result")


def build_server(backend: Backend) -> MCPServer:
    """Build the server with its tools; edits by rule share CPU slots as in the service (`CpuSlots`)."""
    slots = CpuSlots()
    server = _Server(
        "hunk",
        title="Hunk",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
        warn_on_duplicate_tools=True,
    )

    @server.tool(
        description="Merge an edit into a file and write it, if the merge is certain and passes all checks.",
        annotations=ToolAnnotations(
            title="Edit a file",
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=False,
            open_world_hint=False,
        ),
    )
    async def edit_file(
        context: Context,
        path: Path,
        instruction: Annotated[str, Field(description="The purpose of the edit, in one sentence.")],
        edit: Annotated[str, BeforeValidator(encode_objects), Field(description=EDIT)],
        expected_sha256: Annotated[
            Sha256 | None,
            Field(description="Hash of the file as it was read; if it differs now, the edit is refused as stale."),
        ] = None,
        dry_run: Annotated[bool, Field(description="Show the diff and write nothing.")] = False,
        min_certainty: Annotated[Certainty | None, Field(description=MIN_CERTAINTY)] = None,
    ) -> Annotated[CallToolResult, EditAnswer]:
        request = Edit(
            path=path,
            edit=edit,
            instruction=instruction,
            expected_sha256=expected_sha256,
            write=not dry_run,
            min_certainty=min_certainty,
        )
        call = _EditCall()
        async with slots.acquire(_find_holder(context)) as release:
            running = RequestContext(release_slot=release)
            work = partial(_edit, backend, request, running, call)
            return await call.run(
                context, running, partial(_respond, work, partial(edit_response, written=request.write))
            )

    @server.tool(
        description="Read a file, or some of its lines, with the sha256 to pass to edit_file.",
        annotations=ToolAnnotations(title="Read a file", read_only_hint=True, open_world_hint=False),
    )
    async def read_file(
        path: Path,
        start_line: Annotated[Line | None, Field(description="The first line, from 1.")] = None,
        end_line: Annotated[Line | None, Field(description="The last line.")] = None,
    ) -> Annotated[CallToolResult, FileAnswer]:
        render = partial(read_response, start_line=start_line, end_line=end_line)
        return await run_sync(_respond, partial(backend.read, path), render)

    @server.tool(
        description="Put the files of an earlier edit back as they were before it, if they have not changed since.",
        annotations=ToolAnnotations(
            title="Undo an edit",
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=False,
            open_world_hint=False,
        ),
    )
    async def undo_edit(
        id: Annotated[  # noqa: A002 -- the interface's name
            str | None,
            Field(description="The `write_id` of the edit, or the `id` of an undo. Without it: the last edit."),
        ] = None,
    ) -> Annotated[CallToolResult, UndoAnswer]:
        return await run_sync(_respond, partial(backend.undo, id), undo_response)

    @server.tool(
        description="Return the folder of the files, the model that merges where no rule decides, and its state.",
        annotations=ToolAnnotations(title="Describe the workspace", read_only_hint=True, open_world_hint=False),
    )
    async def workspace_status() -> Annotated[CallToolResult, StatusAnswer]:
        return await run_sync(_respond, backend.status, status_response)

    return server


class _Server(MCPServer):
    """Answers missing or invalid arguments like other errors, instead of with the validator's text."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as fault:
            if not isinstance(fault.__cause__, ValidationError):
                raise
            (tool,) = (each for each in await self.list_tools() if each.name == name)
            return fault_response(_describe_bad_argument(fault.__cause__, tool))


def _describe_bad_argument(error: ValidationError, tool: Tool) -> BadRequest:
    """Describe the first argument that is missing or wrong, and what to send instead."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    wanted = _to_clause(tool.input_schema["properties"][name]["description"])
    if first["type"] == "missing":
        return BadRequest(f"{tool.name} needs the argument '{name}': {wanted}.", field=name)
    why = _to_clause(first["msg"])
    return BadRequest(f"The argument '{name}' of {tool.name} ({wanted}) is wrong: {why}.", field=name)


def _to_clause(text: str) -> str:
    return text[:1].lower() + text[1:].removesuffix(".")


class _EditCall(ProgressListener):
    """A running edit: reports its progress to the client, and is cancelled when the client cancels the call."""

    def __init__(self) -> None:
        self._num_tokens = 0

    def on_tokens(self, num_tokens: int) -> None:
        """Record the number of tokens for the next report."""
        self._num_tokens = num_tokens

    async def run(self, context: Context, running: RequestContext, work: Callable[[], Result]) -> Result:
        """Run the work in a thread."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._report, context)
                result = await run_sync(work, abandon_on_cancel=True)
                group.cancel_scope.cancel()
        finally:
            running.cancel.cancel()
        return result

    async def _report(self, context: Context) -> None:
        started = time.monotonic()
        while True:
            await anyio.sleep(REPORT_EVERY_SECONDS)
            written = f"{self._num_tokens} tokens written" if self._num_tokens else "waiting for the model"
            await context.report_progress(round(time.monotonic() - started, 1), None, written)


def _find_holder(context: Context) -> str:
    """Return the sender whose limits apply; over stdio there is one agent."""
    request = context.request_context.request
    return "" if request is None else get_flow(request.scope)


def _edit(backend: Backend, edit: Edit, context: RequestContext, progress: ProgressListener) -> ApplyResult:
    with limit_rule_time(context.cancel):
        return backend.edit(edit, context, progress)


def _respond(work: Callable[[], Result], render: Callable[[Result], CallToolResult]) -> CallToolResult:
    """Return the answer with the result of the work, or with the error that it raises."""
    try:
        return render(work())
    except HunkError as fault:
        return fault_response(fault)
