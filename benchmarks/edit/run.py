"""Run one case through the editor, judge the result and time it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.cases import AnyCase, Case, PatchCase, count_lines
from benchmarks.scoring import Outcome, hides_deletion, is_same, is_same_but_blank_lines, judge
from editor import codec
from editor.errors import EditSyntaxError
from editor.execution import clear_caches
from editor.formats import parse, parse_files
from editor.grammars import find_language
from editor.merge import merge
from editor.patch_set import merge_files
from editor.types import AlreadyApplied, Check, FormatName, Merged, MergeOutcome, Unresolved
from editor.verify import verify


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one case; `certain` says that the editor claimed its answer certain and every check let it pass.

    `certainty` is what it claimed: certain, likely, or "" of a refusal, with its `confidence` where it has one. `first`
    says whether its first reading is right, `among` whether one of all is, each byte for byte and modulo blank lines; a
    merge is the first reading even where a check rejects it. `hidden` is `hides_deletion` of the case.
    """

    id: str
    shape: str
    format: str
    detected_format: str
    outcome: Outcome
    certain: bool
    wrong_certain: bool
    expects: str
    rung: str
    reason: str
    detail: str
    failed_checks: tuple[str, ...]
    num_candidates: int
    num_lines: int
    parse_ms: float
    merge_ms: float
    verify_ms: float
    inexact: bool
    variety: bool
    style: str = ""
    language: str = ""
    certainty: str = ""
    confidence: float | None = None
    first: bool = False
    first_modulo: bool = False
    among: bool = False
    among_modulo: bool = False
    hidden: bool = False

    @property
    def ms(self) -> float:
        """Milliseconds of the whole way: parse, merge, verify."""
        return self.parse_ms + self.merge_ms + self.verify_ms


class _Answer(NamedTuple):
    """What the editor said to one edit: the outcome, the checks of a merge, and the times of the three phases."""

    outcome: MergeOutcome
    checks: tuple[Check, ...]
    times_ms: tuple[float, float, float]


def measure(case: AnyCase, repeats: int) -> Row:
    """Run a case once to warm up and `repeats` times more; the times are medians."""
    return (
        _measure_text(case, case.format, case.edit, repeats)
        if isinstance(case, Case)
        else _measure_patch(case, repeats)
    )


def measure_also(case: Case, repeats: int) -> list[Row]:
    """Run the case in the other formats that can say the same."""
    return [_measure_text(case, format_name, edit, repeats) for format_name, edit in case.also.items()]


