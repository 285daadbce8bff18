"""Rows to counts: the keys of interfaces.md, by format, by set and by rung, and the table for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.edit.measuring import OUTCOMES, Row

_SIZES = ((0, 200), (200, 500), (500, 1500), (1500, 10**9))


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Count the goals; inexact data is part of the counts and counted apart too.

    Variety is only counted apart, unless there is nothing else.
    """
    goals = [row for row in rows if not row.variety] or list(rows)
    return {
        **counts(goals),
        "by_format": _by(goals, lambda row: row.format),
        "by_set": _by(goals, lambda row: row.shape),
        "by_rung": _by([row for row in goals if row.rung], lambda row: row.rung),
        "by_lines": {
            f"{low}-{high - 1}" if high < 10**9 else f"{low}-": counts(found) for low, high, found in _sized(goals)
        },
        "inexact": counts([row for row in goals if row.inexact]),
        "variety": _by([row for row in rows if row.variety], lambda row: row.shape),
    }


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the counts of one block. `certain_share` is taken over the cases that have a right result."""
    found = Counter(row.outcome for row in rows)
    mergeable = [row for row in rows if row.expects == "text"]
    times = sorted(row.ms for row in rows)
    without_checks = sorted(row.parse_ms + row.merge_ms for row in rows)
    return {
        "cases": len(rows),
        **{outcome: found[outcome] for outcome in OUTCOMES},
        "wrong_certain": sum(row.wrong_certain for row in rows),
        "must_refuse": len(rows) - len(mergeable),
        "certain_share": round(sum(row.certain for row in mergeable) / len(mergeable), 4) if mergeable else None,
        "format_detected": sum(row.detected_format == row.format for row in rows),
        "p50_ms": percentile(times, 0.50),
        "p99_ms": percentile(times, 0.99),
        "p50_merge_ms": percentile(without_checks, 0.50),
        "p99_merge_ms": percentile(without_checks, 0.99),
    }


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile of sorted numbers, None of none."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


def table(blocks: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Lay blocks of counts out as lines of text, one block a line."""
    heads = ("cases", *OUTCOMES, "wrong_certain", "certain_share", "p50_ms", "p99_ms", "p50_merge_ms")
    names = (
        "cases",
        "exact",
        "1st cand",
        "any cand",
        "refused",
        "wrong",
        "w.certain",
        "certain",
        "p50 ms",
        "p99 ms",
        "p50 unverified",
    )
    rows = [("", *names), *((title, *(_cell(block[key], key) for key in heads)) for title, block in blocks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names) + 1)]
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
    if key == "certain_share":
        return f"{value:.1%}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _by(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {name: counts(groups[name]) for name in sorted(groups)}


def _sized(rows: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
    groups = [(low, high, [row for row in rows if low <= row.num_lines < high]) for low, high in _SIZES]
    return [group for group in groups if group[2]]
