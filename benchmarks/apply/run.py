"""Run one case through the whole pipeline, and judge the result."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_runtime.apply.pipeline import Applier
from agent_runtime.certainty import CERTAINTIES
from agent_runtime.errors import EditRefused, HunkError, UnknownModel
from agent_runtime.types import ApplyRequest, ApplyResult, FileResult, Options, PatchRequest, Usage
from benchmarks.cases import AnyCase, Case, PatchCase, count_lines
from benchmarks.scoring import Outcome, judge
from editor import codec
from editor.diff import render_unified_diff
from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.syntax import list_nodes
from editor.types import Unresolved

_MAX_DIFF = 4_000


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one case.

    `certainty` is what the answer claimed, "" for a refusal; of several files the least of theirs. `syntax_equal` says
    that the merged text has the tree of the expected one: it differs at most in white space that means nothing. `scope`
    is what the model was given of the files, `scope_lines` how many lines.
    `reason` says why nothing was merged, `diff` how a wrong text differs from the expected one.
    """

    id: str
    shape: str
    style: str
    format: str
    expects: str
    num_lines: int
    inexact: bool
    variety: bool
    outcome: Outcome = "refused"
    wrong_certain: bool = False
    syntax_equal: bool = False
    certainty: str = ""
    method: str = ""
    rung: str = ""
    reason: str = ""
    detail: str = ""
    failed_checks: tuple[str, ...] = ()
    asked_model: bool = False
    seconds: float = 0.0
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    scope: str = ""
    scope_lines: int = 0
    diff: str = ""

    @property
    def ms(self) -> float:
        return self.seconds * 1e3

    @property
    def certain(self) -> bool:
        """Whether the answer was claimed certain, and no check rejected it."""
        return self.certainty == "certain" and not self.failed_checks


class RowJournal:
    """The rows of a run, kept in a file of JSON lines (none with None), so that a later run measures only the others.

    The first line holds the settings. Raises SystemExit if those of the file are not these: answers would be mixed.
    A last line that was cut short is measured again.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is None:
            return
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")] or [json.dumps(settings) + "\n"]
        if (kept := json.loads(whole[0])) != dict(settings):
            raise SystemExit(f"{path}: measured with {kept}, not {dict(settings)}; name another file with --resume")
        for line in whole[1:]:
            row = json.loads(line)
            self._rows[row["id"]] = Row(**row | {"failed_checks": tuple(row["failed_checks"])})
        path.write_text("".join(whole), encoding="utf-8")

    def find(self, case_id: str) -> Row | None:
        """Return the row of a case that was measured earlier."""
        return self._rows.get(case_id)

    def append(self, row: Row) -> Row:
        """Write the row at the end of the file; return it."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
        return row


def measure(case: AnyCase, applier: Applier, options: Options) -> Row:
    """Apply the case once, and judge the answer."""
    started = time.perf_counter()
    try:
        result = _apply(case, applier, options)
    except UnknownModel:  # a slip in the command, and no answer to the case
        raise
    except HunkError as fault:
        row = replace(_describe_refusal(case, options, fault), seconds=time.perf_counter() - started)
    else:
        row = replace(_describe_result(case, result), seconds=time.perf_counter() - started)
        row = _judge_file(row, case, result) if isinstance(case, Case) else _judge_files(row, case, result)
    return row


def _apply(case: AnyCase, applier: Applier, options: Options) -> ApplyResult:
    wanted = options.options()
    if isinstance(case, Case):
        wanted |= {"format": case.format, "instruction": case.instruction}
        return applier.apply(ApplyRequest(case.original.encode(), case.edit, path=case.path, **wanted))
    wanted["format"] = case.format
    data = {path: text.encode() for path, text in case.files.items()}
    return applier.apply_patch(PatchRequest(case.edit, **wanted), data.get)


def _describe_case(case: AnyCase) -> Row:
    """Return a row that says what the case is, and nothing of the answer yet."""
    if isinstance(case, Case):
        kind = (case.style, case.format, case.expects)
        return Row(case.id, case.shape, *kind, count_lines(case), case.inexact, case.variety)
    expects = "refusal" if case.refused else "text"
    return Row(case.id, case.shape, "", case.format, expects, count_lines(case), inexact=False, variety=False)


