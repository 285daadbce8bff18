"""The MCP tools and their answers: edit a file, read a file, undo an edit, describe the workspace."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio
from anyio.to_thread import run_sync
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, Tool, ToolAnnotations
from pydantic import BeforeValidator, Field, StringConstraints, ValidationError

from agent_runtime.apply.rule_process import limit_rule_time
from agent_runtime.certainty import Certainty
from agent_runtime.errors import BadRequest, HunkError
from agent_runtime.mcp.answers import (
    VALUES,
    edit_response,
    fault_response,
    files_response,
    read_response,
    status_response,
    undo_response,
)
from agent_runtime.mcp.backends import Backend, Edit
from agent_runtime.quotas import CpuSlots
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.server.auth import get_flow
from agent_runtime.server.schemas import encode_objects
from agent_runtime.types import ApplyResult
from agent_runtime.version import __version__

INSTRUCTIONS = (
    "Edits files of one folder: edit_file one file, edit_files several at once, and there it also creates, deletes "
    "and moves files. Send only what changes: the tool finds the place, merges, checks the result and writes it, or"
    " refuses with the nearest place and what to send instead; then correct the edit and call it again. It never "
    "guesses: where the old text of an edit is not found, or matches two places, the edit is refused. A snippet "
    "that shows the changed parts and quotes no old text is merged where its meaning is certain enough, and "
    "otherwise refused with the possible readings; the answer's certainty says how certain a merge is. Pass the "
    "sha256 that read_file or edit_file returned as base_sha256: if somebody has changed the file since, both "
    "changes are merged, or the edit is refused where they touch. As expected_sha256 it has every edit of a changed"
    " file refused. Paths are relative to the folder that workspace_status names."
)

EDIT = (
    "What changes, in one of these forms: SEARCH/REPLACE blocks (<<<<<<< SEARCH, the old lines, =======, the new "
    "lines, >>>>>>> REPLACE), which are certain and fast; a unified diff; a V4A patch; the changed parts "
    "of the file with a comment such as `// ... existing code ...` for what stays; or the whole file."
)

EDIT_OF_FILES = (
    "What changes, in a form that names the files: a V4A patch (*** Begin Patch, then for each file *** Update File: "
    "PATH, *** Add File: PATH, *** Delete File: PATH, or *** Update File: PATH and *** Move to: PATH, *** End Patch); "
    "a unified diff (/dev/null for a file that is created or deleted); or SEARCH/REPLACE blocks below lines with paths."
)

MIN_CERTAINTY = (
    "Refuse a merge that is less certain, and return the possible readings; most certain first: certain, likely, "
    "scored, model. A value below the server's own (usually likely: no model decides) has no effect."
)

DRY_RUN = "Show the diff and write nothing."

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
        annotations=_describe_writing("Edit a file"),
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
        base_sha256: Annotated[
            Sha256 | None,
            Field(
                description="Hash of the file as it was read; if it differs now, both changes are merged if they can."
            ),
        ] = None,
        dry_run: Annotated[bool, Field(description=DRY_RUN)] = False,
        min_certainty: Annotated[Certainty | None, Field(description=MIN_CERTAINTY)] = None,
    ) -> CallToolResult:
        request = Edit(
            path=path,
            edit=edit,
            instruction=instruction,
            expected_sha256=expected_sha256,
            base_sha256=base_sha256,
            write=not dry_run,
            min_certainty=min_certainty,
        )
        return await _run_edit(context, request, edit_response)

    @server.tool(
        description="Edit, create, delete or move files, all or none of those that the edit names.",
        annotations=_describe_writing("Edit several files"),
    )
    async def edit_files(
        context: Context,
        instruction: Annotated[str, Field(description="The purpose of the edit, in one sentence.")],
        edit: Annotated[str, Field(description=EDIT_OF_FILES)],
        dry_run: Annotated[bool, Field(description=DRY_RUN)] = False,
        min_certainty: Annotated[Certainty | None, Field(description=MIN_CERTAINTY)] = None,
    ) -> CallToolResult:
        request = Edit(edit=edit, instruction=instruction, write=not dry_run, min_certainty=min_certainty)
        return await _run_edit(context, request, files_response)

    async def _run_edit(context: Context, request: Edit, respond: Callable[..., CallToolResult]) -> CallToolResult:
        call = _EditCall()
        async with slots.acquire(_find_holder(context)) as release:
            running = RequestContext(release_slot=release)
            work = partial(_edit, backend, request, running, call)
            return await call.run(context, running, partial(_respond, work, partial(respond, written=request.write)))

    @server.tool(
        description="Read a file, or some of its lines, with the sha256 to pass to edit_file.",
        annotations=ToolAnnotations(title="Read a file", read_only_hint=True, open_world_hint=False),
    )
    async def read_file(
        path: Path,
        start_line: Annotated[Line | None, Field(description="The first line, from 1.")] = None,
        end_line: Annotated[Line | None, Field(description="The last line.")] = None,
    ) -> CallToolResult:
        render = partial(read_response, start_line=start_line, end_line=end_line)
        return await run_sync(_respond, partial(backend.read, path), render)

    @server.tool(
        description="Put the files of an earlier edit back as they were before it, if they have not changed since.",
        annotations=_describe_writing("Undo an edit"),
    )
    async def undo_edit(
        id: Annotated[  # noqa: A002 -- the interface's name
            str | None,
            Field(description="The `write_id` of the edit, or the `id` of an undo. Without it: the last edit."),
        ] = None,
    ) -> CallToolResult:
        return await run_sync(_respond, partial(backend.undo, id), undo_response)

    @server.tool(
        description="Return the folder of the files, the model that merges where no rule decides, and its state.",
        annotations=ToolAnnotations(title="Describe the workspace", read_only_hint=True, open_world_hint=False),
    )
    async def workspace_status() -> CallToolResult:
        return await run_sync(_respond, backend.status, status_response)

    return server


def _describe_writing(title: str) -> ToolAnnotations:
    """Return the hints of a tool that changes files."""
    return ToolAnnotations(
        title=title, read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
    )


class _Server(MCPServer):
    """Answers wrong arguments like other errors, not with the validator's text; gives values to those who ask."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        answer = await self._call_tool(name, arguments, context)
        asked = None if context is None else context.request_context.meta
        if not (asked or {}).get(VALUES):
            answer.meta = None
        return answer

    async def _call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None
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
