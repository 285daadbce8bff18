"""Judged answers to counts: the keys of interfaces.md, in all and by group, and the table for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from benchmarks.judging import OUTCOMES, Outcome


class Judged(Protocol):
    """What one case came to; `certain` says that the answer was claimed certain and every check let it pass."""

    @property
    def outcome(self) -> Outcome:
        """Which count it falls into."""
        ...

    @property
    def certain(self) -> bool:
        """Whether it was claimed certain."""
        ...

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
    def ms(self) -> float:
        """Milliseconds of the whole way."""
        ...


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


def count(rows: Sequence[Judged]) -> Counts:
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
        "p50_ms": percentile(times, 0.50),
        "p99_ms": percentile(times, 0.99),
    }


def goals(rows: Sequence[R]) -> list[R]:
    """Return the rows that count: variety is only counted apart, unless there is nothing else."""
    return [row for row in rows if not row.variety] or list(rows)


def by(rows: Iterable[R], key: Callable[[R], str], counts: CountRows[R]) -> dict[str, Counts]:
    """Return the counts of each group, in the order of the groups' names."""
    groups: dict[str, list[R]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {name: counts(groups[name]) for name in sorted(groups)}


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile of sorted numbers, None of none."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


def interval(found: int, total: int) -> tuple[float, float] | None:
    """Return Wilson's 95 % interval of a share, None of nothing (E. B. Wilson, 1927)."""
    if total == 0:
        return None
    share, z2 = found / total, _Z * _Z
    middle = share + z2 / (2 * total)
    reach = _Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    low, high = ((middle + sign * reach) / (1 + z2 / total) for sign in (-1, 1))
    return round(max(0.0, low), 4), round(min(1.0, high), 4)


def table(blocks: Iterable[tuple[str, Counts]], columns: Mapping[str, str]) -> str:
    """Lay blocks of counts out as lines of text, one block a line; `columns` are keys and their headings."""
    rows = [("", *columns.values())]
    rows += [(title, *(_cell(block[key], key) for key in columns)) for title, block in blocks]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns) + 1)]
    lines = (
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any, key: str) -> str:
    if value is None:
        return "-"
    if key.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