def _describe_refusal(case: AnyCase, options: Options, fault: HunkError) -> Row:
    reasons = fault.reasons if isinstance(fault, EditRefused) else ()
    outcome: Outcome = "refused"
    if isinstance(fault, EditRefused) and isinstance(case, Case):
        outcome = judge(case, None, claims_done=False, candidates=_list_candidates(case))
    return replace(
        _describe_case(case),
        outcome=outcome,
        reason=reasons[0].code if reasons else type(fault).__name__,
        detail=reasons[0].reason if reasons else str(fault),
        asked_model=fault.usage is not None or (options.mode == "model" and not isinstance(fault, EditRefused)),
        usage={} if fault.usage is None else _count_usage(fault.usage),
    )


def _count_usage(usage: Usage) -> dict[str, int]:
    names = ("prompt", "cached", "completion", "drafted", "accepted", "forwards")
    return {name: getattr(usage, name) for name in names}


def _list_candidates(case: Case) -> list[str]:
    """Return the texts of the readings that a refusal shows as diffs; they come from the rules alone."""
    source = codec.decode(case.original.encode())
    try:
        found = merge(source.text, parse(case.edit, case.format), find_language(case.path), (case.instruction,))
    except EditSyntaxError:
        return []
    texts = [one.text for one in found.candidates] if isinstance(found, Unresolved) else []
    return [codec.encode(text, source, by_model=False).decode() for text in texts]


def _describe_result(case: AnyCase, result: ApplyResult) -> Row:
    least = max(result.files, key=lambda file: CERTAINTIES.index(file.certainty), default=None)
    checks = {check.name: check.detail for file in result.files for check in file.checks if not check.ok}
    asked = [file for file in result.files if file.method == "model"]
    return replace(
        _describe_case(case),
        certainty=least.certainty if least else "certain",
        method=least.method if least else "deterministic",
        rung=least.rung if least else "",
        reason="rejected" if result.status == "rejected" else "",
        detail="; ".join(checks.values()),
        failed_checks=tuple(checks),
        asked_model=bool(asked),
        usage=_count_usage(result.usage),
        timings=result.timings,
        scope=", ".join(file.scope.kind for file in asked if file.scope is not None),
        scope_lines=sum(file.scope.lines for file in asked if file.scope is not None),
    )


def _judge_file(row: Row, case: Case, result: ApplyResult) -> Row:
    file = result.file
    merged = file.merged if result.status == "merged" else None
    claims_done = result.status == "noop"
    outcome = judge(case, merged, claims_done=claims_done)
    language = find_language(case.path)
    is_equal = merged is not None and (merged == case.expected or _is_same_tree(merged, case.expected, language))
    return replace(
        row,
        outcome=outcome,
        wrong_certain=outcome == "wrong" and file.certainty == "certain",
        syntax_equal=is_equal or (claims_done and outcome == "exact"),
        diff=_render_difference(case.expected, file.merged, case.path) if outcome != "exact" else "",
    )


def _judge_files(row: Row, case: PatchCase, result: ApplyResult) -> Row:
    after, expected = _list_files_after(case, result), dict(case.expected)
    if case.refused or result.status == "rejected":
        outcome: Outcome = "refused" if result.status == "rejected" else "wrong"
    else:
        outcome = "exact" if after == expected else "wrong"
    paths = sorted(path for path in after.keys() | expected.keys() if after.get(path) != expected.get(path))
    certain = [file for file in result.files if file.certainty == "certain"]
    is_equal = after.keys() == expected.keys() and all(
        _is_same_tree(after[path], expected[path], find_language(path)) for path in paths
    )
    return replace(
        row,
        outcome=outcome,
        wrong_certain=outcome == "wrong" and any(case.refused or _touches(file, paths) for file in certain),
        syntax_equal=is_equal and outcome != "refused",
        diff="".join(_render_difference(expected.get(path, ""), after.get(path, ""), path) for path in paths),
    )


def _list_files_after(case: PatchCase, result: ApplyResult) -> dict[str, str]:
    files = dict(case.files)
    for file in result.files:
        _put(files, file)
    return files


def _put(files: dict[str, str], file: FileResult) -> None:
    if file.action in ("delete", "move"):
        files.pop(file.path, None)
    if file.action != "delete":
        files[file.move_to or file.path] = file.merged


def _touches(file: FileResult, paths: Sequence[str]) -> bool:
    return file.path in paths or file.move_to in paths


def _is_same_tree(one: str, other: str, language: str | None) -> bool:
    found = list_nodes(one, language)
    return found is not None and found == list_nodes(other, language)


def _render_difference(expected: str, merged: str, path: str) -> str:
    return render_unified_diff(expected, merged, path, 2)[:_MAX_DIFF]
