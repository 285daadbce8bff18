"""Applies an edit of several files, all or none.

A result has one entry for each file, even if the edit changes it several times: several updates, a created file that is
moved, or a deleted file that is created again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from agent_runtime.apply.result import (
    NO_VERSION,
    Outcome,
    Version,
    build_file_result,
    decode,
    encode_merged,
    find_refusal,
    get_status,
    make_refusal,
    make_syntax_refusal,
    make_version,
)
from agent_runtime.certainty import find_least_sure
from agent_runtime.errors import BadRequest, TooLarge
from agent_runtime.llm.interface import ModelTask, render_blocks
from agent_runtime.types import Action, ApplyRequest, FileResult, PatchRequest, Reader, Reason, Status
from editor import codec, patch_set
from editor.errors import EditSyntaxError
from editor.formats import parse_files
from editor.grammars import find_language
from editor.types import AlreadyApplied, Check, Merged, ParsedEdit, Policy, Unresolved
from editor.verify import verify

MAX_FILES = 1000

Originals = Mapping[str, tuple[bytes, codec.SourceText]]
"""The existing files by path: their bytes, and their decoded text."""


def parse_patch(request: PatchRequest, read: Reader) -> tuple[tuple[ParsedEdit, ...], Originals]:
    """Parse the edit of each file, and read the existing files.

    Raises EditRefused, TooLarge, BadFile, BadRequest if a file is not named, and what `read` raises.
    """
    edits = parse_edits(request)
    return edits, {path: (data, decode(data, path)) for path, data in read_files(edits, read).items()}


def merge_patch_by_rule(
    request: PatchRequest, edits: Sequence[ParsedEdit], originals: Originals
) -> tuple[list[EditStep], dict[int, ModelTask]]:
    """Merge each edit by rules; return the steps, and the tasks for the model by the index of their step.

    Raises EditRefused with all edits that neither the rules nor the model may decide.
    """
    texts = {path: source.text for path, (_, source) in originals.items()}
    merged = patch_set.merge_files(texts, edits).files
    steps = [EditStep(edit, result) for edit, result in zip(edits, merged, strict=True)]
    open_steps = _find_open_steps(steps, texts, request)
    return steps, {at: _make_task(step, texts, request) for at, step in enumerate(steps) if at in open_steps}


def build_patch_results(
    request: PatchRequest, steps: Sequence[EditStep], outcomes: Mapping[int, Outcome], originals: Originals
) -> tuple[FileResult, ...]:
    """Verify all merges, and return the results of the files; `outcomes` are the model's, by the index of the step."""
    if request.instruction:  # it counts in the checks of an approximate answer, and not in those of a set of edits
        outcomes = {at: replace(outcome, verified=None) for at, outcome in outcomes.items()}
    steps = [replace(step, by_model=outcomes.get(at)) for at, step in enumerate(steps)]
    files = _group_by_file(steps, originals)
    return tuple(file.build_result(originals, request.policy) for file in files)


def parse_edits(request: PatchRequest) -> tuple[ParsedEdit, ...]:
    """Return the edit of each file; raises EditRefused, TooLarge, or BadRequest if a file is not named."""
    try:
        edits = parse_files(request.edit_text, request.format)
    except EditSyntaxError as error:
        raise make_syntax_refusal(error) from error
    if len(edits) > MAX_FILES:
        raise TooLarge(f"the edit names {len(edits)} files; the limit is {MAX_FILES}")
    if not all(edit.path for edit in edits):
        raise BadRequest("the edit does not name its file: say which file it is for, or name it in it", field="path")
    return edits


def read_files(edits: Sequence[ParsedEdit], read: Reader) -> dict[str, bytes]:
    """Return those of the edits' files that exist; raises what `read` raises."""
    found = {path: read(path) for path in patch_set.list_paths(edits)}
    return {path: data for path, data in found.items() if data is not None}


@dataclass(frozen=True, slots=True)
class EditStep:
    """One edit of the set, its merge by rules, and the model's merge if the model was asked."""

    edit: ParsedEdit
    by_rule: patch_set.FileResult
    by_model: Outcome | None = None

    @property
    def text(self) -> str | None:
        return self.by_rule.text if self.by_model is None else self.by_model.text


