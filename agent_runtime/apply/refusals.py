"""The editor's refusals in the short form in which they leave: candidates as small diffs, not as whole texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent_runtime.errors import EditRefused
from agent_runtime.types import Mode, Reading, Reason
from editor.diff import unified_diff
from editor.errors import EditSyntaxError
from editor.types import ParsedEdit, Unresolved

MAX_READINGS = 5
MAX_DIFF_LINES = 24
MAX_LINE_CHARS = 200
CONTEXT_LINES = 1

_BEYOND_A_MODEL = frozenset(
    {"several_files", "file_missing", "file_exists", "malformed", "empty_edit", "only_markers", "too_much_work"}
)


def may_ask_model(unresolved: Unresolved, edit: ParsedEdit, mode: Mode) -> bool:
    """Tell whether a model may decide an edit that no rule decides.

    A lazy snippet leaves to its reader where it belongs: the model is asked in the modes `auto` and `model`. Every
    other format says what it replaces, so that a missing or ambiguous place is a mistake of its sender: the model is
    asked in the mode `model` only. Some codes are beyond any model, which writes the text of one file.
    """
    if unresolved.code in _BEYOND_A_MODEL:
        return False
    return mode == "model" or (mode == "auto" and edit.format == "lazy")


def reason_of(unresolved: Unresolved, original: str, path: str) -> Reason:
    r"""Return what to tell the sender; `original` is the text ("\n" lines) that the candidates change."""
    kept = unresolved.candidates[:MAX_READINGS]
    return Reason(
        code=unresolved.code,
        reason=unresolved.reason,
        num_candidates=max(unresolved.num_candidates, len(unresolved.candidates)),
        nearest=unresolved.nearest,
        suggestion=unresolved.suggestion,
        candidates=tuple(Reading(round(one.score, 4), one.why, _short_diff(original, one.text)) for one in kept),
        path=path,
    )


def unreadable(error: EditSyntaxError, path: str = "") -> EditRefused:
    """Return the refusal of an edit that cannot be parsed."""
    return refusal([Reason(error.code, error.message, suggestion=error.suggestion, path=path)])


def refusal(reasons: Sequence[Reason]) -> EditRefused:
    """Return one error for all files that are refused; with several, its message names them."""
    if len(reasons) == 1:
        return EditRefused(reasons[0].reason, reasons=tuple(reasons))
    names = ", ".join(reason.path for reason in reasons[:10])
    more = f" and {len(reasons) - 10} more" if len(reasons) > 10 else ""
    return EditRefused(f"{len(reasons)} files cannot be edited: {names}{more}", reasons=tuple(reasons))


def with_path(reasons: Sequence[Reason], path: str) -> list[Reason]:
    """Return the reasons, those that name no file as those of `path`."""
    return [reason if reason.path else replace(reason, path=path) for reason in reasons]


def _short_diff(before: str, after: str) -> str:
    """Return the hunks of the change without file names, cut with a line that says so."""
    lines = unified_diff(before, after, "file", CONTEXT_LINES).removesuffix("\n").split("\n")[2:]
    shown = [
        line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} ({len(line) - MAX_LINE_CHARS} more)"
        for line in lines[:MAX_DIFF_LINES]
    ]
    if len(lines) > MAX_DIFF_LINES:
        shown.append(f"({len(lines) - MAX_DIFF_LINES} lines more)")
    return "\n".join(shown)
