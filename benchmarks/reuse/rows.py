"""What was counted and measured as rows and as a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.reuse.counting import SessionCount

Row = dict[str, Any]

COUNTED = ("prompt", "cached", "reused", "recomputed", "new")


def count_rows(counts: Sequence[SessionCount]) -> list[Row]:
    """A row for each session and mode."""
    prefix = {each.session: each.total("recomputed") for each in counts if each.mode == "exact"}
    return [_row(each.session, [each], prefix.get(each.session)) for each in counts]


def count_totals(counts: Sequence[SessionCount]) -> list[Row]:
    """A row for each mode, over all sessions."""
    exact = [each for each in counts if each.mode == "exact"]
    prefix = sum(each.total("recomputed") for each in exact) if exact else None
    groups: dict[tuple[str, bool], list[SessionCount]] = {}
    for each in counts:
        groups.setdefault((each.mode, each.idle), []).append(each)
    return [_row("all", found, prefix) for found in groups.values()]


def count_summary(counts: Sequence[SessionCount]) -> Row:
    """By mode, over all sessions; what holds without idle time between turns stands under a key of its own."""
    summary: Row = {}
    for row in count_totals(counts):
        kept = {key: row[key] for key in row if key not in ("session", "mode", "idle")}
        if row["idle"] or row["mode"] == "exact":
            summary.setdefault(row["mode"], {}).update(kept)
        else:
            summary.setdefault(row["mode"], {})["without_idle"] = kept
    return summary


def _row(session: str, counts: Sequence[SessionCount], prefix: int | None) -> Row:
    sums = {name: sum(each.total(name) for each in counts) for name in COUNTED}
    by_reason: Counter[str] = Counter()
    for each in counts:
        by_reason.update(each.by_reason)
    compacted = [turn for each in counts for turn in each.turns if turn.compacted]
    return {
        "session": session,
        "mode": counts[0].mode,
        "idle": counts[0].idle,
        "turns": sum(len(each.turns) for each in counts),
        "compactions": len(compacted),
        **{f"{name}_tokens": value for name, value in sums.items()},
        "recomputed_by": dict(by_reason),
        "recomputed_after_compaction": sum(turn.recomputed for turn in compacted),
        "rebuilt_tokens": sum(each.rebuilt for each in counts),
        "recomputed_share": sums["recomputed"] / sums["prompt"],
        "new_share": sums["new"] / sums["prompt"],
        "recomputed_vs_prefix": sums["recomputed"] / prefix if prefix else None,
    }
