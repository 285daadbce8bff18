"""What was counted and measured as rows and as a summary."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.reuse.counting import ALL, SessionCount
from benchmarks.reuse.edit_counting import EditCount
from benchmarks.reuse.timing import COLD, LAST, PairTimes

Row = dict[str, Any]

EXACT_MODES = ("exact", "balanced")
"""Modes whose KV is exact, so that time between turns changes nothing."""

COUNTED = ("prompt", "cached", "reused", "recomputed", "new")


def count_rows(counts: Sequence[SessionCount], layout: str = "") -> list[Row]:
    """A row for each session and mode; `layout` says how the prompts were made."""
    prefix = {each.session: each.total("recomputed") for each in counts if each.mode == "exact"}
    return [{"layout": layout} | _row(each.session, [each], prefix.get(each.session)) for each in counts]


def count_totals(counts: Sequence[SessionCount]) -> list[Row]:
    """A row for each mode, over all sessions."""
    exact = [each for each in counts if each.mode == "exact"]
    prefix = sum(each.total("recomputed") for each in exact) if exact else None
    groups: dict[tuple[str, int], list[SessionCount]] = {}
    for each in counts:
        groups.setdefault((each.mode, each.idle), []).append(each)
    return [_row("all", found, prefix) for found in groups.values()]


def edit_rows(edits: Sequence[EditCount]) -> list[Row]:
    """A row for each edit and mode."""
    return [
        {
            "edit": edit.id,
            "source": edit.source,
            "mode": mode,
            "prompt_tokens": turn.prompt,
            "cached_tokens": turn.cached,
            "reused_tokens": turn.reused,
            "recomputed_tokens": turn.recomputed,
            "recomputed_by": dict(turn.by_reason),
            "recomputed_share": turn.recomputed / turn.prompt,
            "recomputed_vs_prefix": edit.vs_prefix(mode),
        }
        for edit in edits
        for mode, turn in edit.by_mode.items()
    ]


def edit_totals(edits: Sequence[EditCount]) -> list[Row]:
    """A row for each source and mode: medians over the edits, and the worst tenth."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in edit_rows(edits):
        groups.setdefault((row["source"], row["mode"]), []).append(row)
        groups.setdefault(("all", row["mode"]), []).append(row)
    return [
        {
            "source": source,
            "mode": mode,
            "edits": len(found),
            "prompt_tokens": _median(found, "prompt_tokens"),
            "recomputed_tokens": _median(found, "recomputed_tokens"),
            "recomputed_share": _median(found, "recomputed_share"),
            "recomputed_vs_prefix": _median(found, "recomputed_vs_prefix"),
            "recomputed_vs_prefix_p90": _p90(row["recomputed_vs_prefix"] for row in found),
        }
        for (source, mode), found in groups.items()
    ]


def time_rows(times: Sequence[PairTimes]) -> list[Row]:
    """A row for each pair of turns and mode or peer: medians over the rounds."""
    rows = []
    for one in times:
        medians = {name: statistics.median(seconds) for name, seconds in one.seconds.items()}
        for name, seconds in medians.items():
            usage = one.usage.get(name, {})
            rows.append(
                {
                    "pair": one.id,
                    "source": one.source,
                    "mode": name,
                    "prompt_tokens": one.prompt,
                    "recomputed_tokens": usage.get("recomputed"),
                    "ttft_seconds": seconds,
                    "ttft_ratio_cold": seconds / medians[COLD],
                    "ttft_ratio_prefix": seconds / medians[LAST],
                    "floor_seconds": statistics.median(one.floors[name]) if one.floors.get(name) else None,
                    "same_first_token": None if name == COLD else one.tokens.get(name) == one.tokens[LAST],
                }
            )
    return rows


def time_totals(times: Sequence[PairTimes]) -> list[Row]:
    """A row for each kind of turn and mode or peer: over its pairs."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in time_rows(times):
        kind = "edit" if row["source"] in ("recorded", "made") else row["source"]
        groups.setdefault((kind, row["mode"]), []).append(row)
    return [
        {
            "kind": kind,
            "mode": mode,
            "pairs": len(found),
            "recomputed_tokens": _median(found, "recomputed_tokens"),
            "ttft_p50": _median(found, "ttft_seconds"),
            "ttft_p90": _p90(row["ttft_seconds"] for row in found),
            "ttft_ratio_cold": _median(found, "ttft_ratio_cold"),
            "ttft_ratio_prefix": _median(found, "ttft_ratio_prefix"),
            "floor": _median(found, "floor_seconds"),
            "same_first_token": _share(row["same_first_token"] for row in found),
        }
        for (kind, mode), found in groups.items()
    ]


def summarise(
    counts: Sequence[SessionCount],
    workspace: Sequence[SessionCount],
    edits: Sequence[EditCount],
    times: Sequence[PairTimes],
    quality: Mapping[str, Mapping[str, Any]],
) -> Row:
    """By mode: the sessions' tokens and times, and the quality; under `workspace` the tokens with files in the prompt,
    under `edit` tokens and times of the turn behind an edit.

    Times of the sessions are those of turns behind a compaction, where the modes differ.
    """
    summary = count_summary(counts)
    for name, kept in count_summary(workspace).items():
        summary.setdefault(name, {})["workspace"] = kept
    for row in edit_totals(edits):
        if row["source"] == "all":
            kept = {key: value for key, value in row.items() if key not in ("source", "mode")}
            summary.setdefault(row["mode"], {})["edit"] = kept
    for row in time_totals(times):
        kept = {key: value for key, value in row.items() if key.startswith(("ttft", "floor")) and value is not None}
        mode = summary.setdefault(row["mode"], {})
        if row["kind"] == "edit":
            mode.setdefault("edit", {}).update(kept)
        elif row["kind"] == "compacted":
            mode.update(kept)
        else:
            mode[row["kind"]] = kept
    for name, classes in quality.items():
        if name in summary:
            summary[name].update(classes)
    return summary


def count_summary(counts: Sequence[SessionCount]) -> Row:
    """By mode, over all sessions, with idle time between turns; with less or none under keys of their own."""
    summary: Row = {}
    for row in count_totals(counts):
        kept = {key: row[key] for key in row if key not in ("session", "mode", "idle")}
        own = summary.setdefault(row["mode"], {})
        if row["idle"] == ALL or row["mode"] in EXACT_MODES:
            own.update(kept)
        else:
            own[f"idle_{row['idle']}_tokens"] = kept
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


def _median(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return statistics.median(values) if values else None


def _p90(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def _share(values: Iterable[bool | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
