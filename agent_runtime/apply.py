"""Applies one edit: parse it, merge it by rule or by the model, verify the result, say how it was made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from agent_runtime.errors import BadFile, EditRefused
from agent_runtime.types import (
    ApplyRequest,
    ApplyResult,
    Certainty,
    FileResult,
    Merger,
    Method,
    Status,
    StepHook,
    Usage,
)
from editor import codec
from editor.diff import unified_diff
from editor.errors import CodecError, EditSyntaxError
from editor.formats import parse
from editor.languages import language_of
from editor.merge import merge
from editor.types import AlreadyApplied, Check, Merged, ParsedEdit, Unresolved
from editor.verify import passed, verify

ModelSource = Callable[[], Merger]
"""Gives the model when an edit needs it; raises ModelUnavailable where there is none (yet)."""


@dataclass(slots=True)
class Timings:
    """Milliseconds by phase of one apply."""

    by_phase: dict[str, float] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as `<name>_ms`."""
        started = time.perf_counter()
        yield
        self.by_phase[f"{name}_ms"] = (time.perf_counter() - started) * 1e3

    def finished(self) -> dict[str, float]:
        """All phases and `total_ms`."""
        return self.by_phase | {"total_ms": (time.perf_counter() - self._started) * 1e3}


@dataclass(frozen=True, slots=True)
class Outcome:
    r"""A merge, whoever made it, before it is verified. `text` has "\n" lines."""

    text: str
    method: Method
    rung: str
    num_candidates: int
    certainty: Certainty
    usage: Usage = field(default_factory=Usage)
    truncated: bool = False


class Applier:
    """The apply pipeline. Writes nothing; the model is asked for only when no rule decides."""

    def __init__(self, model: ModelSource) -> None:
        self._model = model

    def apply(self, request: ApplyRequest, on_step: StepHook = lambda _: None) -> ApplyResult:
        """Merge the request's edit into its file.

        Raises BadFile, EditRefused, BadRequest, TooLarge or ModelUnavailable; a merge that a check rejects is an
        answer with status `rejected`, not an error.
        """
        timings = Timings()
        with timings.phase("parse"):
            source = _decode(request.original)
            edit = _parse(request)
        outcome = self._merge(source.text, edit, request, timings, on_step)
        with timings.phase("verify"):
            if isinstance(outcome, AlreadyApplied):
                return _noop(request, outcome, timings)
            checks = verify(source.text, outcome.text, edit, language_of(request.path), truncated=outcome.truncated)
            merged = codec.encode(outcome.text, source, undo_nfc=outcome.method == "model")
        status: Status = "merged" if passed(checks) else "rejected"
        return ApplyResult(status, _file_result(request, merged, outcome, checks), outcome.usage, timings.finished())

    def _merge(
        self, text: str, edit: ParsedEdit, request: ApplyRequest, timings: Timings, on_step: StepHook
    ) -> Outcome | AlreadyApplied:
        with timings.phase("merge"):
            by_rule = merge(text, edit)
        if request.mode != "model":
            if isinstance(by_rule, AlreadyApplied):
                return by_rule
            if isinstance(by_rule, Merged):
                return Outcome(by_rule.text, "deterministic", by_rule.rung, by_rule.num_candidates, "certain")
            if request.mode == "deterministic":
                raise _refused(by_rule)
        num_candidates = by_rule.num_candidates if isinstance(by_rule, Merged | Unresolved) else 1
        made = self._model().merge(text, request, on_step)
        timings.by_phase |= made.timings
        return Outcome(made.text, "model", "model", num_candidates, "model", made.usage, made.truncated)


def _decode(original: bytes) -> codec.SourceText:
    try:
        return codec.decode(original)
    except CodecError as error:
        raise BadFile(str(error)) from error


def _parse(request: ApplyRequest) -> ParsedEdit:
    try:
        return parse(request.edit, request.format)
    except EditSyntaxError as error:
        reason = Unresolved(error.code, error.message, suggestion=error.suggestion)
        raise _refused(reason) from error


def _refused(reason: Unresolved) -> EditRefused:
    return EditRefused(reason.reason, reasons=(reason,))


def _noop(request: ApplyRequest, outcome: AlreadyApplied, timings: Timings) -> ApplyResult:
    unchanged = Outcome("", "deterministic", "exact", 1, "certain")
    checks = (Check("already_applied", True, outcome.detail),)
    return ApplyResult("noop", _file_result(request, request.original, unchanged, checks), Usage(), timings.finished())


def _file_result(request: ApplyRequest, merged: bytes, outcome: Outcome, checks: tuple[Check, ...]) -> FileResult:
    before, after = request.original.decode("utf-8"), merged.decode("utf-8")
    return FileResult(
        path=request.path,
        merged=after,
        diff=unified_diff(before, after, request.path or "file"),
        method=outcome.method,
        rung=outcome.rung,
        candidates=outcome.num_candidates,
        certainty=outcome.certainty,
        checks=checks,
        sha256_before=sha256(request.original).hexdigest(),
        sha256_after=sha256(merged).hexdigest(),
    )
