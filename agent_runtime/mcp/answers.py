"""The answers of the MCP tools: texts for a model, and values for programs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from mcp_types import CallToolResult, TextContent

from agent_runtime.apply.result import IN_CONFLICT, NO_FILE, ONE_OF_SEVERAL, WHOLE_FILE
from agent_runtime.certainty import format_percent
from agent_runtime.client.calls import Undo
from agent_runtime.errors import EditRefused, FileMissing, HunkError, ModelUnavailable, Stale
from agent_runtime.mcp.backends import BackendStatus, FileText
from agent_runtime.serialization import problem_to_json
from agent_runtime.types import ApplyResult, FileResult, Reason
from agent_runtime.version import __version__

MAX_REASONS = 5

MAX_READ_CHARACTERS = 200_000
"""Maximum characters of one answer: more would fill much of an agent's context."""


VALUES = "hunk/values"
"""Key of an answer's values in its `_meta`, for a program that asks for them by this key in the `_meta` of its call.

They are no structured content: of that, clients give a model the JSON and not the text, which is shorter and shows code
as it stands. Some give it `_meta`, too."""


def edit_response(result: ApplyResult, *, written: bool) -> CallToolResult:
    """Return the answer to an edit; one that a check rejected is an error, so that an agent does not overlook it."""
    written = written and result.status == "merged"
    values = _describe_file(result.file, written=written) | _describe_write(result, written=written)
    return _respond_with(values, [*_format_file(result.file, written=written), *_format_undo(result)], result)


def files_response(result: ApplyResult, *, written: bool) -> CallToolResult:
    """Return the answer to an edit of several files; an error as in `edit_response`."""
    written = written and result.status == "merged"
    files = [_describe_file(file, written=written) for file in result.files]
    values = {"status": result.status, "files": files} | _describe_write(result, written=written)
    is_held = result.status == "rejected" and len(result.files) > 1
    texts = ["Nothing was written, since a check rejects a file."] if is_held else []
    for file in result.files:
        texts += [*_format_file(file, written=written), ""]
    return _respond_with(values, [*texts, *_format_undo(result)], result)


def _describe_write(result: ApplyResult, *, written: bool) -> dict[str, Any]:
    milliseconds = round(result.timings.get("total_ms", 0.0), 3)
    return {"written": written, "write_id": result.write_id, "milliseconds": milliseconds}


def _describe_file(file: FileResult, *, written: bool) -> dict[str, Any]:
    same = ("path", "status", "action", "move_to", "diff", "method", "rung", "certainty", "confidence", "candidates")
    more = ("base_sha256", "conflicts", "sha256_before")
    return {
        **{name: getattr(file, name) for name in (*same, *more)},
        "checks": [asdict(check) for check in file.checks],
        "repaired": [asdict(line) for line in file.repaired],
        "sha256": _find_current_hash(file, written=written),
    }


def _find_current_hash(file: FileResult, *, written: bool) -> str:
    return file.sha256_after if written or file.status == "noop" else file.sha256_before


def _format_undo(result: ApplyResult) -> list[str]:
    return [f"undo_edit undoes it with the id {result.write_id}."] if result.write_id else []


def _format_file(file: FileResult, *, written: bool) -> list[str]:
    """Return the headline, the failed checks, the hash and the diff of a file as lines."""
    failed = [f"{check.name}: {check.detail}" for check in file.checks if not check.ok]
    now = _find_current_hash(file, written=written)
    texts = [_format_headline(file, written=written), *failed, *([f"sha256: {now}"] if now else [])]
    return [*texts, "", file.diff.rstrip("\n")] if file.diff else texts


def _respond_with(values: dict[str, Any], texts: list[str], result: ApplyResult) -> CallToolResult:
    is_error = result.status == "rejected"
    return CallToolResult(
        content=[_make_text("\n".join(texts).rstrip("\n"))], _meta={VALUES: values}, is_error=is_error
    )


def fault_response(fault: HunkError) -> CallToolResult:
    """Return an error: what is wrong, the nearest miss, what to send instead; its values are the problem of HTTP."""
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
    values = problem_to_json(fault)
    return CallToolResult(content=[_make_text("\n".join(texts))], _meta={VALUES: values}, is_error=True)


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
    truncated = len(shown) < len(asked) or any(len(line) > MAX_READ_CHARACTERS for line in asked)
    values = {
        "path": file.path,
        "text": text,
        "first_line": first,
        "last_line": last,
        "num_lines": len(lines),
        "truncated": truncated,
        "encoding": file.encoding,
        "sha256": file.sha256,
    }
    where = f"lines {first} to {last} of {len(lines)}" if shown else f"no lines: the file has {len(lines)}"
    more = f"; ask again with start_line {last + 1}" if truncated else ""
    about = f"{file.path}: {where}{more}; sha256: {file.sha256}"
    return CallToolResult(content=[_make_text(text), _make_text(about)], _meta={VALUES: values})


def undo_response(undo: Undo) -> CallToolResult:
    """Return which files were put back."""
    values = {"id": undo.id, "undoes": undo.undoes, "files": {file.path: file.after for file in undo.files}}
    texts = [f"{'put back' if file.after else 'removed'} {file.path}" for file in undo.files]
    texts += [f"undo_edit does it again with the id {undo.id}."] if undo.id else []
    return CallToolResult(content=[_make_text("\n".join(texts))], _meta={VALUES: values})


def status_response(status: BackendStatus) -> CallToolResult:
    """Return where the files are and where edits are merged."""
    values = {"version": __version__, **asdict(status)}
    texts = [f"{name}: {value}" for name, value in values.items() if value not in (None, {})]
    return CallToolResult(content=[_make_text("\n".join(texts))], _meta={VALUES: values})


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
