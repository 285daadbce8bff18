"""Right results, and the same with a corruption planted: sent as a model's whole answer, and as what a rule made.

An outcome of a text that was sent, either way:

    rejected        a check rejected it, or the edit was refused
    repaired_exact  what came back is the right file, whatever was sent
    repaired_blanks what came back is the right file but for blank lines
    passed          it was merged as it was sent
    repaired_wrong  something else came back as merged
    crashed         an error outside of the error tree
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agent_runtime.apply.pipeline import Applier
from agent_runtime.edit_selection import edit_for
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ChatModel, ModelChoice, ModelMerge, ModelTask
from agent_runtime.progress import Watcher
from agent_runtime.types import ApplyRequest, Usage
from benchmarks.cases import Case
from benchmarks.trust.corruptions import RightText, plant
from benchmarks.trust.legal import Legal
from editor import codec
from editor.diff import line_opcodes
from editor.errors import EditorError
from editor.formats import parse_files
from editor.grammars import find_language
from editor.types import ParsedEdit
from editor.verify import is_accepted, verify

if TYPE_CHECKING:
    from engine.engine import EngineStats

Sent = Literal["rejected", "repaired_exact", "repaired_blanks", "passed", "repaired_wrong", "crashed"]
REPAIRED: tuple[Sent, ...] = ("repaired_exact", "repaired_blanks")
RIGHT = "right"
"""The class of a row whose text has nothing planted into it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one right result, with a corruption of the class `name` in it, or none (`RIGHT`).

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

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_calls = 0

    def merge(self, task: ModelTask, watcher: Watcher) -> ModelMerge:
        """Return the text as the whole file."""
        self.num_calls += 1
        return ModelMerge(self.text, False, Usage(), {})

    def choose(self, task: ModelTask, watcher: Watcher) -> ModelChoice | ModelMerge:
        """Be in doubt about all readings, and write."""
        return self.merge(task, watcher)

    def chat(self) -> ChatModel:
        """There is no model to chat with."""
        raise NotImplementedError

    def stats(self) -> EngineStats | None:
        """There is no engine."""
        return None

    def close(self) -> None:
        """Free nothing."""


Task = tuple[Case, Sequence[str], int]
"""A right result, the classes of the corruptions that are planted into it, the seed."""


def measure_all(tasks: Sequence[Task], workers: int) -> Iterator[list[Row]]:
    """Yield the rows of each task in turn, measured by so many processes."""
    if workers < 2:
        yield from map(_measured, tasks)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(_measured, tasks, chunksize=4)


def measure(case: Case, names: Iterable[str], seed: int) -> list[Row]:
    """Send the right result of a case, and one with each of the named corruptions in it; [] where it is no edit."""
    try:
        edit = edit_for(case.path, parse_files(case.edit, "auto", case.path))
    except EditorError as error:
        return [_row(case, RIGHT, "rejected", "rejected", (f"not parsed: {error}",))]
    right = RightText(case)
    rows = [_right(right, edit)]
    legal = Legal(right, edit)
    for name in names:
        planted = plant(right, name, seed)
        if planted is None:
            continue
        answer, failed = send_answer(case, planted.text)
        rule, failed_rule = send_rule_result(right, edit, planted.text)
        rows.append(
            Row(
                *(case.id, case.shape, case.format, case.style, name, answer, rule),
                failed=tuple(dict.fromkeys((*failed, *failed_rule))),
                line=planted.line,
                what=planted.what,
                legal=legal.reason(planted.text),
                certain=legal.certain == planted.text,
            )
        )
    return rows


def send_answer(case: Case, text: str) -> tuple[Sent, tuple[str, ...]]:
    """Send the case's edit to the pipeline with a model that answers `text`; return what came of it, and why not."""
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
    is_right = solid_lines(result.file.merged) == solid_lines(case.expected)
    return "repaired_blanks" if is_right else "repaired_wrong", failed


def send_rule_result(right: RightText, edit: ParsedEdit, text: str) -> tuple[Sent, tuple[str, ...]]:
    """Check a text as what a rule made; return whether it passes, and the checks that failed."""
    try:
        checks = verify(right.source.text, text, edit, find_language(right.case.path), said=(right.case.instruction,))
    except Exception as fault:  # noqa: BLE001 (whatever it is, it is a fault of ours)
        return "crashed", (repr(fault),)
    failed = tuple(check.name for check in checks if not check.ok)
    return "passed" if is_accepted(checks) else "rejected", failed


def solid_lines(text: str) -> list[str]:
    """Return the lines that are not blank, without spaces at their ends."""
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def _measured(task: Task) -> list[Row]:
    return measure(*task)


def _right(right: RightText, edit: ParsedEdit) -> Row:
    answer, rule, failed = _sent(right, edit, right.text)
    blank_only = False
    if "rejected" in (answer, rule):
        plain = with_own_blanks(right)
        blank_only = plain != right.text and _sent(right, edit, plain)[:2] == ("passed", "passed")
    return _row(right.case, RIGHT, answer, rule, failed, blank_only=blank_only)


def _sent(right: RightText, edit: ParsedEdit, text: str) -> tuple[Sent, Sent, tuple[str, ...]]:
    answer, failed = send_answer(right.case, text)
    rule, failed_rule = send_rule_result(right, edit, text)
    return answer, rule, tuple(dict.fromkeys((*failed, *failed_rule)))


def with_own_blanks(right: RightText) -> str:
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


def _row(case: Case, name: str, answer: Sent, rule: Sent, failed: tuple[str, ...], *, blank_only: bool = False) -> Row:
    kind = (case.id, case.shape, case.format, case.style, name)
    return Row(*kind, answer, rule, failed, blank_only=blank_only)