@dataclass(slots=True)
class _PatchedFile:
    """One file during the set of edits: its current path and text, and its steps and checks so far."""

    path: str
    before: str | None
    text: str | None
    current_path: str
    steps: list[EditStep] = field(default_factory=list)
    checks: dict[str, Check] = field(default_factory=dict)

    def add_step(self, step: EditStep) -> None:
        """Apply one step to this file, and verify it."""
        for check in _verify(step, self.text, self.path):
            known = self.checks.get(check.name)
            if known is None or known.ok:
                self.checks[check.name] = check
        self.steps.append(step)
        self.text, self.current_path = step.text, step.by_rule.new_path

    def build_result(self, originals: Originals, policy: Policy) -> FileResult:
        """Return the file's entry in the result."""
        path = self.path if self.before is not None or self._is_noop else self.current_path
        data, source = originals.get(self.path) or originals.get(self.current_path) or (b"", codec.decode(b""))
        by_model = next((step.by_model for step in self.steps if step.by_model is not None), None)
        outcome = by_model or _summarize_rules(self.steps)
        if self._is_noop:
            after = before = make_version(data, source) if self.current_path in originals else NO_VERSION
            checks = self._build_noop_checks()
            status: Status = "noop"
        else:
            before = NO_VERSION if self.before is None else make_version(data, source)
            after = self._encode_result(source, by_model=by_model is not None and by_model.certainty == "model")
            checks = tuple(self.checks.values())
            status = get_status(checks, policy)
        move_to = self.current_path if self.current_path != path else ""
        action: Action = "move" if move_to else self._action
        encoding = source.encoding
        return build_file_result(
            path, status, before, after, outcome, checks, encoding=encoding, action=action, move_to=move_to
        )

    @property
    def _is_noop(self) -> bool:
        return all(_is_noop(step) for step in self.steps)

    @property
    def _action(self) -> Action:
        if self._is_noop:
            return self.steps[-1].edit.action
        if self.before is None:
            return "create"
        return "delete" if self.text is None else "update"

    def _build_noop_checks(self) -> tuple[Check, ...]:
        outcomes = (step.by_rule.outcome for step in self.steps)
        details = dict.fromkeys(outcome.detail for outcome in outcomes if isinstance(outcome, AlreadyApplied))
        return (Check("already_applied", True, " ".join(details)),)

    def _encode_result(self, source: codec.SourceText, *, by_model: bool) -> Version:
        if self.text is None:
            return NO_VERSION
        outcome = self.steps[0].by_rule.outcome
        ops = outcome.ops if len(self.steps) == 1 and not by_model and isinstance(outcome, Merged) else ()
        return encode_merged(self.text, source, by_model=by_model, ops=ops)


def _find_open_steps(steps: Sequence[EditStep], texts: Mapping[str, str], request: PatchRequest) -> set[int]:
    """Return the indices of the steps that the model has to decide; raises EditRefused for those that it may not
    decide.
    """
    named = Counter(path for step in steps for path in (step.edit.path, step.edit.move_to) if path)
    open_steps: set[int] = set()
    reasons: list[Reason] = []
    for at, step in enumerate(steps):
        outcome = step.by_rule.outcome
        is_plain = _is_plain_update(step, named)
        path = step.by_rule.path
        reason = find_refusal(outcome, step.edit, request, texts.get(path, ""), path, is_update=is_plain)
        if reason is not None:
            reasons.append(reason)
        elif is_plain and (request.mode == "model" or isinstance(outcome, Unresolved)):
            open_steps.add(at)
    if reasons:
        raise make_refusal(reasons)
    return open_steps


def _is_plain_update(step: EditStep, named: Counter[str]) -> bool:
    edit = step.edit
    alone = named[edit.path] == 1 and edit.move_to in ("", edit.path)
    return edit.action == "update" and alone and bool(render_blocks(edit))


def _make_task(step: EditStep, texts: Mapping[str, str], request: PatchRequest) -> ModelTask:
    path = step.by_rule.path
    single = ApplyRequest(original=b"", edit=render_blocks(step.edit), path=path, **request.options())
    return ModelTask(texts[path], single, step.edit, step.by_rule.outcome)


def _group_by_file(steps: Sequence[EditStep], originals: Originals) -> list[_PatchedFile]:
    """Group the steps by file.

    If a file was moved to the path of another file, an edit of that path means the other file, as in a diff that swaps
    two files.
    """
    files: list[_PatchedFile] = []
    for step in steps:
        path = step.by_rule.path
        file = next((one for one in reversed(files) if one.current_path == path), None)
        if file is None or (file.path != path and path in originals):
            moved_away = any(one.path == path for one in files)
            before = originals[path][1].text if path in originals and not moved_away else None
            file = _PatchedFile(path, before, before, path)
            files.append(file)
        file.add_step(step)
    return files


def _verify(step: EditStep, before: str | None, path: str) -> tuple[Check, ...]:
    """Return the checks of one step; none for a deleted file or a step that changes nothing."""
    text, outcome = step.text, step.by_model
    if text is None or _is_noop(step):
        return ()
    language = find_language(path)
    if outcome is None:
        return verify(before or "", text, step.edit, language)
    if outcome.verified is not None:
        return outcome.verified + outcome.checks
    by_model = outcome.certainty == "model"
    checks = verify(before or "", text, step.edit, language, truncated=outcome.truncated, by_model=by_model)
    return checks + outcome.checks


def _is_noop(step: EditStep) -> bool:
    return step.by_model is None and isinstance(step.by_rule.outcome, AlreadyApplied)


def _summarize_rules(steps: Sequence[EditStep]) -> Outcome:
    made = [step.by_rule.outcome for step in steps if isinstance(step.by_rule.outcome, Merged)]
    rung = made[-1].rung if made else "exact"
    known = [one.confidence for one in made if one.confidence is not None]
    return Outcome(
        "",
        "deterministic",
        rung,
        max((one.num_candidates for one in made), default=1),
        find_least_sure(one.certainty for one in made),
        confidence=prod(known) if known else None,
    )
