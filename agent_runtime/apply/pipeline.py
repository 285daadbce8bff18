"""Applies an edit: parse, merge by rule or by the model, verify."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from agent_runtime.apply.multi_file import apply_patch
from agent_runtime.apply.result import (
    Outcome,
    decode,
    file_result,
    merged_version,
    original_version,
    other_endings,
    reason_of,
    refusal,
    refused,
    status_of,
    unreadable,
    unsure,
    with_path,
)
from agent_runtime.apply.rule_process import Aside, LargeFilesError
from agent_runtime.edit_selection import as_blocks, edit_for
from agent_runtime.errors import EditRefused, ModelUnavailable
from agent_runtime.llm.interface import Merger, ModelChoice, ModelMerge, ModelTask, mode_of
from agent_runtime.progress import Timings, Watcher, at_once, traced
from agent_runtime.types import (
    ApplyRequest,
    ApplyResult,
    FileResult,
    PatchRequest,
    Reader,
    Reason,
    Usage,
    is_as_sure,
    total_usage,
)
from editor import codec
from editor.attribution import repair_result
from editor.errors import EditSyntaxError, format_list
from editor.execution import use_cache_of
from editor.formats import parse_files
from editor.grammars import find_language
from editor.merge import merge
from editor.types import AlreadyApplied, Check, Merged, MergeOutcome, ParsedEdit, Unresolved
from editor.verify import is_accepted, verify

ModelSource = Callable[[], Merger]
"""Gives the model when an edit needs it; raises ModelUnavailable where there is none (yet)."""


_NOBODY = Watcher()


class Applier:
    """The apply pipeline. Writes nothing; who may decide what no rule decides is told by `refused`."""

    def __init__(self, model: ModelSource, aside: Aside | None = None) -> None:
        """What rules do with large texts is done `aside`, where that is given; the model is asked here."""
        self._model = model
        self._aside = aside

    def apply(self, request: ApplyRequest, watcher: Watcher = _NOBODY) -> ApplyResult:
        """Merge the request's edit into its file; of an edit of several files, the part that fits its path.

        Raises BadFile, EditRefused, BadRequest, TooLarge, ModelUnavailable and what else `Merger.merge` raises; a merge
        that a check rejects is an answer with status `rejected`, not an error.
        """
        with use_cache_of(request.salt):
            return traced(request.trace, watcher, lambda watcher: self._apply(request, watcher))

    def _apply(self, request: ApplyRequest, watcher: Watcher) -> ApplyResult:
        if self._aside is not None and self._aside.takes([request]):
            made = self._aside.ask(("apply", (request,)), watcher, self._decide)
            if made is not None:
                return made
        begun = _begin(request, watcher)
        return _finish(begun, self._asked([begun], watcher)[0])

    def apply_each(self, requests: Sequence[ApplyRequest], watcher: Watcher = _NOBODY) -> ApplyResult:
        """Merge several edits, each into its file: all or none. Raises what `apply` raises, EditRefused for all."""
        wanted = any(request.trace for request in requests)
        with use_cache_of(requests[0].salt if requests else ""):  # all are of one sender
            return traced(wanted, watcher, lambda watcher: self._apply_each(requests, watcher))

    def _apply_each(self, requests: Sequence[ApplyRequest], watcher: Watcher) -> ApplyResult:
        if self._aside is not None and self._aside.takes(requests):
            made = self._aside.ask(("apply_each", (requests,)), watcher, self._decide)
            if made is not None:
                return made
        timings = Timings()
        begun: list[_Begun] = []
        reasons: list[Reason] = []
        for request in requests:
            try:
                begun.append(_begin(request, watcher))
            except EditRefused as refused:
                reasons += with_path(refused.reasons, request.path)
        if reasons:
            raise refusal(reasons)
        outcomes = self._asked(begun, watcher)
        results = [_finish(one, outcome) for one, outcome in zip(begun, outcomes, strict=True)]
        for result in results:
            timings.add(result.timings)
        files = tuple(result.file for result in results)
        return ApplyResult(files, total_usage([result.usage for result in results]), timings.finished())

    def _asked(self, begun: Sequence[_Begun], watcher: Watcher) -> list[Outcome | AlreadyApplied]:
        """What becomes of each: as the rules have it, or as the model has where they leave it open."""
        tasks = [(one.by_rule, one.timings) for one in begun if isinstance(one.by_rule, ModelTask)]
        made = iter(self._ask_for_each(tasks, watcher))
        return [next(made) if isinstance(one.by_rule, ModelTask) else one.by_rule for one in begun]

    def _ask_for_each(self, tasks: Sequence[tuple[ModelTask, Timings]], watcher: Watcher) -> list[Outcome]:
        """Have the model decide on files that have nothing to do with one another, all at once."""
        return at_once(
            [(task.request.path, partial(self._ask_model, task, timings)) for task, timings in tasks], watcher
        )

    def _decide(self, tasks: Sequence[ModelTask], watcher: Watcher) -> list[tuple[Outcome, Mapping[str, float]]]:
        """The same with the milliseconds of each, for rules that work aside."""
        timed = [(task, Timings(watcher.entered)) for task in tasks]
        made = self._ask_for_each(timed, watcher)
        return [(outcome, timings.by_phase) for outcome, (_, timings) in zip(made, timed, strict=True)]

    def apply_patch(self, request: PatchRequest, read: Reader, watcher: Watcher = _NOBODY) -> ApplyResult:
        """Merge an edit of the files that it names, which `read` gives: all or none. Raises what `apply` raises."""
        with use_cache_of(request.salt):
            return traced(request.trace, watcher, lambda watcher: self._apply_patch(request, read, watcher))

    def _apply_patch(self, request: PatchRequest, read: Reader, watcher: Watcher) -> ApplyResult:
        if self._aside is not None:
            first = self._aside.reader(request, read)
            read = first.again
            if first.has_room:
                with suppress(LargeFilesError):
                    return self._patch(request, first, watcher)
            made = self._aside.ask(("apply_patch", (request,)), watcher, self._decide, read)
            if made is not None:
                return made
        return self._patch(request, read, watcher)

    def _patch(self, request: PatchRequest, read: Reader, watcher: Watcher) -> ApplyResult:
        mode_of(request.reuse, "exact")
        timings = Timings(watcher.entered)

        def ask(tasks: Sequence[ModelTask]) -> list[Outcome]:
            made = self._decide(tasks, watcher)
            for _, by_phase in made:
                timings.add(by_phase)
            return [outcome for outcome, _ in made]

        return apply_patch(request, read, ask, timings)

    def _ask_model(self, task: ModelTask, timings: Timings, watcher: Watcher) -> Outcome:
        """Have the model decide; what it made on approximate KV and a check rejects, it makes again on exact KV."""
        made = self._asked_once(task, timings, watcher)
        if not made.usage.reused_approximate:
            return made
        with timings.phase("verify"):
            is_sound = is_accepted(_checks(task, made), task.request.policy)
        if is_sound:
            return made
        exact = replace(task, request=replace(task.request, reuse="exact"))
        again = self._asked_once(exact, timings, watcher)
        return replace(again, usage=total_usage([made.usage, again.usage]))

    def _asked_once(self, task: ModelTask, timings: Timings, watcher: Watcher) -> Outcome:
        by_rule, request = task.by_rule, task.request
        try:
            made = _decided(self._model(), task, watcher)
        except ModelUnavailable as fault:
            if isinstance(by_rule, Unresolved):
                fault.reasons = (reason_of(by_rule, task.text, request.path),)
            raise
        timings.add(made.timings)
        num_candidates = 1 if isinstance(by_rule, AlreadyApplied) else by_rule.num_candidates
        if isinstance(made, ModelChoice) and made.number is not None:
            assert isinstance(by_rule, Unresolved)
            return Outcome(
                by_rule.candidates[made.number].text,
                "model",
                "model",
                num_candidates,
                "scored",
                made.usage,
                scope=made.scope,
                readings=made.readings,
                confidence=max((reading.score for reading in made.readings), default=None),
            )
        least = request.least_certainty
        if isinstance(made, ModelChoice) or not is_as_sure("model", least):
            why = f"The model is sure of no reading, and min_certainty '{least}' refuses what it would write."
            raise refusal([unsure(by_rule, why, task.text, request.path)])
        return Outcome(
            made.text,
            "model",
            "model",
            num_candidates,
            "model",
            made.usage,
            made.truncated,
            made.scope,
            made.checks,
            made.readings,
        )


@dataclass(frozen=True, slots=True)
class _Begun:
    """One apply as far as the rules take it: what they make of it, or the task that they leave to the model."""

    request: ApplyRequest
    source: codec.SourceText
    edit: ParsedEdit
    timings: Timings
    by_rule: Outcome | AlreadyApplied | ModelTask


def _begin(request: ApplyRequest, watcher: Watcher) -> _Begun:
    """Parse and merge by rule; raises what no model can mend."""
    mode_of(request.reuse, "exact")
    timings = Timings(watcher.entered)
    with timings.phase("parse"):
        source = decode(request.original, request.path)
        edit, request = _read(request)
    with timings.phase("merge"):
        by_rule = _by_rule(source.text, edit, request)
    return _Begun(request, source, edit, timings, _settled(source.text, edit, request, by_rule))


def _settled(
    text: str, edit: ParsedEdit, request: ApplyRequest, by_rule: MergeOutcome
) -> Outcome | AlreadyApplied | ModelTask:
    """What the rules decided, or the task of a model where the request lets one decide; else raises EditRefused."""
    reason = refused(by_rule, edit, request, text, request.path)
    if reason is not None:
        raise refusal([reason])
    if request.mode != "model":
        if isinstance(by_rule, AlreadyApplied):
            return by_rule
        if isinstance(by_rule, Merged):
            return Outcome(
                by_rule.text,
                "deterministic",
                by_rule.rung,
                by_rule.num_candidates,
                by_rule.certainty,
                ops=by_rule.ops,
                confidence=by_rule.confidence,
            )
    return ModelTask(text, request, edit, by_rule)


def _finish(begun: _Begun, outcome: Outcome | AlreadyApplied) -> ApplyResult:
    """Verify what was made."""
    request, source, timings = begun.request, begun.source, begun.timings
    with timings.phase("verify"):
        if isinstance(outcome, AlreadyApplied):
            file = _unchanged(request, source, outcome)
        else:
            file = _changed(request, source, begun.edit, outcome)
        file = replace(file, checks=file.checks + _remarks(begun.edit))
    usage = outcome.usage if isinstance(outcome, Outcome) else Usage()
    return ApplyResult((file,), usage, timings.finished())


def _remarks(edit: ParsedEdit) -> tuple[Check, ...]:
    """Say which files the edit is also for."""
    found = format_list("left out what the edit has for", edit.left_out)
    return (Check("other_files", True, found),) if found else ()


def _decided(model: Merger, task: ModelTask, watcher: Watcher) -> ModelMerge | ModelChoice:
    """What the model makes of an edit: it writes, or where that was asked for, chooses among the rules' readings."""
    by_rule, request = task.by_rule, task.request
    may_write = is_as_sure("model", request.least_certainty)
    scores = request.decide == "score" or (request.decide == "auto" and (request.mode == "auto" or not may_write))
    if scores and isinstance(by_rule, Unresolved) and by_rule.candidates:
        return model.choose(task, watcher)
    return model.merge(task, watcher)


