"""Send right results, and the same with a corruption planted: as a model's whole answer, and as a rule's result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rapidfuzz import fuzz

from agent_runtime.apply.pipeline import Applier, select_edit
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ChatModel, ModelChoice, ModelMerge, ModelTask
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest, Usage
from benchmarks.cases import Case
from benchmarks.edit_formats import diff_texts
from benchmarks.scoring import is_same_but_blank_lines
from benchmarks.trust.corruptions import RightText, plant
from editor import codec
from editor.diff import line_opcodes
from editor.errors import EditorError
from editor.formats import parse_files
from editor.grammars import find_language
from editor.merge import merge
from editor.placeholders import holds_placeholder
from editor.syntax import count_errors
from editor.types import Merged, ParsedEdit, Sketch, Unresolved
from editor.verify import is_accepted, verify

_MIN_LIKENESS = 60


class Legal:
    """Decides whether a text planted into one right result is another legal reading of the edit."""

    def __init__(self, right: RightText, edit: ParsedEdit) -> None:
        self._language = find_language(right.case.path)
        self._expected_text = right.text
        outcome = merge(right.source.text, edit, self._language)
        self.certain = outcome.text if isinstance(outcome, Merged) else None
        self._is_lazy = isinstance(edit.changes, Sketch)
        readings = {self.certain} if self.certain is not None else set()
        if isinstance(outcome, Unresolved) and (self._is_lazy or outcome.code == "ambiguous"):
            readings |= {candidate.text for candidate in outcome.candidates}
        self._readings = {self._key(text) for text in readings}
        self._old, self._expected = _list_solid(right.source.text), _list_solid(right.text)
        blocks = edit.changes.blocks if isinstance(edit.changes, Sketch) else ()
        self._blocks = [block for block in (_select_shown(block) for block in blocks) if block]

    def reason(self, text: str) -> str:
        """Return why a text other than the expected one is a legal reading, too; "" if it is none."""
        why = self._why(text)
        return why if why and not self._is_broken(text) else ""

    def _why(self, text: str) -> str:
        is_reading = self._key(text) in self._readings
        if not self._is_lazy:
            return "reading of the rules" if is_reading else ""
        lines = _list_solid(text)
        if self._keeps_what_is_replaced(lines):
            return ""
        if is_reading:
            return "reading of the rules"
        if lines == self._expected:
            return "blank lines"
        if self._is_free_place(lines):
            return "free place"
        at = _find_line_gone(self._expected, lines)
        if at is None or any(span.b_start <= at < span.b_end for span in diff_texts(self._old, self._expected)):
            return ""
        if 0 < at < len(lines) and (lines[at - 1], lines[at]) in self._neighbours():
            return "shown to go"
        if self._is_replaced(at):
            return "read as replaced"
        gone = self._expected[at].strip()
        is_shown = any(gone == line.strip() for block in self._blocks for line in block)
        stand_once = all(sum(gone == line.strip() for line in some) == 1 for some in (self._old, lines))
        return "shown elsewhere" if is_shown and stand_once else ""

    def _is_broken(self, text: str) -> bool:
        found, expected = (count_errors(one, self._language) for one in (text, self._expected_text))
        return found is not None and expected is not None and found > expected

    def _key(self, text: str) -> str:
        return "\n".join(_list_solid(text)) if self._is_lazy else text

    def _neighbours(self) -> set[tuple[str, str]]:
        return {(one.strip(), two.strip()) for block in self._blocks for one, two in pairwise(block)}

    def _keeps_what_is_replaced(self, lines: Sequence[str]) -> bool:
        """Return whether a line that the expected text replaces still stands, next to a new line that is like it."""
        new, gone = _diff(self._old, lines)
        kept = _diff(self._old, self._expected)[1] - gone
        return any(fuzz.ratio(old, line) >= _MIN_LIKENESS for old in kept for line in new)

    def _is_free_place(self, lines: Sequence[str]) -> bool:
        new, gone = _diff(self._old, lines)
        right_new, right_gone = _diff(self._old, self._expected)
        if new != right_new or gone - right_gone:
            return False
        chunks = self._chunks()
        stripped = [line.strip() for line in lines]
        at = 0
        for chunk in chunks:
            places = range(at, len(stripped) - len(chunk) + 1)
            found = next((place for place in places if stripped[place : place + len(chunk)] == chunk), None)
            if found is None:
                return False
            at = found + len(chunk)
        return bool(chunks)

    def _chunks(self) -> list[list[str]]:
        """Return the blocks, split between lines that are not adjacent in the expected text either."""
        beside = set(pairwise(line.strip() for line in self._expected))
        chunks: list[list[str]] = []
        for block in self._blocks:
            chunks.append([block[0].strip()])
            for one, two in pairwise(line.strip() for line in block):
                if (one, two) in beside:
                    chunks[-1].append(two)
                else:
                    chunks.append([two])
        return chunks

    def _is_replaced(self, at: int) -> bool:
        """Return whether expected line `at`, which is gone, stands where a run of new lines may end at a marker."""
        spans = diff_texts([line.strip() for line in self._old], [line.strip() for line in self._expected])
        for span in spans:
            if not (span.b_start < span.b_end and at in (span.b_start - 1, span.b_end)):
                continue
            run = [line.strip() for line in self._expected[span.b_start : span.b_end]]
            edge = 0 if at < span.b_start else -1
            is_open = any(block[edge].strip() == run[edge] for block in self._blocks)
            spare = len(run) - (span.a_end - span.a_start)
            gone = self._expected[at].strip()
            has_word = any(map(str.isalnum, gone))
            if is_open and has_word and spare > 0 and any(fuzz.ratio(gone, line) >= _MIN_LIKENESS for line in run):
                return True
        return False


def _list_solid(text: str) -> list[str]:
    return [line.rstrip(" \t") for line in text.split("\n") if line.strip()]


def _select_shown(block: Sequence[str]) -> list[str]:
    return [line for line in block if line.strip() and not holds_placeholder(line)]


def _diff(old: Sequence[str], new: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """Return the lines that a diff inserts, and those that it deletes."""
    written: Counter[str] = Counter()
    gone: Counter[str] = Counter()
    for span in diff_texts(old, new):
        written.update(new[span.b_start : span.b_end])
        gone.update(old[span.a_start : span.a_end])
    return written, gone


def _find_line_gone(expected: Sequence[str], lines: Sequence[str]) -> int | None:
    """Return which expected line is the only thing that is missing; None where more differs."""
    if len(lines) != len(expected) - 1:
        return None
    at = next((at for at, line in enumerate(lines) if line != expected[at]), len(lines))
    return at if list(lines[at:]) == list(expected[at + 1 :]) else None


Sent = Literal["rejected", "repaired_exact", "repaired_blanks", "passed", "repaired_wrong", "crashed"]
REPAIRED: tuple[Sent, ...] = ("repaired_exact", "repaired_blanks")
RIGHT = "right"
"""The class of a row whose text has nothing planted into it."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of sending one right result, with a corruption of the class `name` in it or none (`RIGHT`).

    `legal` says why a planted text is a legal reading of the edit, "" where it is none. `certain` says that the rules
    write the planted text as certain. `failed` are the checks that failed, or the refusal. `blank_only` says that a
    right result is refused for blank lines alone: with those of the file it passes.
    """

    id: str
    source: str
    format: str
    style: str
    name: str
    as_answer: Sent
    as_rule: Sent
    failed: tuple[str, ...]
    line: int = 0
    what: str = ""
    legal: str = ""
    certain: bool = False
    blank_only: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Which right result it is made of."""
        return self.id, self.source, self.format, self.style

    @property
    def is_detected(self) -> bool:
        """Whether the planted corruption is in no merge, whichever way it was sent."""
        return self.as_rule == "rejected" and self.as_answer in ("rejected", *REPAIRED)

    @property
    def is_refused(self) -> bool:
        """Whether a right result is refused one way at least, for more than blank lines."""
        return not self.is_accepted and not self.blank_only

    @property
    def is_accepted(self) -> bool:
        """Whether the text that was sent passes both ways, or comes back as the right file."""
        return self.as_rule == "passed" and self.as_answer in ("passed", *REPAIRED)


