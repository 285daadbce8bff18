"""Rows to counts: the keys of interfaces.md, by format, by set and by rung, and the table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import counting
from benchmarks.counting import by, count, goals, percentile
from benchmarks.edit.measuring import Row

_SIZES = ((0, 200), (200, 500), (500, 1500), (1500, 10**9))
_COLUMNS = counting.COLUMNS | {
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "p50_merge_ms": "p50 unverified",
}


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Count the goals; inexact data is part of the counts and counted apart too.

    Variety is only counted apart, unless there is nothing else.
    """
    found = goals(rows)
    return {
        **counts(found),
        "by_format": by(found, lambda row: row.format, counts),
        "by_set": by(found, lambda row: row.shape, counts),
        "by_rung": by([row for row in found if row.rung], lambda row: row.rung, counts),
        "by_lines": {
            f"{low}-{high - 1}" if high < 10**9 else f"{low}-": counts(some) for low, high, some in _sized(found)
        },
        "inexact": counts([row for row in found if row.inexact]),
        "variety": by([row for row in rows if row.variety], lambda row: row.shape, counts),
    }


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the counts of one block, with the times without checks beside."""
    without_checks = sorted(row.parse_ms + row.merge_ms for row in rows)
    return {
        **count(rows),
        "format_detected": sum(row.detected_format == row.format for row in rows),
        "p50_merge_ms": percentile(without_checks, 0.50),
        "p99_merge_ms": percentile(without_checks, 0.99),
    }


def table(blocks: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Lay blocks of counts out as lines of text, one block a line."""
    return counting.table(blocks, _COLUMNS)


def _sized(rows: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
    groups = [(low, high, [row for row in rows if low <= row.num_lines < high]) for low, high in _SIZES]
    return [group for group in groups if group[2]]
