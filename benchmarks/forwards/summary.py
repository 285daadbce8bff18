"""Rows, summary and table of the counts."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.forwards.cases import ForwardsCase, num_files

GROUPS = ("all", "merge right", "merge wrong", "no merge")


@dataclass(frozen=True, slots=True)
class Count:
    """What one case takes with each way of drafting, by name."""

    case: ForwardsCase
    forwards: dict[str, int]


def rows_of(counts: Sequence[Count]) -> list[dict[str, Any]]:
    """A row for each way of drafting over all cases, and over those of each group that has any."""
    return [row for group in GROUPS for row in _rows(group, counts)]


def summary_of(counts: Sequence[Count], drafter: str) -> dict[str, Any]:
    """One drafter's figures over all cases, and what the cases are."""
    cases = [one.case for one in counts]
    by_style: dict[str, list[int]] = defaultdict(list)
    by_group: dict[str, int] = defaultdict(int)
    for one in counts:
        by_style[one.case.style].append(one.forwards[drafter])
        by_group[one.case.group] += 1
    return {
        "cases": len(cases),
        **_figures([one.forwards[drafter] for one in counts]),
        "edits": len({(case.before, case.target) for case in cases}),
        "files": num_files(cases),
        "mean_tokens": round(statistics.fmean(len(case.target) for case in cases)),
        "mean_hunks": round(statistics.fmean(case.num_hunks for case in cases), 2),
        "groups": {group: by_group[group] for group in GROUPS if group in by_group},
        "mean_by_style": {style: round(statistics.fmean(found), 2) for style, found in sorted(by_style.items())},
    }


def case_row(one: Count) -> dict[str, Any]:
    """One case, for the JSON."""
    case = one.case
    what = {"id": case.id, "style": case.style, "group": case.group, "tokens": len(case.target)}
    return what | {"hunks": case.num_hunks, "forwards": one.forwards}


def model_summary(model: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a real model took for the cases."""
    return {
        "model": model,
        "cases": len(rows),
        **_figures([row["forwards"] for row in rows]),
        "mean_completion": round(statistics.fmean(row["completion"] for row in rows)),
        "right": sum(row["right"] for row in rows),
        "cut": sum(row["finish_reason"] == "length" for row in rows),
    }


def table(rows: Sequence[dict[str, Any]], summary: dict[str, Any]) -> Iterator[str]:
    """The lines that are printed."""
    yield (
        f"{summary['cases']} snippets of {summary['edits']} edits of {summary['files']} different files; "
        f"mean {summary['mean_tokens']:,} tokens, {summary['mean_hunks']} hunks"
    )
    for group in GROUPS:
        members = [row for row in rows if row["group"] == group]
        if members:
            yield ""
            yield f"| forward passes behind the prefill; {group}: {members[0]['cases']} | mean | median | p90 | most |"
            yield "| --- | --- | --- | --- | --- |"
            for row in members:
                figures = (f"{row[key]:,}" for key in ("mean", "median", "p90", "most"))
                yield f"| {row['drafter']} | {' | '.join(figures)} |"
    yield ""
    yield "mean by style: " + ", ".join(f"{style} {mean}" for style, mean in summary["mean_by_style"].items())


def _rows(group: str, counts: Sequence[Count]) -> Iterator[dict[str, Any]]:
    members = [one for one in counts if group in ("all", one.case.group)]
    for drafter in members[0].forwards if members else ():
        figures = _figures([one.forwards[drafter] for one in members])
        yield {"group": group, "drafter": drafter, "cases": len(members), **figures}


def _figures(numbers: Sequence[int]) -> dict[str, float]:
    ordered = sorted(numbers)
    return {
        "mean": round(statistics.fmean(ordered), 2),
        "median": statistics.median(ordered),
        "p90": ordered[-(-9 * len(ordered) // 10) - 1],
        "most": ordered[-1],
    }