class WholeAnswer:
    """A model that answers with one whole text, whatever it is asked."""

    name = "whole-answer"
    fault: Exception | None = None

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_calls = 0

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """Return the text as the whole file."""
        self.num_calls += 1
        return ModelMerge(self.text, False, Usage(), {})

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """Choose no reading, and write the text."""
        return self.merge(task, context, progress)

    def chat(self) -> ChatModel:
        """There is no model to chat with."""
        raise NotImplementedError

    def reports(self) -> tuple[()]:
        """There is no engine."""
        return ()

    def close(self) -> None:
        """Free nothing."""


def measure(case: Case, names: Iterable[str], seed: int) -> list[Row]:
    """Return the rows of a case: its right result, and the same with each of the named corruptions."""
    try:
        edit = select_edit(case.path, parse_files(case.edit, "auto", case.path))
    except EditorError as error:
        return [Row(*_describe(case), RIGHT, "rejected", "rejected", (f"not parsed: {error}",))]
    right = RightText(case)
    rows = [_measure_right(right, edit)]
    legal = Legal(right, edit)
    for name in names:
        planted = plant(right, name, seed)
        if planted is None:
            continue
        answer, rule, failed = _send(right, edit, planted.text)
        rows.append(
            Row(
                *(*_describe(case), name, answer, rule),
                failed=failed,
                line=planted.line,
                what=planted.what,
                legal=legal.reason(planted.text),
                certain=legal.certain == planted.text,
            )
        )
    return rows


