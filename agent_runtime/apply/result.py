"""Results of a file: text, diff and status; and the reasons of a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from agent_runtime.certainty import Certainty, format_percent, is_as_sure
from agent_runtime.errors import BadFile, EditRefused
from agent_runtime.types import (
    Action,
    FileResult,
    GivenScope,
    Method,
    Mode,
    Options,
    Reading,
    Reason,
    ScoredReading,
    Status,
    Usage,
)
from editor import codec
from editor.diff import LineOp, render_unified_diff
from editor.errors import CodecError, EditSyntaxError
from editor.types import (
    AlreadyApplied,
    Candidate,
    Check,
    Merged,
    MergeOutcome,
    ParsedEdit,
    Policy,
    UnaccountedLine,
    Unresolved,
)
from editor.verify import is_accepted


def render_file_diff(before: str | None, after: str | None, path: str, move_to: str = "") -> str:
    """Return the diff from `before` to `after`, "" if they are equal; None stands for no file."""
    if before == after and not move_to:
        return ""
    old, new = _render_headers(path)[0], _render_headers(move_to or path)[1]
    extended = ""
    if before is None or after is None or move_to:
        extended = f"diff --git {old.removeprefix('--- ').rstrip()} {new.removeprefix('+++ ').rstrip()}\n"
    if before is None:
        extended, old = extended + "new file mode 100644\n", "--- /dev/null"
    if after is None:
        extended, new = extended + "deleted file mode 100644\n", "+++ /dev/null"
    if move_to:
        extended += f"rename from {path}\nrename to {move_to}\n"
    hunks = render_unified_diff(before or "", after or "", "file").split("\n", 2)[2:]
    return extended + (f"{old}\n{new}\n{hunks[0]}" if hunks else "")


def _render_headers(path: str) -> list[str]:
    """Return the two lines that name a file; the name is quoted if necessary."""
    return render_unified_diff("", "\n", path).split("\n")[:2]


@dataclass(frozen=True, slots=True)
class Outcome:
    r"""A merge by rules or by the model. `text` has "\n" lines; `ops` as in `editor.types.Merged`.

    timings: milliseconds of the model's phases. verified: the checks of `text`, if they were made already. noop: set if
    there is nothing to change.
    """

    text: str
    method: Method
    rung: str
    num_candidates: int
    certainty: Certainty
    usage: Usage = field(default_factory=Usage)
    truncated: bool = False
    scope: GivenScope | None = None
    checks: tuple[Check, ...] = ()
    readings: tuple[ScoredReading, ...] = ()
    repaired: tuple[UnaccountedLine, ...] = ()
    ops: tuple[LineOp, ...] = ()
    confidence: float | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    verified: tuple[Check, ...] | None = None
    noop: AlreadyApplied | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a file: its bytes, and its whole text with BOM and line endings; or `NO_VERSION`."""

    data: bytes | None
    text: str | None

    @property
    def sha256(self) -> str:
        """The hash of the bytes, "" if there is no file."""
        return "" if self.data is None else sha256(self.data).hexdigest()


NO_VERSION = Version(None, None)


def decode(data: bytes, path: str) -> codec.SourceText:
    """Decode a file's bytes; raises BadFile."""
    try:
        return codec.decode(data)
    except CodecError as error:
        raise BadFile(f"{path}: {error}" if path else str(error)) from error


def make_version(data: bytes, source: codec.SourceText) -> Version:
    """Return the version of a file with these bytes."""
    return Version(data, data.decode(source.encoding))


def encode_merged(
    outcome_text: str, source: codec.SourceText, *, by_model: bool, ops: Sequence[LineOp] = ()
) -> Version:
    r"""Encode a merged text with "\n" lines in the file's encoding, BOM and endings; raises BadFile if that is not
    possible.
    """
    try:
        data = codec.encode(outcome_text, source, by_model=by_model, ops=ops)
    except CodecError as error:
        raise BadFile(str(error)) from error
    return make_version(data, source)


