"""Results and errors of MCP tools."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, ConfigDict, Field

from agent_runtime.errors import EditRefused, HunkError, ModelUnavailable, Stale
from agent_runtime.mcp.backends import BackendStatus, FileText
from agent_runtime.serialization import problem_to_json
from agent_runtime.types import ApplyResult, Certainty, FileResult, Method, Reason, Status, format_percent
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
        milliseconds=round(result.timings.get("total_ms", 0.0), 3),
    )
    texts = [_format_headline(file, written=written), *_list_failed_checks(file), f"sha256: {now}"]
    if file.diff:
        texts += ["", file.diff.rstrip("\n")]
    return CallToolResult(
        content=[_make_text("\n".join(texts))],
        structured_content=answer.model_dump(mode="json"),
        is_error=file.status == "rejected",
    )


def fault_response(fault: HunkError) -> CallToolResult:
    """Return an error: what is wrong, the nearest miss, what to send instead; its data is the problem of HTTP."""
    texts = [str(fault)]
    if isinstance(fault, Stale):
        texts.append(f"its sha256 is now {fault.current_sha256}")
    if isinstance(fault, EditRefused | ModelUnavailable):
        if isinstance(fault, ModelUnavailable) and fault.reasons:
            texts.append("A model is needed because no rule decides this edit; one that matches exactly needs none.")
        for reason in fault.reasons[:MAX_REASONS]:
            texts += _format_reason(reason, message=str(fault))
    return CallToolResult(
        content=[_make_text("\n".join(texts))], structured_content=problem_to_json(fault), is_error=True
    )


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


def status_response(status: BackendStatus) -> CallToolResult:
    """Return where the files are and where edits are merged."""
    answer = StatusAnswer(version=version("hunk"), **asdict(status))
    texts = [f"{name}: {value}" for name, value in answer.model_dump().items() if value not in (None, {})]
    return CallToolResult(content=[_make_text("\n".join(texts))], structured_content=answer.model_dump(mode="json"))


def _format_headline(file: FileResult, *, written: bool) -> str:
    if file.status == "noop":
        return f"{file.path}: nothing to do: {file.checks[0].detail}"
    if file.status == "rejected":
        return f"{file.path}: rejected by a check; nothing was written"
    return f"{file.path}: merged {file.summary}; {'written' if written else 'not written (dry_run)'}"


def _list_failed_checks(file: FileResult) -> list[str]:
    return [f"{check.name}: {check.detail}" for check in file.checks if not check.ok]


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
