"""Applies an edit: parse, merge by rules or by the model, verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from agent_runtime.apply.cells import NotebookRequest, name_notebooks, read_notebook
from agent_runtime.apply.multi_file import build_patch_results, merge_patch_by_rule, parse_patch
from agent_runtime.apply.result import (
    NO_FILE,
    ONE_OF_SEVERAL,
    WHOLE_FILE,
    Outcome,
    build_file_result,
    build_reason,
    build_uncertain_reason,
    decode,
    encode_merged,
    find_endings_to_change,
    find_refusal,
    get_status,
    make_refusal,
    make_syntax_refusal,
    make_version,
    set_path,
)
from agent_runtime.apply.rule_process import LargeFilesError, RuleProcesses
from agent_runtime.apply.stale import decode_base, merge_into_current, name_base
from agent_runtime.certainty import is_as_sure
from agent_runtime.errors import EditRefused, ModelUnavailable, RulesOnly
from agent_runtime.llm.interface import Merger, ModelChoice, ModelMerge, ModelTask, render_blocks, resolve_reuse_mode
from agent_runtime.request_context import (
    NO_PROGRESS,
    AnswerCollector,
    ProgressListener,
    RequestContext,
    Timings,
    run_concurrently,
)
from agent_runtime.types import ApplyRequest, ApplyResult, FileResult, PatchRequest, Reader, Reason, sum_usage
from editor import codec
from editor.attribution import repair_result
from editor.errors import EditSyntaxError, format_list
from editor.execution import use_cache_of
from editor.formats import join_parts, parse_files
from editor.formats.markup import do_paths_fit, path_parts
from editor.grammars import find_language
from editor.merge import merge
from editor.types import AlreadyApplied, Check, Merged, MergeOutcome, ParsedEdit, Unresolved
from editor.verify import is_accepted, verify

ModelSource = Callable[[], Merger]
"""Returns the model when an edit needs it; raises ModelUnavailable if there is none (yet)."""


class Applier:
    """The apply pipeline. Writes nothing."""

    def __init__(self, model: ModelSource, processes: RuleProcesses | None = None) -> None:
        """`processes`: where the rules run on large texts, if given. The model is always asked in this process."""
        self._model = model
        self._processes = processes

    def apply(
        self, request: ApplyRequest, context: RequestContext | None = None, progress: ProgressListener = NO_PROGRESS
    ) -> ApplyResult:
        """Merge one edit into one file; of an edit of several files, the part that fits its path.

        Raises BadFile, EditRefused, BadRequest, TooLarge, ModelUnavailable and what `Merger.merge` raises. A merge that
        fails a check is a result with status `rejected`, not an error.
        """
        context, answers = context or RequestContext(), AnswerCollector(progress)
        progress = answers if request.trace else progress
        with use_cache_of(request.salt):
            result = self._apply_in_process("apply", request, [request], context, progress)
            if result is None:
                timings = Timings(progress.on_phase)
                file, outcome = _merge_file(request, timings)
                if isinstance(outcome, ModelTask):
                    (outcome,) = self._ask_model([outcome], context, progress)
                    timings.add(outcome.timings)
                with timings.phase("verify"):
                    merged = _build_result(file, outcome)
                result = ApplyResult((merged,), outcome.usage, timings.total())
        return answers.add_to(result) if request.trace else result

    def apply_each(
        self,
        requests: Sequence[ApplyRequest],
        context: RequestContext | None = None,
        progress: ProgressListener = NO_PROGRESS,
    ) -> ApplyResult:
        """Merge several edits, each into its own file: all or none. Raises what `apply` raises; EditRefused lists all
        reasons.
        """
        context, answers = context or RequestContext(), AnswerCollector(progress)
        wants_trace = any(request.trace for request in requests)
        progress = answers if wants_trace else progress
        with use_cache_of(requests[0].salt if requests else ""):  # all have one sender
            result = self._apply_in_process("apply_each", requests, requests, context, progress)
            if result is None:
                result = self._apply_each_here(requests, context, progress)
        return answers.add_to(result) if wants_trace else result

    def _apply_each_here(
        self, requests: Sequence[ApplyRequest], context: RequestContext, progress: ProgressListener
    ) -> ApplyResult:
        timings = Timings(progress.on_phase)
        merges: list[tuple[_ParsedFile, Outcome | ModelTask]] = []
        reasons: list[Reason] = []
        for request in requests:
            try:
                merges.append(_merge_file(request, timings))
            except EditRefused as fault:
                reasons += set_path(fault.reasons, request.path)
        if reasons:
            raise make_refusal(reasons)
        tasks = [outcome for _, outcome in merges if isinstance(outcome, ModelTask)]
        answers = iter(self._ask_model(tasks, context, progress))
        outcomes = [next(answers) if isinstance(outcome, ModelTask) else outcome for _, outcome in merges]
        files: list[FileResult] = []
        for (file, _), outcome in zip(merges, outcomes, strict=True):
            timings.add(outcome.timings)
            with timings.phase("verify"):
                try:
                    files.append(_build_result(file, outcome))
                except EditRefused as fault:
                    reasons += fault.reasons
        if reasons:
            raise make_refusal(reasons)
        return ApplyResult(tuple(files), sum_usage([outcome.usage for outcome in outcomes]), timings.total())

    def apply_patch(
        self,
        request: PatchRequest,
        read: Reader,
        context: RequestContext | None = None,
        progress: ProgressListener = NO_PROGRESS,
    ) -> ApplyResult:
        """Merge one edit into the files that it names, which `read` returns: all or none. Raises as `apply` does."""
        context, answers = context or RequestContext(), AnswerCollector(progress)
        progress = answers if request.trace else progress
        with use_cache_of(request.salt):
            result = self._apply_patch(request, read, context, progress)
        return answers.add_to(result) if request.trace else result

    def _apply_patch(
        self, request: PatchRequest, read: Reader, context: RequestContext, progress: ProgressListener
    ) -> ApplyResult:
        if self._processes is not None:
            first = self._processes.make_reader(request, read)
            read = first.read_any
            if first.has_room:
                with suppress(LargeFilesError):
                    return self._apply_patch_here(request, first, context, progress)
            result = self._processes.apply(("apply_patch", (request,)), context, progress, self._ask_model, read)
            if result is not None:
                return result
        return self._apply_patch_here(request, read, context, progress)

    def _apply_patch_here(
        self, request: PatchRequest, read: Reader, context: RequestContext, progress: ProgressListener
    ) -> ApplyResult:
        resolve_reuse_mode(request.reuse, "exact")
        timings = Timings(progress.on_phase)
        with timings.phase("parse"):
            edits, originals = parse_patch(request, read)
        with timings.phase("merge"):
            steps, tasks = merge_patch_by_rule(request, edits, originals)
        outcomes = self._ask_model(list(tasks.values()), context, progress)
        for outcome in outcomes:
            timings.add(outcome.timings)
        with timings.phase("verify"):
            files = build_patch_results(request, steps, dict(zip(tasks, outcomes, strict=True)), originals)
        return ApplyResult(files, sum_usage(outcome.usage for outcome in outcomes), timings.total())

    def _apply_in_process(
        self,
        method: str,
        argument: ApplyRequest | Sequence[ApplyRequest],
        requests: Sequence[ApplyRequest],
        context: RequestContext,
        progress: ProgressListener,
    ) -> ApplyResult | None:
        """Run the rules on large texts in another process; return None if they should run in this one."""
        if self._processes is None or not self._processes.is_large_enough(requests):
            return None
        return self._processes.apply((method, (argument,)), context, progress, self._ask_model)

    def _ask_model(
        self, tasks: Sequence[ModelTask], context: RequestContext, progress: ProgressListener
    ) -> list[Outcome]:
        """Have the model decide about independent files, concurrently."""
        works = [(task.request.path, partial(self._ask_model_exactly, task)) for task in tasks]
        return run_concurrently(works, context, progress)

    def _ask_model_exactly(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> Outcome:
        """Have the model decide; if a check rejects an answer from approximate KV, ask again with exact KV."""
        with use_cache_of(task.request.salt), name_notebooks():  # a thread of its own has no owner yet
            outcome = self._ask_model_once(task, context, progress)
            if not outcome.usage.reused_approximate:
                return outcome
            timings = Timings(progress.on_phase, dict(outcome.timings))
            with timings.phase("verify"):
                checks = verify(
                    *(task.text, outcome.text, task.edit, find_language(task.request.path)),
                    truncated=outcome.truncated,
                    instructions=(task.request.instruction,),
                    by_model=outcome.certainty == "model",
                )
            if is_accepted(checks + outcome.checks, task.request.policy):
                return replace(outcome, verified=checks, timings=timings.by_phase)
            again = self._ask_model_once(replace(task, request=replace(task.request, reuse="exact")), context, progress)
            timings.add(again.timings)
            return replace(again, usage=sum_usage([outcome.usage, again.usage]), timings=timings.by_phase)

    def _ask_model_once(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> Outcome:
        """Have the model write the merge or, if the request allows it, choose among the rules' readings."""
        by_rule, request = task.by_rule, task.request
        least = request.least_certainty
        can_write = is_as_sure("model", least)
        wants_score = request.decide == "score" or (
            request.decide == "auto" and (request.mode == "auto" or not can_write)
        )
        made: ModelMerge | ModelChoice
        try:
            model = self._model()
            if wants_score and isinstance(by_rule, Unresolved) and by_rule.candidates:
                made = model.choose(task, context, progress)
            else:
                made = model.merge(task, context, progress)
        except ModelUnavailable as fault:
            if isinstance(by_rule, Unresolved):
                fault.reasons = (build_reason(by_rule, task.text, request.path),)
                if isinstance(fault, RulesOnly):
                    raise EditRefused(str(fault), reasons=fault.reasons) from fault
            raise
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
                confidence=made.confidence,
                timings=made.timings,
            )
        if isinstance(made, ModelChoice) or not can_write:
            why = (
                "The model is sure of no reading. With min_certainty 'model' it writes the merge."
                if can_write
                else f"The model is sure of no reading, and min_certainty '{least}' refuses what it would write."
            )
            refusal = make_refusal([build_uncertain_reason(by_rule, why, task.text, request.path)])
            refusal.usage = made.usage
            raise refusal
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
            timings=made.timings,
        )


