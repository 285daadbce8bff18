"""Rows of the pipeline to counts: the keys of interfaces.md, by format, set and style, and the table for people."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import counting
from benchmarks.apply.executing import Execution
from benchmarks.apply.measuring import Row
from benchmarks.counting import Counts, by, count, goals, percentile

_COLUMNS = counting.COLUMNS | {
    "wrong_syntax_equal": "w.layout",
    "exact_share": "right",
    "asked_model": "asked",
    "seconds_p50": "p50 s",
    "seconds_p99": "p99 s",
    "forwards_mean": "forwards",
}
_EXECUTIONS: tuple[Execution, ...] = ("passed", "failed", "timeout", "unavailable", "invalid")


def summarise(rows: Sequence[Row]) -> Counts:
    """Count the goals, as `benchmarks.edit` does: inexact data is part of them, variety apart, unless it is all."""
    found = goals(rows)
    summary: dict[str, Any] = {
        **counts(found),
        "by_format": by(found, lambda row: row.format, counts),
        "by_set": by(found, lambda row: row.shape, counts),
        "by_style": by([row for row in found if row.style], lambda row: row.style, counts),
        "by_certainty": by([row for row in found if row.certainty], lambda row: row.certainty, counts),
        "inexact": counts([row for row in found if row.inexact]),
        "variety": by([row for row in rows if row.variety], lambda row: row.shape, counts),
    }
    return summary


def counts(rows: Sequence[Row]) -> Counts:
    """Return the counts of one block.

    `exact_share` is over the cases that have a right result. `syntax_equal` counts merges whose tree is that of the
    expected text, the exact ones among them; `wrong_syntax_equal` those that count as wrong. `asked_model` counts the
    cases that a model was asked for, `forwards_mean` is over these. `exec_*` counts merges by what their tests said.
    """
    seconds = sorted(row.seconds for row in rows)
    forwards = [row.usage["forwards"] for row in rows if row.asked_model and row.usage]
    executions = Counter(row.execution for row in rows)
    found = count(rows)
    mergeable = [row for row in rows if row.expects == "text"]
    exact = sum(row.outcome == "exact" for row in mergeable)
    return {
        **found,
        "exact_share": round(exact / len(mergeable), 4) if mergeable else None,
        "syntax_equal": sum(row.syntax_equal for row in rows),
        "wrong_syntax_equal": sum(row.syntax_equal and row.outcome == "wrong" for row in rows),
        "asked_model": sum(row.asked_model for row in rows),
        "seconds_p50": percentile(seconds, 0.50),
        "seconds_p99": percentile(seconds, 0.99),
        "forwards_mean": round(statistics.fmean(forwards), 2) if forwards else None,
        **({f"exec_{name}": executions[name] for name in _EXECUTIONS} if any(executions.keys() - {""}) else {}),
    }


def table(summary: Counts) -> str:
    """Lay out all blocks of a summary."""
    return counting.table(_blocks(summary), _COLUMNS)


def executions(summary: Counts) -> str:
    """Say in one line a block what the cases' own tests said, "" where none was run."""
    lines = []
    for title, block in _blocks(summary):
        if "exec_passed" in block:
            lines.append(f"{title}: " + ", ".join(f"{block[f'exec_{name}']} {name}" for name in _EXECUTIONS))
    return "\n".join(lines)


def _blocks(summary: Counts) -> Iterable[tuple[str, Counts]]:
    yield "all", summary
    for key, title in (("by_format", "format"), ("by_set", "set"), ("by_style", "style"), ("by_certainty", "claims")):
        for name, block in summary[key].items():
            yield f"{title} {name}", block
    yield "of all: inexact", summary["inexact"]
    for name, block in summary["variety"].items():
        yield f"apart: {name}", block