def find_endings_to_change(source: codec.SourceText, after: Version, ops: Sequence[LineOp] = ()) -> tuple[int, ...]:
    """Return the unchanged lines (from 0) whose ending would change; line 0 if the byte order mark would change."""
    if after.data is None:
        return ()
    changes = codec.compare_bytes(source, after.data, ops)
    return (*changes.endings, *((0,) if changes.bom else ()))


def get_status(checks: Sequence[Check], policy: Policy) -> Status:
    """Return `merged`, or `rejected` if a check failed that counts under the policy."""
    return "merged" if is_accepted(checks, policy) else "rejected"


def build_file_result(
    path: str,
    status: Status,
    before: Version,
    after: Version,
    outcome: Outcome,
    checks: tuple[Check, ...],
    *,
    encoding: str,
    action: Action = "update",
    move_to: str = "",
) -> FileResult:
    """Build the entry of one file in the result."""
    return FileResult(
        path=path,
        status=status,
        merged=after.text or "",
        diff=render_file_diff(before.text, after.text, path or "file", move_to) if status != "noop" else "",
        method=outcome.method,
        rung=outcome.rung,
        candidates=outcome.num_candidates,
        certainty=outcome.certainty,
        checks=checks,
        sha256_before=before.sha256,
        sha256_after=after.sha256,
        encoding=encoding,
        action=action,
        move_to=move_to,
        scope=outcome.scope,
        readings=tuple(sorted(outcome.readings, key=lambda reading: -reading.score)),
        repaired=outcome.repaired,
        confidence=outcome.confidence,
    )


ONE_OF_SEVERAL = (
    "Name the one that is meant by its path, or give no file: the edit is then applied to all that it names."
)
NO_FILE = "Give no file beside the edit: it is then applied to the files that it names, below the root."
WHOLE_FILE = "Send an edit that updates the file, or the whole file with the format 'whole'."
IN_CONFLICT = "Read the file again and send an edit of its text now, or have both versions put between markers."
"""Suggestions that name fields of a request; the MCP tools have their own words for them."""

MAX_READINGS = 3
MAX_DIFF_LINES = 24
MAX_LINE_CHARS = 200
CONTEXT_LINES = 1

_RULES_ONLY = frozenset(
    {"several_files", "file_missing", "file_exists", "malformed", "empty_edit", "only_markers", "too_much_work"}
)


def find_refusal(
    by_rule: MergeOutcome, edit: ParsedEdit, request: Options, text: str, path: str, *, is_update: bool = True
) -> Reason | None:
    """Return the reason to refuse an edit after the rules; None if the rules or a model may decide it.

    `is_update`: the edit changes only the text of one file, which is all that a model can do.
    """
    is_open, least = isinstance(by_rule, Unresolved), request.least_certainty
    if isinstance(by_rule, Unresolved) and not (is_update and can_ask_model(by_rule, edit, request.mode)):
        reason = build_reason(by_rule, text, path)
        return _suggest_mode(reason) if is_update and can_ask_model(by_rule, edit, "auto") else reason
    if is_update and (is_open or request.mode == "model"):
        is_enough = is_as_sure(_find_model_certainty(by_rule, request), least)
        return (
            None
            if is_enough
            else build_uncertain_reason(by_rule, f"No model was asked: min_certainty is '{least}'.", text, path)
        )
    if isinstance(by_rule, Merged) and not is_as_sure(by_rule.certainty, least):
        share = "" if by_rule.confidence is None else f" ({format_percent(by_rule.confidence)})"
        why = f"The edit has a {by_rule.certainty} reading{share}, and min_certainty '{least}' refuses it."
        return build_uncertain_reason(by_rule, why, text, path)
    return None


def _suggest_mode(reason: Reason) -> Reason:
    """Return the reason with the advice to allow a model, which could decide this edit."""
    other = f", or {reason.suggestion[:1].lower()}{reason.suggestion[1:]}" if reason.suggestion else "."
    return replace(reason, suggestion=f"Use mode 'model' or 'auto'{other}")