@dataclass(frozen=True, slots=True)
class _ParsedFile:
    """A request whose edit and file are parsed; of a notebook the file is the text of its cells."""

    request: ApplyRequest
    source: codec.SourceText
    edit: ParsedEdit
    notebook: NotebookRequest | None = None


def _merge_file(request: ApplyRequest, timings: Timings) -> tuple[_ParsedFile, Outcome | ModelTask]:
    """Parse and merge by rules, a notebook by the text of its cells or, if that is refused, as JSON.

    Raises as `_parse` and `_merge_by_rule` do.
    """
    notebook = read_notebook(request)
    if notebook is not None:
        try:
            with name_notebooks():
                file, outcome = _merge_text(notebook.cells, timings)
            return replace(file, notebook=notebook), outcome
        except EditRefused as fault:
            refused = fault
    try:
        return _merge_text(request, timings)
    except EditRefused:
        if notebook is None:
            raise
    raise refused


def _merge_text(request: ApplyRequest, timings: Timings) -> tuple[_ParsedFile, Outcome | ModelTask]:
    with timings.phase("parse"):
        file = _parse(request)
    with timings.phase("merge"), name_base(request):
        return file, _merge_by_rule(file)


def _parse(request: ApplyRequest) -> _ParsedFile:
    """Parse the file and its edit. The returned request holds only the edit of this file, for the model to read.

    Raises BadFile, EditRefused, or Unsupported for a reuse mode of sessions.
    """
    resolve_reuse_mode(request.reuse, "exact")
    source = decode_base(request)
    try:
        edits = parse_files(request.edit_text, request.format, request.path)
        edit = select_edit(request.path, edits)
    except EditSyntaxError as error:
        raise make_syntax_refusal(error, request.path) from error
    if edit.action == "delete" or edit.move_to not in ("", edit.path):
        raise make_refusal([_build_whole_file_reason(edit, request.path)])
    if len(edits) > 1:
        request = replace(request, edit=render_blocks(edit) or request.edit_text)
    return _ParsedFile(request, source, edit)