def send_answer(case: Case, text: str) -> tuple[Sent, tuple[str, ...]]:
    """Apply the case's edit with a model that answers `text`; return the outcome, and the checks that failed."""
    request = ApplyRequest(
        *(case.original.encode(), case.edit, case.path), instruction=case.instruction, mode="model", decide="generate"
    )
    try:
        result = Applier(lambda: WholeAnswer(text)).apply(request)
    except HunkError as fault:
        return "rejected", (f"{type(fault).__name__}: {fault}",)
    except Exception as fault:  # noqa: BLE001 (whatever it is, it is a fault of ours)
        return "crashed", (repr(fault),)
    failed = tuple(check.name for check in result.file.checks if not check.ok)
    if result.status == "rejected":
        return "rejected", failed
    if result.file.data == codec.encode(text, codec.decode(case.original.encode())):
        return "passed", failed
    if result.file.data == case.expected.encode():
        return "repaired_exact", failed
    is_right = is_same_but_blank_lines(result.file.merged, case.expected)
    return "repaired_blanks" if is_right else "repaired_wrong", failed


def send_rule_result(right: RightText, edit: ParsedEdit, text: str) -> tuple[Sent, tuple[str, ...]]:
    """Verify a text as the result of a rule; return whether it passes, and the checks that failed."""
    try:
        checks = verify(
            right.source.text, text, edit, find_language(right.case.path), instructions=(right.case.instruction,)
        )
    except Exception as fault:  # noqa: BLE001 (whatever it is, it is a fault of ours)
        return "crashed", (repr(fault),)
    failed = tuple(check.name for check in checks if not check.ok)
    return "passed" if is_accepted(checks) else "rejected", failed


def _measure_right(right: RightText, edit: ParsedEdit) -> Row:
    answer, rule, failed = _send(right, edit, right.text)
    blank_only = False
    if "rejected" in (answer, rule):
        plain = restore_blanks(right)
        blank_only = plain != right.text and _send(right, edit, plain)[:2] == ("passed", "passed")
    return Row(*_describe(right.case), RIGHT, answer, rule, failed, blank_only=blank_only)


def _describe(case: Case) -> tuple[str, str, str, str]:
    """Return what a row says of its case: id, source, format and style."""
    return case.id, case.shape, case.format, case.style


def _send(right: RightText, edit: ParsedEdit, text: str) -> tuple[Sent, Sent, tuple[str, ...]]:
    answer, failed = send_answer(right.case, text)
    rule, failed_rule = send_rule_result(right, edit, text)
    return answer, rule, tuple(dict.fromkeys((*failed, *failed_rule)))


def restore_blanks(right: RightText) -> str:
    """Return the right text with as many blank lines between two kept neighbours as the file has between them."""
    a, b = right.a, right.b
    old, new = [at for at, line in enumerate(a) if line.strip()], right.solid
    twins = {-1: -1, len(new): len(old)}
    for op in line_opcodes([a[at] for at in old], [b[at] for at in new]):
        if op.equal:
            twins.update(zip(range(op.b_start, op.b_end), range(op.a_start, op.a_end), strict=True))
    old_at, new_at = [*old, len(a)], [*new, len(b)]
    lines: list[str] = []
    for at in range(len(new_at)):
        above, own = twins.get(at - 1), twins.get(at)
        if above is not None and own == above + 1:
            lines += a[old_at[above] + 1 if above >= 0 else 0 : old_at[own]]
        else:
            lines += b[new_at[at - 1] + 1 if at else 0 : new_at[at]]
        lines += b[new_at[at] : new_at[at] + 1]
    return "\n".join(lines)