def build_uncertain_reason(by_rule: MergeOutcome, why: str, text: str, path: str) -> Reason:
    """Return the reason of an edit that `min_certainty` refuses, with its readings; `why` is a sentence about it."""
    if isinstance(by_rule, Unresolved):
        return replace(build_reason(by_rule, text, path), reason=f"{by_rule.reason} {why}")
    if isinstance(by_rule, AlreadyApplied):
        return Reason("uncertain", why, path=path)
    confidence = by_rule.confidence
    only = Candidate(by_rule.text, 1.0 if confidence is None else confidence, "the likeliest reading", confidence)
    readings = by_rule.candidates or (only,)
    suggestion = "Send SEARCH/REPLACE blocks with the exact lines to change."
    return build_reason(
        Unresolved("uncertain", why, by_rule.num_candidates, suggestion=suggestion, candidates=readings), text, path
    )


def _find_model_certainty(by_rule: MergeOutcome, request: Options) -> Certainty:
    """Return the best certainty that a model can reach: it can only choose if there are readings."""
    may_choose = isinstance(by_rule, Unresolved) and bool(by_rule.candidates) and request.decide != "generate"
    return "scored" if may_choose else "model"


def can_ask_model(unresolved: Unresolved, edit: ParsedEdit, mode: Mode) -> bool:
    """Return whether a model may decide an edit that no rule decides.

    A lazy snippet leaves its place to the reader: the model is asked in the modes `auto` and `model`. Every other
    format says what it replaces, so a missing or ambiguous place is a mistake of the sender, and the model is asked
    only in the mode `model`. Some codes are never decided by a model, which can only write the text of one file.
    """
    if unresolved.code in _RULES_ONLY:
        return False
    return mode == "model" or (mode == "auto" and edit.format == "lazy")


def build_reason(unresolved: Unresolved, original: str, path: str) -> Reason:
    r"""Return the reason for the sender; `original` is the text ("\n" lines) that the candidates change."""
    kept = unresolved.candidates[:MAX_READINGS]
    return Reason(
        code=unresolved.code,
        reason=unresolved.reason,
        num_candidates=max(unresolved.num_candidates, len(unresolved.candidates)),
        nearest=unresolved.nearest,
        suggestion=unresolved.suggestion,
        candidates=tuple(_build_reading(one, original) for one in kept),
        path=path,
    )


def make_syntax_refusal(error: EditSyntaxError, path: str = "") -> EditRefused:
    """Return the refusal of an edit that cannot be parsed."""
    return make_refusal([Reason(error.code, error.message, suggestion=error.suggestion, path=path)])


def make_refusal(reasons: Sequence[Reason]) -> EditRefused:
    """Return one error for all refused files; with several, its message names them."""
    if len(reasons) == 1:
        return EditRefused(reasons[0].reason, reasons=tuple(reasons))
    names = ", ".join(reason.path for reason in reasons[:10])
    more = f" and {len(reasons) - 10} more" if len(reasons) > 10 else ""
    return EditRefused(f"{len(reasons)} files cannot be edited: {names}{more}", reasons=tuple(reasons))


def set_path(reasons: Sequence[Reason], path: str) -> list[Reason]:
    """Set the path of the reasons that have none."""
    return [reason if reason.path else replace(reason, path=path) for reason in reasons]


def _build_reading(candidate: Candidate, original: str) -> Reading:
    confidence = None if candidate.confidence is None else round(candidate.confidence, 4)
    return Reading(round(candidate.score, 4), candidate.why, _render_short_diff(original, candidate.text), confidence)


def _render_short_diff(before: str, after: str) -> str:
    """Return the hunks of the change without file names; a last line says how much was cut."""
    lines = render_unified_diff(before, after, "file", CONTEXT_LINES).removesuffix("\n").split("\n")[2:]
    shown = [
        line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} ({len(line) - MAX_LINE_CHARS} more)"
        for line in lines[:MAX_DIFF_LINES]
    ]
    if len(lines) > MAX_DIFF_LINES:
        shown.append(f"({len(lines) - MAX_DIFF_LINES} lines more)")
    return "\n".join(shown)
