"""The editor's refusals in the short form in which they leave: candidates as small diffs, not as whole texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent_runtime.errors import EditRefused
from agent_runtime.types import Certainty, Mode, Options, Reading, Reason, is_as_sure
from agent_runtime.types.certainty import percent
from editor.diff import unified_diff
from editor.errors import EditSyntaxError
from editor.types import AlreadyApplied, Candidate, Merged, MergeOutcome, ParsedEdit, Unresolved

MAX_READINGS = 3
MAX_DIFF_LINES = 24
MAX_LINE_CHARS = 200
CONTEXT_LINES = 1

_BEYOND_A_MODEL = frozenset(
    {"several_files", "file_missing", "file_exists", "malformed", "empty_edit", "only_markers", "too_much_work"}
)


def refused(
    by_rule: MergeOutcome, edit: ParsedEdit, request: Options, text: str, path: str, *, is_update: bool = True
) -> Reason | None:
    """Return why an edit is refused with what the rules made of it; None where they or a model may decide.

    `is_update` says that the edit changes the text of one file, which is all that a model can do.
    """
    is_open, least = isinstance(by_rule, Unresolved), request.least_certainty
    if isinstance(by_rule, Unresolved) and not (is_update and may_ask_model(by_rule, edit, request.mode)):
        reason = reason_of(by_rule, text, path)
        return _with_modes(reason) if is_update and may_ask_model(by_rule, edit, "auto") else reason
    if is_update and (is_open or request.mode == "model"):
        is_enough = is_as_sure(_surest_by_model(by_rule, request), least)
        return None if is_enough else unsure(by_rule, f"No model was asked: min_certainty is '{least}'.", text, path)
    if isinstance(by_rule, Merged) and not is_as_sure(by_rule.certainty, least):
        share = "" if by_rule.confidence is None else f" ({percent(by_rule.confidence)})"
        why = f"The edit has a {by_rule.certainty} reading{share}, and min_certainty '{least}' refuses it."
        return unsure(by_rule, why, text, path)
    return None


def _with_modes(reason: Reason) -> Reason:
    """Return the reason of an edit that a model could decide, were it not for the mode."""
    other = f", or {reason.suggestion[:1].lower()}{reason.suggestion[1:]}" if reason.suggestion else "."
    return replace(reason, suggestion=f"Use mode 'model' or 'auto'{other}")


def unsure(by_rule: MergeOutcome, why: str, text: str, path: str) -> Reason:
    """Return the reason of an edit that `min_certainty` refuses, with its readings; `why` is a sentence about it."""
    if isinstance(by_rule, Unresolved):
        return replace(reason_of(by_rule, text, path), reason=f"{by_rule.reason} {why}")
    if isinstance(by_rule, AlreadyApplied):
        return Reason("uncertain", why, path=path)
    confidence = by_rule.confidence
    only = Candidate(by_rule.text, 1.0 if confidence is None else confidence, "the likeliest reading", confidence)
    readings = by_rule.candidates or (only,)
    suggestion = "Send SEARCH/REPLACE blocks with the exact lines to change."
    return reason_of(
        Unresolved("uncertain", why, by_rule.num_candidates, suggestion=suggestion, candidates=readings), text, path
    )


def _surest_by_model(by_rule: MergeOutcome, request: Options) -> Certainty:
    """Return the certainty that a model can reach at best: it chooses among readings only where there are any."""
    may_choose = isinstance(by_rule, Unresolved) and bool(by_rule.candidates) and request.decide != "generate"
    return "scored" if may_choose else "model"


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
        candidates=tuple(_reading(one, original) for one in kept),
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


def _reading(candidate: Candidate, original: str) -> Reading:
    confidence = None if candidate.confidence is None else round(candidate.confidence, 4)
    return Reading(round(candidate.score, 4), candidate.why, _short_diff(original, candidate.text), confidence)


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
