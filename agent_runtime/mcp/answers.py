"""The answers of the MCP tools: values for the output schemas, and texts for a model."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, ConfigDict, Field

from agent_runtime.apply.result import IN_CONFLICT, NO_FILE, ONE_OF_SEVERAL, WHOLE_FILE
from agent_runtime.certainty import Certainty, format_percent
from agent_runtime.client.calls import Undo
from agent_runtime.errors import EditRefused, FileMissing, HunkError, ModelUnavailable, Stale
from agent_runtime.mcp.backends import BackendStatus, FileText
from agent_runtime.types import Action, ApplyResult, FileResult, Method, Reason, Status
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


class FileEditAnswer(BaseModel):
    """What became of one file of an edit."""

    path: str
    status: Status = Field(description="`rejected`: a check failed, nothing is written; `noop`: nothing to do.")
    action: Action = "update"
    move_to: str = Field("", description="The path after a `move`.")
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
    base_sha256: str = Field(description="Hash of the base if the file had changed since; then both changes are in it.")
    conflicts: int = Field(description="Conflicts that stand between markers in the file.")
    sha256_before: str
    sha256: str = Field(description="Hash of the file now; pass it as `expected_sha256` of the next edit.")


class EditAnswer(FileEditAnswer):
    """The outcome of an edit of one file."""

    written: bool
    write_id: str = Field(description="Pass it to undo_edit to undo this edit; empty if nothing was written or kept.")
    milliseconds: float


class FilesAnswer(BaseModel):
    """The outcome of an edit of several files: all are written, or none."""

    status: Status
    written: bool
    files: list[FileEditAnswer]
    write_id: str
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
    written = written and result.status == "merged"
    answer = EditAnswer(
        **_describe_file(result.file, written=written),
        written=written,
        write_id=result.write_id,
        milliseconds=_get_milliseconds(result),
    )
    return _respond_with(answer, _format_file(result.file, written=written), result)


def files_response(result: ApplyResult, *, written: bool) -> CallToolResult:
    """Return the answer to an edit of several files; an error as in `edit_response`."""
    written = written and result.status == "merged"
    answer = FilesAnswer(
        status=result.status,
        written=written,
        files=[FileEditAnswer(**_describe_file(file, written=written)) for file in result.files],
        write_id=result.write_id,
        milliseconds=_get_milliseconds(result),
    )
    is_held = result.status == "rejected" and len(result.files) > 1
    texts = ["Nothing was written, since a check rejects a file."] if is_held else []
    for file in result.files:
        texts += [*_format_file(file, written=written), ""]
    return _respond_with(answer, texts, result)


def _describe_file(file: FileResult, *, written: bool) -> dict[str, Any]:
    same = ("path", "status", "action", "move_to", "diff", "method", "rung", "certainty", "confidence", "candidates")
    more = ("base_sha256", "conflicts", "sha256_before")
    return {
        **{name: getattr(file, name) for name in (*same, *more)},
        "checks": [CheckAnswer.model_validate(asdict(check)) for check in file.checks],
        "repaired": [LineAnswer.model_validate(asdict(line)) for line in file.repaired],
        "sha256": _find_current_hash(file, written=written),
    }


def _find_current_hash(file: FileResult, *, written: bool) -> str:
    return file.sha256_after if written or file.status == "noop" else file.sha256_before


def _get_milliseconds(result: ApplyResult) -> float:
    return round(result.timings.get("total_ms", 0.0), 3)


def _format_file(file: FileResult, *, written: bool) -> list[str]:
    """Return the headline, the failed checks, the hash and the diff of a file as lines."""
    failed = [f"{check.name}: {check.detail}" for check in file.checks if not check.ok]
    now = _find_current_hash(file, written=written)
    texts = [_format_headline(file, written=written), *failed, *([f"sha256: {now}"] if now else [])]
    return [*texts, "", file.diff.rstrip("\n")] if file.diff else texts


def _respond_with(answer: BaseModel, texts: list[str], result: ApplyResult) -> CallToolResult:
    return CallToolResult(
        content=[_make_text("\n".join(texts).rstrip("\n"))],
        structured_content=answer.model_dump(mode="json"),
        is_error=result.status == "rejected",
    )


def fault_response(fault: HunkError) -> CallToolResult:
    """Return an error as text: what is wrong, the nearest miss, what to send instead.

    It has no structured content: MCP's TypeScript SDK checks that against the tool's output schema, in errors too, and
    its clients would show the schema's complaint and not this text.
    """
    if isinstance(fault, EditRefused | ModelUnavailable):
        fault.reasons = tuple(replace(reason, suggestion=_translate(reason.suggestion)) for reason in fault.reasons)
    texts = [str(fault)]
    if isinstance(fault, FileMissing):
        texts.append("edit_files creates a file: a V4A patch with '*** Add File: PATH', or a diff from /dev/null.")
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
    name = f"{file.path} -> {file.move_to}" if file.action == "move" else file.path
    done = {"create": "created", "delete": "deleted"}.get(file.action, f"merged {file.summary}")
    return f"{name}: {done}; {'written' if written else 'not written (dry_run)'}"


def _format_reason(reason: Reason, *, message: str) -> list[str]:
    about = f"{reason.path}: {reason.reason}" if reason.path else reason.reason
    texts = [] if reason.reason in message else ["", about]
    if reason.nearest:
        texts += ["", reason.nearest]
    for number, reading in enumerate(reason.candidates, 1):
        sure = "" if reading.confidence is None else f" ({format_percent(reading.confidence)} sure)"
        texts += ["", f"reading {number}: {reading.why}{sure}", reading.diff]
    if reason.suggestion:
        texts += ["", reason.suggestion]
    return texts


SUGGESTIONS = {
    ONE_OF_SEVERAL: "Call edit_files with this edit, which is then applied to all files that it names.",
    NO_FILE: "Call edit_files with this edit.",
    WHOLE_FILE: "Send an edit that updates the file: SEARCH/REPLACE blocks, or a diff.",
    IN_CONFLICT: "Call read_file again, and send an edit of the text that it returns.",
}
"""What to call instead, for suggestions that name fields of the HTTP API."""


def _translate(suggestion: str) -> str:
    return SUGGESTIONS.get(suggestion, suggestion)


def _make_text(text: str) -> TextContent:
    return TextContent(type="text", text=text)