def select_edit(path: str, edits: Sequence[ParsedEdit]) -> ParsedEdit:
    """Return the edit for a file's path; an only edit fits any path. Raises EditSyntaxError if none or several fit.

    Two paths fit if they are equal, or one is the end of the other: `/home/me/src/a.py` and `src/a.py`. Several parts
    for one file are joined. What a diff, a patch or a call has for other files is left out, and `left_out` names them.
    A SEARCH/REPLACE block under another name may be meant for this file, so that is an error.
    """
    edits = join_parts(edits)
    if len(edits) == 1:
        return edits[0]
    fitting = [edit for edit in edits if do_paths_fit(path, edit.path)]
    same = [edit for edit in fitting if path_parts(edit.path) == path_parts(path)]
    if len(same or fitting) == 1 and edits[0].format != "search_replace":
        (edit,) = same or fitting
        return replace(edit, left_out=tuple(other.path for other in edits if other is not edit))
    names = ", ".join(edit.path for edit in edits[:10]) + (" and more" if len(edits) > 10 else "")
    which = "what is for the others would be lost beside" if len(fitting) == 1 else f"{len(fitting)} of them fit"
    which = which if fitting else "none of them is"
    target = f"; {which} '{path}'" if path else ""
    raise EditSyntaxError(
        "several_files",
        f"The edit is for {len(edits)} files: {names}{target}.",
        ONE_OF_SEVERAL,
    )