def _checks(task: ModelTask, made: Outcome) -> tuple[Check, ...]:
    language = find_language(task.request.path)
    said, by_model = (task.request.instruction,), made.certainty == "model"
    return (
        verify(
            task.text, made.text, task.edit, language, truncated=made.truncated, instructions=said, by_model=by_model
        )
        + made.checks
    )


def _read(request: ApplyRequest) -> tuple[ParsedEdit, ApplyRequest]:
    """The edit of this file, and the request with no more of the edit's text than this file's, for a model to read."""
    try:
        edits = parse_files(request.edit, request.format, request.path)
        edit = edit_for(request.path, edits)
    except EditSyntaxError as error:
        raise unreadable(error, request.path) from error
    if edit.action == "delete" or edit.move_to not in ("", edit.path):
        raise refusal([_of_whole_files(edit, request.path)])
    if len(edits) > 1:
        request = replace(request, edit=as_blocks(edit) or request.edit)
    return edit, request


def _of_whole_files(edit: ParsedEdit, path: str) -> Reason:
    what = f"moves '{edit.path}' to '{edit.move_to}'" if edit.move_to else f"deletes '{edit.path}'"
    return Reason(
        "open_intent",
        f"The edit {what}, but here only the text of one file can change.",
        suggestion="Give no file beside the edit: it is then applied to the files that it names, below the root.",
        path=path,
    )


