"""Rows, summary and tables of the reuse benchmark."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.harness import Row, render_rows, take_median, take_percentile
from benchmarks.reuse.edits import EditCount
from benchmarks.reuse.prompts import ALL, SessionCount
from benchmarks.reuse.times import COLD, LAST, PairTimes

EXACT_MODES = ("exact", "balanced")
"""Modes whose KV is exact, so that time between turns changes nothing."""

COUNTED = ("prompt", "cached", "reused", "recomputed", "new")


def make_count_rows(counts: Sequence[SessionCount], layout: str = "") -> list[Row]:
    """Return a row for each session and mode; `layout` says how the prompts were made."""
    prefix = {each.session: each.sum_field("recomputed") for each in counts if each.mode == "exact"}
    return [{"layout": layout} | _make_row(each.session, [each], prefix.get(each.session)) for each in counts]


def total_counts(counts: Sequence[SessionCount]) -> list[Row]:
    """Return a row for each mode, over all sessions."""
    exact = [each for each in counts if each.mode == "exact"]
    prefix = sum(each.sum_field("recomputed") for each in exact) if exact else None
    groups: dict[tuple[str, int], list[SessionCount]] = {}
    for each in counts:
        groups.setdefault((each.mode, each.idle), []).append(each)
    return [_make_row("all", found, prefix) for found in groups.values()]


def make_edit_rows(edits: Sequence[EditCount]) -> list[Row]:
    """Return a row for each edit and mode."""
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


def total_edits(edits: Sequence[EditCount]) -> list[Row]:
    """Return a row for each source and mode: medians over the edits, and the worst tenth."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in make_edit_rows(edits):
        groups.setdefault((row["source"], row["mode"]), []).append(row)
        groups.setdefault(("all", row["mode"]), []).append(row)
    return [
        {
            "source": source,
            "mode": mode,
            "edits": len(found),
            "prompt_tokens": take_median(found, "prompt_tokens"),
            "recomputed_tokens": take_median(found, "recomputed_tokens"),
            "recomputed_share": take_median(found, "recomputed_share"),
            "recomputed_vs_prefix": take_median(found, "recomputed_vs_prefix"),
            "recomputed_vs_prefix_p90": take_percentile((row["recomputed_vs_prefix"] for row in found), 90),
        }
        for (source, mode), found in groups.items()
    ]


def make_time_rows(times: Sequence[PairTimes]) -> list[Row]:
    """Return a row for each pair of turns and mode or peer: medians over the rounds."""
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


def total_times(times: Sequence[PairTimes]) -> list[Row]:
    """Return a row for each kind of turn and mode or peer: over its pairs."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in make_time_rows(times):
        kind = "edit" if row["source"] in ("recorded", "made") else row["source"]
        groups.setdefault((kind, row["mode"]), []).append(row)
    return [
        {
            "kind": kind,
            "mode": mode,
            "pairs": len(found),
            "recomputed_tokens": take_median(found, "recomputed_tokens"),
            "ttft_p50": take_median(found, "ttft_seconds"),
            "ttft_p90": take_percentile((row["ttft_seconds"] for row in found), 90),
            "ttft_ratio_cold": take_median(found, "ttft_ratio_cold"),
            "ttft_ratio_prefix": take_median(found, "ttft_ratio_prefix"),
            "floor": take_median(found, "floor_seconds"),
            "same_first_token": _compute_share(row["same_first_token"] for row in found),
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
    under `edit` tokens and times of the turn after an edit.

    Times of the sessions are those of turns after a compaction, where the modes differ.
    """
    summary = summarise_counts(counts)
    for name, kept in summarise_counts(workspace).items():
        summary.setdefault(name, {})["workspace"] = kept
    for row in total_edits(edits):
        if row["source"] == "all":
            kept = {key: value for key, value in row.items() if key not in ("source", "mode")}
            summary.setdefault(row["mode"], {})["edit"] = kept
    for row in total_times(times):
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


def summarise_counts(counts: Sequence[SessionCount]) -> Row:
    """By mode, over all sessions, with idle time between turns; with less or none under keys of their own."""
    summary: Row = {}
    for row in total_counts(counts):
        kept = {key: row[key] for key in row if key not in ("session", "mode", "idle")}
        own = summary.setdefault(row["mode"], {})
        if row["idle"] == ALL or row["mode"] in EXACT_MODES:
            own.update(kept)
        else:
            own[f"idle_{row['idle']}_tokens"] = kept
    return summary


def _make_row(session: str, counts: Sequence[SessionCount], prefix: int | None) -> Row:
    sums = {name: sum(each.sum_field(name) for each in counts) for name in COUNTED}
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


def _compute_share(values: Iterable[bool | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def render_counts(title: str, counts: Sequence[SessionCount]) -> str:
    """Render the tokens by mode, over all sessions."""
    totals = [row | {"name": _name_mode(row)} for row in total_counts(counts)]
    for row in totals:
        row["reasons"] = ", ".join(f"{reason} {tokens:,}" for reason, tokens in row["recomputed_by"].items())
    columns = {
        title: "{name}",
        "turns": "{turns:,}",
        "prompt tokens": "{prompt_tokens:,}",
        "cached exact": "{cached_tokens:,}",
        "reused approx.": "{reused_tokens:,}",
        "recomputed": "{recomputed_tokens:,}",
        "of prompt": "{recomputed_share:.2%}",
        "of exact prefix's": "{recomputed_vs_prefix:.1%}",
        "by reason": "{reasons}",
        "after compactions": "{recomputed_after_compaction:,}",
        "run while idle": "{rebuilt_tokens:,}",
    }
    new = f"New in its turn, so that no prefix can hold it: {totals[0]['new_share']:.2%} of the prompt tokens."
    return f"{render_rows(totals, columns)}\n\n{new}"


def render_edits(edits: Sequence[EditCount]) -> str:
    """Render the tokens of the turn after an edit, by where the edits come from."""
    return render_rows(
        total_edits(edits),
        {
            "one edit in the middle": "{source}",
            "mode": "{mode}",
            "edits": "{edits}",
            "prompt tokens": "{prompt_tokens:,.0f}",
            "recomputed": "{recomputed_tokens:,.0f}",
            "of exact prefix's": "{recomputed_vs_prefix:.1%}",
            "p90": "{recomputed_vs_prefix_p90:.1%}",
        },
    )


def render_times(times: Sequence[PairTimes]) -> str:
    """Render the times to the first token, by kind of turn."""
    return render_rows(
        total_times(times),
        {
            "turn": "{kind}",
            "": "{mode}",
            "turns": "{pairs}",
            "recomputed": "{recomputed_tokens:n}",
            "p50 s": "{ttft_p50:.3f}",
            "p90 s": "{ttft_p90:.3f}",
            "of cold": "{ttft_ratio_cold:.3f}",
            "of exact prefix's": "{ttft_ratio_prefix:.3f}",
            "floor s": "{floor:.3f}",
            "same token": "{same_first_token:.1%}",
        },
    )


def _name_mode(row: Row) -> str:
    if row["mode"] in EXACT_MODES or row["idle"] == ALL:
        return str(row["mode"])
    return f"{row['mode']}, idle {row['idle']:,}" if row["idle"] else f"{row['mode']}, never idle"