def _measure_patch(case: PatchCase, repeats: int) -> Row:
    """By Codex's own rules where the case is Codex's; `detail` says what comes of it by default, where that differs."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        found = _apply_patch(case, compat=case.shape == "codex")
        times.append((time.perf_counter() - started) * 1e3)
    done, files = found
    right = files == dict(case.expected)
    if case.refused:
        # By those rules a patch may fail half way and leave what it did.
        outcome: Outcome = "refused" if right and not done else "wrong"
    else:
        outcome = "exact" if right and done else "wrong" if done else "refused"
    return Row(
        id=case.id,
        shape=case.shape,
        format=case.format,
        detected_format=_detect_format(case.edit),
        outcome=outcome,
        certain=done,
        wrong_certain=outcome == "wrong" and done,
        expects="refusal" if case.refused else "text",
        rung="exact" if done else "",
        reason="" if done else "refused",
        detail=_describe_default(case) if case.shape == "codex" else "",
        failed_checks=(),
        num_candidates=int(done),
        num_lines=count_lines(case),
        parse_ms=0.0,
        merge_ms=statistics.median(times[1:] or times),
        verify_ms=0.0,
        inexact=False,
        variety=False,
    )


def _apply_patch(case: PatchCase, *, compat: bool) -> tuple[bool, dict[str, str]]:
    """Return whether the patch was applied, and the files afterwards."""
    try:
        result = merge_files(case.files, parse_files(case.edit, case.format), compat=compat)
    except EditSyntaxError:
        return False, dict(case.files)
    after = {**case.files, **(result.partial if compat else result.writes)}
    return not result.refusals, {path: text for path, text in after.items() if text is not None}


def _describe_default(case: PatchCase) -> str:
    done, files = _apply_patch(case, compat=False)
    if done == (not case.refused) and files == dict(case.expected):
        return ""
    if not done:
        return "by default refused" if files == dict(case.files) else "by default refused, but files changed"
    return "by default another result"


def _measure_text(case: Case, format_name: FormatName, edit: str, repeats: int) -> Row:
    source = codec.decode(case.original.encode())
    said = (case.instruction,)
    answer, times = _time_runs(lambda: _ask_editor(source.text, edit, format_name, case.path, said), repeats)
    outcome, checks, _ = answer
    failed = tuple(check.name for check in checks if not check.ok)
    certainty = _find_certainty(outcome, failed)

    def restore(text: str) -> str:
        return codec.encode(text, source, by_model=False).decode()

    judged = _judge(case, outcome, failed, restore)
    texts = [restore(text) for text in _list_readings(source.text, outcome)]
    exact = [is_same(text, case.expected, inexact=case.inexact) for text in texts]
    modulo = [is_same_but_blank_lines(text, case.expected) for text in texts]
    return Row(
        id=case.id,
        shape=case.shape,
        format=format_name,
        detected_format=_detect_format(edit),
        outcome=judged,
        certain=certainty == "certain",
        wrong_certain=judged == "wrong" and certainty == "certain",
        expects=case.expects,
        rung=outcome.rung if isinstance(outcome, Merged) else "",
        reason=outcome.code if isinstance(outcome, Unresolved) else "rejected" if failed else "",
        detail=_describe_outcome(outcome),
        failed_checks=failed,
        num_candidates=_count_candidates(outcome),
        num_lines=count_lines(case),
        parse_ms=times[0],
        merge_ms=times[1],
        verify_ms=times[2],
        inexact=case.inexact,
        variety=case.variety,
        style=case.style,
        language=find_language(case.path) or Path(case.path).suffix.lstrip("."),
        certainty=certainty,
        confidence=outcome.confidence if isinstance(outcome, Merged) else None,
        first=exact[:1] == [True],
        first_modulo=modulo[:1] == [True],
        among=any(exact),
        among_modulo=any(modulo),
        hidden=hides_deletion(case),
    )


def _find_certainty(outcome: MergeOutcome, failed: Sequence[str]) -> str:
    if isinstance(outcome, Unresolved) or failed:
        return ""
    return outcome.certainty if isinstance(outcome, Merged) else "certain"


def _list_readings(text: str, outcome: MergeOutcome) -> list[str]:
    """Return the texts that came into question, best first."""
    if isinstance(outcome, AlreadyApplied):
        return [text]
    first = [outcome.text] if isinstance(outcome, Merged) else []
    return list(dict.fromkeys([*first, *(one.text for one in outcome.candidates)]))


def _ask_editor(text: str, edit: str, format_name: FormatName, path: str, said: tuple[str, ...]) -> _Answer:
    clear_caches()
    language = find_language(path)
    started = time.perf_counter()
    try:
        parsed = parse(edit, format_name, path)
    except EditSyntaxError as error:
        outcome = Unresolved(error.code, error.message, suggestion=error.suggestion)
        return _Answer(outcome, (), ((time.perf_counter() - started) * 1e3, 0.0, 0.0))
    read = time.perf_counter()
    merged = merge(text, parsed, language, said)
    done = time.perf_counter()
    checks = verify(text, merged.text, parsed, language, instructions=said) if isinstance(merged, Merged) else ()
    checked = time.perf_counter()
    return _Answer(merged, checks, ((read - started) * 1e3, (done - read) * 1e3, (checked - done) * 1e3))


def _judge(case: Case, outcome: MergeOutcome, failed: tuple[str, ...], restore: Callable[[str], str]) -> Outcome:
    """Return the outcome of an answer; a merge that a check rejects is a refusal."""
    if isinstance(outcome, Unresolved):
        return judge(case, None, claims_done=False, candidates=[restore(one.text) for one in outcome.candidates])
    if isinstance(outcome, AlreadyApplied):
        return judge(case, None, claims_done=True)
    return judge(case, None if failed else restore(outcome.text), claims_done=False)


def _describe_outcome(outcome: MergeOutcome) -> str:
    if isinstance(outcome, Unresolved):
        return outcome.reason
    return outcome.detail if isinstance(outcome, AlreadyApplied) else ""


def _count_candidates(outcome: MergeOutcome) -> int:
    return 0 if isinstance(outcome, AlreadyApplied) else outcome.num_candidates


def _detect_format(edit: str) -> str:
    try:
        return parse_files(edit)[0].format
    except EditSyntaxError as error:
        return error.code


def _time_runs(run: Callable[[], _Answer], repeats: int) -> tuple[_Answer, tuple[float, float, float]]:
    answer = run()
    runs = [run().times_ms for _ in range(repeats)] or [answer.times_ms]
    parse_ms, merge_ms, verify_ms = (statistics.median(phase) for phase in zip(*runs, strict=True))
    return answer, (parse_ms, merge_ms, verify_ms)
