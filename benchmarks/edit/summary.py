"""Rows to counts: the keys of interfaces.md, by format, by set and by rung, and the table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import counting
from benchmarks.counting import by, count, goals, interval, percentile
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
        "by_style": by(_read(found), lambda row: row.style, shares),
        "by_language": by(_read(found), lambda row: row.language, shares),
        "readings": shares(_read(found)),
        "certain": claims(found, "certain"),
        "likely": claims(found, "likely"),
        "hidden": shares([row for row in found if row.hidden]),
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


def shares(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how often the first reading is right, and how often one of all is, exactly and modulo blank lines.

    Each share has its 95 % interval; `certain` and `likely` are the answers given without a model.
    """
    return {
        "n": len(rows),
        "first": share([row.first for row in rows]),
        "first_modulo": share([row.first_modulo for row in rows]),
        "among": share([row.among for row in rows]),
        "among_modulo": share([row.among_modulo for row in rows]),
        "certain": claims(rows, "certain"),
        "likely": claims(rows, "likely"),
    }


def share(hits: Sequence[bool]) -> dict[str, Any]:
    """Return how many of the cases are right, their share and its 95 % interval (Wilson)."""
    low, high = interval(sum(hits), len(hits)) or (0.0, 1.0)
    return {
        "right": sum(hits),
        "share": round(sum(hits) / len(hits), 4) if hits else None,
        "low95": low,
        "high95": high,
    }


def claims(rows: Sequence[Row], certainty: str) -> dict[str, Any]:
    """Return how many lazy snippets were answered with a certainty, how many of the answers are wrong, and the bound.

    Wrong is what differs in more than blank lines. `upper95` is the upper end of the 95 % interval of the share.
    """
    claimed = [row for row in rows if row.format == "lazy" and row.certainty == certainty]
    wrong = sum(not row.first_modulo if row.expects == "text" else row.outcome == "wrong" for row in claimed)
    return {"n": len(claimed), "wrong": wrong, "upper95": (interval(wrong, len(claimed)) or (0.0, 1.0))[1]}


def reading_table(blocks: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Lay blocks of `shares` out as lines of text: the shares in per cent with their intervals."""
    lines: list[tuple[str, ...]] = [("", "n", "first", "modulo blank", "among", "modulo blank", "certain", "likely")]
    for title, block in blocks:
        found = [_interval(block[key]) for key in ("first", "first_modulo", "among", "among_modulo")]
        claimed = [f"{block[key]['n']} ({block[key]['wrong']} wrong)" for key in ("certain", "likely")]
        lines.append((title, str(block["n"]), *found, *claimed))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _interval(found: dict[str, Any]) -> str:
    if found["share"] is None:
        return "-"
    return f"{found['share']:.1%} [{found['low95']:.0%}, {found['high95']:.0%}]"


def _read(rows: Sequence[Row]) -> list[Row]:
    """Return the lazy snippets of a known style, less those that hide a deletion."""
    return [row for row in rows if row.format == "lazy" and row.style and row.expects == "text" and not row.hidden]


def table(blocks: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Lay blocks of counts out as lines of text, one block a line."""
    return counting.table(blocks, _COLUMNS)


def _sized(rows: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
    groups = [(low, high, [row for row in rows if low <= row.num_lines < high]) for low, high in _SIZES]
    return [group for group in groups if group[2]]