def _build_whole_file_reason(edit: ParsedEdit, path: str) -> Reason:
    what = f"moves '{edit.path}' to '{edit.move_to}'" if edit.move_to else f"deletes '{edit.path}'"
    return Reason(
        "open_intent",
        f"The edit {what}, but here only the text of one file can change.",
        suggestion=NO_FILE,
        path=path,
    )


def _merge_by_rule(file: _ParsedFile) -> Outcome | ModelTask:
    """Merge by rules; return a task for the model if they leave the edit open. Raises EditRefused."""
    text, request, edit = file.source.text, file.request, file.edit
    by_rule = _create_or_merge(text, edit, request)
    reason = find_refusal(by_rule, edit, request, text, request.path)
    if reason is not None:
        raise make_refusal([reason])
    if request.mode == "model" or isinstance(by_rule, Unresolved):
        return ModelTask(text, request, edit, by_rule)
    if isinstance(by_rule, AlreadyApplied):
        return Outcome("", "deterministic", "exact", 1, "certain", noop=by_rule)
    return Outcome(
        by_rule.text,
        "deterministic",
        by_rule.rung,
        by_rule.num_candidates,
        by_rule.certainty,
        ops=by_rule.ops,
        confidence=by_rule.confidence,
    )


def _create_or_merge(text: str, edit: ParsedEdit, request: ApplyRequest) -> MergeOutcome:
    if edit.action != "create" or not text:
        return merge(text, edit, find_language(request.path), (request.instruction,))
    created = merge("", edit)
    if isinstance(created, Merged) and created.text == text:
        return AlreadyApplied("The file is there, with just this text.")
    return Unresolved(
        "file_exists",
        f"The edit creates '{edit.path or request.path}', but the file is there already with another text.",
        suggestion=WHOLE_FILE,
    )


def _build_result(file: _ParsedFile, outcome: Outcome) -> FileResult:
    """Verify a merge, and return the result of its file as it is now; raises EditRefused for a conflict."""
    with name_notebooks():
        made = merge_into_current(_verify_merge(file, outcome), file.request)
    return made if file.notebook is None else file.notebook.build_result(made)


def _verify_merge(file: _ParsedFile, outcome: Outcome) -> FileResult:
    """Verify a merge, and return the result for the file that the edit was made for."""
    request, source, edit = file.request, file.source, file.edit
    left_out = format_list("left out what the edit has for", edit.left_out)
    remarks = (Check("other_files", True, left_out),) if left_out else ()
    before = make_version(request.original if request.base is None else request.base, source)
    if outcome.noop is not None:
        checks = (Check("already_applied", True, outcome.noop.detail), *remarks)
        return build_file_result(request.path, "noop", before, before, outcome, checks, encoding=source.encoding)
    language, by_model = find_language(request.path), outcome.certainty == "model"
    if by_model and not outcome.truncated:
        repaired = repair_result(source.text, outcome.text, edit, language, (request.instruction,))
        if repaired is not None:
            outcome = replace(outcome, text=repaired.text, repaired=repaired.lines, verified=None)
    after = encode_merged(outcome.text, source, by_model=by_model, ops=outcome.ops)
    # Of a model's text the written form counts: some slips of models are undone there.
    written = decode(after.data, request.path).text if by_model and after.data is not None else outcome.text
    endings = find_endings_to_change(source, after, outcome.ops)
    if outcome.verified is not None and written == outcome.text and not endings:
        checks = outcome.verified
    else:
        checks = verify(
            *(source.text, written, edit, language),
            truncated=outcome.truncated,
            instructions=(request.instruction,),
            by_model=by_model,
            endings=endings,
        )
    checks += outcome.checks
    status = get_status(checks, request.policy)
    return build_file_result(request.path, status, before, after, outcome, checks + remarks, encoding=source.encoding)
