"""Judge answers to cases by the outcomes of interfaces.md, and count them by group."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from benchmarks.cases import Case
from benchmarks.edit_formats import diff_texts
from benchmarks.harness import group_by
from editor.placeholders import holds_placeholder

Outcome = Literal["exact", "first_candidate", "any_candidate", "refused", "wrong"]
OUTCOMES: tuple[Outcome, ...] = ("exact", "first_candidate", "any_candidate", "refused", "wrong")


def judge(case: Case, merged: str | None, *, claims_done: bool, candidates: Sequence[str] = ()) -> Outcome:
    """Return the outcome of an answer: a merged text, the claim that the edit is done already, candidates, or nothing.

    A merge that a check rejects is a refusal: it is given as nothing.
    """
    if case.expects != "text":
        return "wrong" if merged is not None or (claims_done and case.expects == "refusal") else "refused"
    if merged is None and not claims_done:
        found = [is_same(text, case.expected, inexact=case.inexact) for text in candidates]
        return "first_candidate" if found[:1] == [True] else "any_candidate" if any(found) else "refused"
    text = case.original if merged is None else merged
    return "exact" if is_same(text, case.expected, inexact=case.inexact) else "wrong"


def is_same(text: str, expected: str, *, inexact: bool) -> bool:
    """Return whether two texts are equal; inexact data counts modulo spaces at line ends and blank lines at the end."""
    return text == expected or (inexact and _strip_ends(text) == _strip_ends(expected))


def is_same_but_blank_lines(text: str, expected: str) -> bool:
    """Return whether two texts have the same lines, blank ones and spaces at line ends aside."""
    return list_solid_lines(text) == list_solid_lines(expected)


def list_solid_lines(text: str) -> list[str]:
    """Return the lines that are not blank, without spaces at their ends."""
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def _strip_ends(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


class Judged(Protocol):
    """The result of one case; `certain` says that the answer was claimed certain and every check let it pass."""

    @property
    def outcome(self) -> Outcome: ...

    @property
    def certain(self) -> bool: ...

    @property
    def wrong_certain(self) -> bool:
        """Whether it was claimed certain and is wrong."""
        ...

    @property
    def expects(self) -> str:
        """What should come of the case: "text", or a refusal."""
        ...

    @property
    def variety(self) -> bool:
        """Whether the case is input variety, which no goal is measured on."""
        ...

    @property
    def ms(self) -> float: ...


COLUMNS = {
    "cases": "cases",
    "exact": "exact",
    "first_candidate": "1st cand",
    "any_candidate": "any cand",
    "refused": "refused",
    "wrong": "wrong",
    "wrong_certain": "w.certain",
    "certain_share": "certain",
}
"""The keys of the counts that every table has, and their headings."""

_Z = 1.959964
R = TypeVar("R", bound=Judged)
J = TypeVar("J", bound=Judged, contravariant=True)
Counts = dict[str, Any]


class CountRows(Protocol[J]):
    """Counts one block of rows."""

    def __call__(self, rows: Sequence[J], /) -> Counts:
        """Return the counts of the rows."""
        ...


def count_outcomes(rows: Sequence[Judged]) -> Counts:
    """Return the counts that every benchmark has. `certain_share` is over the cases that have a right result."""
    found = Counter(row.outcome for row in rows)
    mergeable = [row for row in rows if row.expects == "text"]
    times = sorted(row.ms for row in rows)
    return {
        "cases": len(rows),
        **{outcome: found[outcome] for outcome in OUTCOMES},
        "wrong_certain": sum(row.wrong_certain for row in rows),
        "must_refuse": len(rows) - len(mergeable),
        "certain_share": round(sum(row.certain for row in mergeable) / len(mergeable), 4) if mergeable else None,
        "p50_ms": take_percentile(times, 0.50),
        "p99_ms": take_percentile(times, 0.99),
    }


def select_goals(rows: Sequence[R]) -> list[R]:
    """Return the rows that count: variety is only counted apart, unless there is nothing else."""
    return [row for row in rows if not row.variety] or list(rows)


def group_counts(rows: Iterable[R], key: Callable[[R], str], counts: CountRows[R]) -> dict[str, Counts]:
    """Return the counts of each group, in the order of the groups' names."""
    return {name: counts(some) for name, some in sorted(group_by(rows, key).items())}


def take_percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile of sorted numbers, None of none."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


def compute_interval(found: int, total: int) -> tuple[float, float] | None:
    """Return Wilson's 95 % interval of a share, None of nothing (E. B. Wilson, 1927)."""
    if total == 0:
        return None
    share, z2 = found / total, _Z * _Z
    middle = share + z2 / (2 * total)
    reach = _Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    low, high = ((middle + sign * reach) / (1 + z2 / total) for sign in (-1, 1))
    return round(max(0.0, low), 4), round(min(1.0, high), 4)


def render_counts(blocks: Iterable[tuple[str, Counts]], columns: Mapping[str, str]) -> str:
    """Lay blocks of counts out as lines of text, one block a line; `columns` are keys and their headings."""
    rows = [("", *columns.values())]
    rows += [(title, *(_format_cell(block[key], key) for key in columns)) for title, block in blocks]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns) + 1)]
    lines = (
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _format_cell(value: Any, key: str) -> str:
    if value is None:
        return "-"
    if key.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


_REMOVAL = re.compile(
    r"\b(remov|delet|drop|strip|eliminat|without|no longer|get rid|replac|instead|renam|mov|inlin|merg|simplif|unus)",
    re.IGNORECASE,
)


def hides_deletion(case: Case) -> bool:
    """Return whether a snippet without one marker leaves out lines that are to go, and nothing says so.

    Without markers, a hole between two lines of the snippet is an omission as well as a deletion. Lines that others
    replace are no holes; a word of removal in the instruction, or in the prose about fences, says enough.
    """
    if case.format != "lazy" or case.expects != "text":
        return False
    if _REMOVAL.search(f"{case.instruction}\n{_cut_prose(case.edit)}") or any(
        map(holds_placeholder, case.edit.split("\n"))
    ):
        return False
    old, new = case.original.split("\n"), case.expected.split("\n")
    shown = {line.strip() for line in case.edit.split("\n")}
    for span in diff_texts(old, new):
        gone = [line for line in old[span.a_start : span.a_end] if line.strip()]
        is_hole = not any(line.strip() for line in new[span.b_start : span.b_end])
        if gone and is_hole and not any(line.strip() in shown for line in gone):
            return True
    return False


def _cut_prose(edit: str) -> str:
    parts = re.split(r"^\s*```.*$", edit, flags=re.MULTILINE)
    return "\n".join(parts[::2]) if len(parts) > 1 else ""
