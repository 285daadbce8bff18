"""Measure what an edit costs by the length of its file: one edit of about ten lines in files of 200 to 10,000 lines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from agent_runtime.apply.pipeline import Applier
from agent_runtime.types import Options
from benchmarks.apply.run import Row, measure
from benchmarks.cases import Case
from benchmarks.edit_formats import diff_texts
from benchmarks.harness import say
from benchmarks.scoring import render_counts
from benchmarks.snippets import Pair, make_merge, make_snippet

LENGTHS = (200, 1_000, 3_000, 10_000)
EDIT_LINES = range(6, 16)
_STYLE = "markers"
_MAX_SEEDS = 200
_COLUMNS = {
    "lines": "lines",
    "edits": "edits",
    "exact": "exact",
    "wrong": "wrong",
    "given_median": "lines given",
    "seconds_median": "median s",
    "ratio": "of the shortest",
    "prompt_mean": "prompt",
    "completion_mean": "completion",
    "forwards_mean": "forwards",
}


def measure_growth(
    found: Sequence[Pair], applier: Applier, options: Options, num_edits: int, lengths: Sequence[int] = LENGTHS
) -> list[dict[str, Any]]:
    """Apply the same edits, written with markers, by the model in files of each length; return a block for each.

    One edit goes through all lengths before the next one does, so that a machine whose speed drifts is fair to all; the
    first apply, which warms up, is not counted. `ratio` is the median over the edits of an edit's seconds over those
    that it takes in the shortest file.
    """
    options = replace(options, mode="model")
    edits = list(islice(_make_edits(found, lengths), num_edits))
    if not edits:
        raise SystemExit("the cases hold no edit of about ten lines in a definition: name others with --cases")
    measure(edits[0][0], applier, options)
    rows = [[_measure_case(case, applier, options) for case in edit] for edit in edits]
    return [
        _summarise_length(length, [row[at] for row in rows], [row[0] for row in rows])
        for at, length in enumerate(lengths)
    ]


def render_growth(blocks: Sequence[dict[str, Any]]) -> str:
    """Lay the blocks out as lines of text."""
    return render_counts([("", block) for block in blocks], _COLUMNS)


def _make_edits(found: Sequence[Pair], lengths: Sequence[int]) -> Iterator[list[Case]]:
    """Yield the same edit in files of all lengths, for one seed after the other; no edit twice."""
    known: set[str] = set()
    for seed in range(_MAX_SEEDS):
        made = [make_merge(found, length, 1, seed) for length in lengths]
        cases = [case for pair in made if (case := _make_case(pair)) is not None]
        edit = _render_new_lines(made[0])
        if len(cases) == len(lengths) and edit not in known:
            known.add(edit)
            yield cases


def _make_case(pair: Pair) -> Case | None:
    if _render_new_lines(pair).count("\n") not in EDIT_LINES:
        return None
    edit = make_snippet(pair.before, pair.after, pair.path, _STYLE, 0)
    return None if edit is None else Case(pair.id, "growth", "lazy", pair.path, pair.before, edit, pair.after)


def _render_new_lines(pair: Pair) -> str:
    after = pair.after.split("\n")
    spans = diff_texts(pair.before.split("\n"), after)
    return "".join(line + "\n" for span in spans for line in after[span.b_start : span.b_end])


def _measure_case(case: Case, applier: Applier, options: Options) -> Row:
    row = measure(case, applier, options)
    say(f"{row.outcome:<16}{row.seconds:7.2f} s  {row.id} {row.reason}")
    return row


def _summarise_length(length: int, rows: Sequence[Row], shortest: Sequence[Row]) -> dict[str, Any]:
    ratios = [row.seconds / first.seconds for row, first in zip(rows, shortest, strict=True)]
    return {
        "lines": length,
        "edits": len(rows),
        "exact": sum(row.outcome == "exact" for row in rows),
        "wrong": sum(row.outcome == "wrong" for row in rows),
        "refused": sum(row.outcome not in ("exact", "wrong") for row in rows),
        "given_median": statistics.median(row.scope_lines for row in rows),
        "seconds_median": round(statistics.median(row.seconds for row in rows), 2),
        "ratio": round(statistics.median(ratios), 2),
        "prompt_mean": _compute_mean(rows, "prompt"),
        "completion_mean": _compute_mean(rows, "completion"),
        "forwards_mean": _compute_mean(rows, "forwards"),
    }


def _compute_mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row.usage[name] for row in rows if row.usage]
    return round(statistics.fmean(values), 1) if values else None