def _by_rule(text: str, edit: ParsedEdit, request: ApplyRequest) -> MergeOutcome:
    if edit.action != "create" or not text:
        return merge(text, edit, find_language(request.path), (request.instruction,))
    created = merge("", edit)
    if isinstance(created, Merged) and created.text == text:
        return AlreadyApplied("The file is there, with just this text.")
    return Unresolved(
        "file_exists",
        f"The edit creates '{edit.path or request.path}', but the file is there already with another text.",
        suggestion="Send an edit that updates the file, or the whole file with the format 'whole'.",
    )


def _changed(request: ApplyRequest, source: codec.SourceText, edit: ParsedEdit, outcome: Outcome) -> FileResult:
    language = find_language(request.path)
    if outcome.certainty == "model" and not outcome.truncated:
        mended = repair_result(source.text, outcome.text, edit, language, (request.instruction,))
        if mended is not None:
            outcome = replace(outcome, text=mended.text, repaired=mended.lines)
    by_model = outcome.certainty == "model"
    before = original_version(request.original, source)
    after = merged_version(outcome.text, source, by_model=by_model, ops=outcome.ops)
    # Of a model's text the written form counts: some slips of models are undone there.
    written = decode(after.data, request.path).text if by_model and after.data is not None else outcome.text
    checks = verify(
        *(source.text, written, edit, language),
        truncated=outcome.truncated,
        instructions=(request.instruction,),
        by_model=by_model,
        endings=other_endings(source, after, outcome.ops),
    )
    checks += outcome.checks
    status = status_of(checks, request.policy)
    return file_result(request.path, status, before, after, outcome, checks, encoding=source.encoding)


def _unchanged(request: ApplyRequest, source: codec.SourceText, done: AlreadyApplied) -> FileResult:
    as_it_is = original_version(request.original, source)
    nothing = Outcome("", "deterministic", "exact", 1, "certain")
    checks = (Check("already_applied", True, done.detail),)
    return file_result(request.path, "noop", as_it_is, as_it_is, nothing, checks, encoding=source.encoding)
