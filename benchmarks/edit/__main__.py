"""Measure how right and how fast the editor is on recorded edits: `python -m benchmarks.edit --cases FILE_OR_FOLDER`.

Each case is parsed, merged by rule and verified; the three together are its time, the median of several runs after one
to warm up. Every case falls into one count:

    exact            merged, checks passed, and equal to what was expected, byte for byte
    first_candidate  not decided, and the first candidate is what was expected
    any_candidate    not decided, and another candidate is
    refused          not decided, or a check rejected the merge; or rightly refused where nothing may be merged
    wrong            anything else; `wrong_certain` of them claimed to be certain, which is the figure to fear

Data whose PROVENANCE says that final newlines and blank lines are inexact is compared modulo those and also counted
apart (`inexact`); input variety, where policies of other projects conflict, is counted apart only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cases import (
    DEFAULT_CASES,
    PARTS,
    Case,
    Loaded,
    add_case_flags,
    add_part_flag,
    load_cases,
    print_left_out,
    select_cases,
    select_part,
)
from benchmarks.edit.run import Row, measure, measure_also
from benchmarks.edit_formats import render_lazy, render_search_replace, render_udiff
from benchmarks.harness import describe_machine, make_parser, write_json
from benchmarks.scoring import (
    COLUMNS,
    compute_interval,
    count_outcomes,
    group_counts,
    render_counts,
    select_goals,
    take_percentile,
)
from benchmarks.snippets import make_imitations
from editor.formats import parse
from editor.merge import merge
from editor.types import FormatName, Merged

_LINES = 38_000
_HUNKS = 1_000
_RENDER: Mapping[FormatName, Callable[[str, str], str | None]] = {
    "search_replace": render_search_replace,
    "udiff": lambda before, after: render_udiff(before, after, "big.py"),
    "lazy": lambda before, after: render_lazy(before, after, "# ... existing code ..."),
}


def measure_scale() -> dict[str, Any]:
    """Return milliseconds of parse + merge at 1/2, 1 and 2 times 1 MB with 1,000 hunks, by format."""
    out: dict[str, Any] = {}
    for name, render in _RENDER.items():
        out[name] = [_measure_scale(name, render, factor) for factor in (0.5, 1.0, 2.0)]
    return out


def _measure_scale(name: FormatName, render: Callable[[str, str], str | None], factor: float) -> dict[str, Any]:
    before, after = _make_texts(int(_LINES * factor), int(_HUNKS * factor))
    edit = render(before, after)
    assert edit is not None
    times = []
    for _ in range(3):
        started = time.perf_counter()
        outcome = merge(before, parse(edit, name), "python")
        times.append((time.perf_counter() - started) * 1e3)
    right = isinstance(outcome, Merged) and outcome.text == after
    result = "exact" if right else "wrong" if isinstance(outcome, Merged) else "refused"
    return {
        "bytes": len(before),
        "hunks": int(_HUNKS * factor),
        "ms": round(statistics.median(times), 1),
        "result": result,
    }


def _make_texts(num_lines: int, num_hunks: int) -> tuple[str, str]:
    """Return a Python file of small functions, repetitive as real ones are, and the same with some lines changed."""
    lines = []
    for number in range(num_lines // 5):
        lines += [f"def function_{number}(value, other):", "    if value is None:", "        return other"]
        lines += [f"    return value + {number} * other  # plain arithmetic", ""]
    every = len(lines) // num_hunks
    changed = [f"{line}  # changed" if at % every == 0 and line.strip() else line for at, line in enumerate(lines)]
    return "\n".join(lines), "\n".join(changed)


_SIZES = ((0, 200), (200, 500), (500, 1500), (1500, 10**9))
_COLUMNS = COLUMNS | {"p50_ms": "p50 ms", "p99_ms": "p99 ms", "p50_merge_ms": "p50 unverified"}


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Count the goals; inexact data is part of the counts and counted apart too.

    Variety is only counted apart, unless there is nothing else.
    """
    found = select_goals(rows)
    return {
        **count_rows(found),
        "by_format": group_counts(found, lambda row: row.format, count_rows),
        "by_set": group_counts(found, lambda row: row.shape, count_rows),
        "by_rung": group_counts([row for row in found if row.rung], lambda row: row.rung, count_rows),
        "by_lines": {
            f"{low}-{high - 1}" if high < 10**9 else f"{low}-": count_rows(some)
            for low, high, some in _group_by_size(found)
        },
        "by_style": group_counts(_select_readings(found), lambda row: row.style, count_shares),
        "by_language": group_counts(_select_readings(found), lambda row: row.language, count_shares),
        "readings": count_shares(_select_readings(found)),
        "certain": count_claims(found, "certain"),
        "likely": count_claims(found, "likely"),
        "hidden": count_shares([row for row in found if row.hidden]),
        "inexact": count_rows([row for row in found if row.inexact]),
        "variety": group_counts([row for row in rows if row.variety], lambda row: row.shape, count_rows),
    }


def count_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the counts of one block, with the times without checks."""
    without_checks = sorted(row.parse_ms + row.merge_ms for row in rows)
    return {
        **count_outcomes(rows),
        "format_detected": sum(row.detected_format == row.format for row in rows),
        "p50_merge_ms": take_percentile(without_checks, 0.50),
        "p99_merge_ms": take_percentile(without_checks, 0.99),
    }


def count_shares(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how often the first reading is right, and how often one of all is, exactly and modulo blank lines.

    Each share has its 95 % interval; `certain` and `likely` are the answers given without a model.
    """
    return {
        "n": len(rows),
        "first": count_share([row.first for row in rows]),
        "first_modulo": count_share([row.first_modulo for row in rows]),
        "among": count_share([row.among for row in rows]),
        "among_modulo": count_share([row.among_modulo for row in rows]),
        "certain": count_claims(rows, "certain"),
        "likely": count_claims(rows, "likely"),
    }


def count_share(hits: Sequence[bool]) -> dict[str, Any]:
    """Return how many of the cases are right, their share and its 95 % interval (Wilson)."""
    low, high = compute_interval(sum(hits), len(hits)) or (0.0, 1.0)
    return {
        "right": sum(hits),
        "share": round(sum(hits) / len(hits), 4) if hits else None,
        "low95": low,
        "high95": high,
    }


def count_claims(rows: Sequence[Row], certainty: str) -> dict[str, Any]:
    """Return how many lazy snippets were answered with a certainty, how many of the answers are wrong, and the bound.

    Wrong is what differs in more than blank lines. `upper95` is the upper end of the 95 % interval of the share.
    """
    claimed = [row for row in rows if row.format == "lazy" and row.certainty == certainty]
    wrong = sum(not row.first_modulo if row.expects == "text" else row.outcome == "wrong" for row in claimed)
    return {"n": len(claimed), "wrong": wrong, "upper95": (compute_interval(wrong, len(claimed)) or (0.0, 1.0))[1]}


def render_readings(blocks: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Lay blocks of `count_shares` out as lines of text: the shares in per cent with their intervals."""
    lines: list[tuple[str, ...]] = [("", "n", "first", "modulo blank", "among", "modulo blank", "certain", "likely")]
    for title, block in blocks:
        found = [_format_share(block[key]) for key in ("first", "first_modulo", "among", "among_modulo")]
        claimed = [f"{block[key]['n']} ({block[key]['wrong']} wrong)" for key in ("certain", "likely")]
        lines.append((title, str(block["n"]), *found, *claimed))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _format_share(found: dict[str, Any]) -> str:
    if found["share"] is None:
        return "-"
    return f"{found['share']:.1%} [{found['low95']:.0%}, {found['high95']:.0%}]"


def _select_readings(rows: Sequence[Row]) -> list[Row]:
    """Return the lazy snippets of a known style, less those that hide a deletion."""
    return [row for row in rows if row.format == "lazy" and row.style and row.expects == "text" and not row.hidden]


def _render_blocks(blocks: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Lay blocks of counts out as lines of text, one block a line."""
    return render_counts(blocks, _COLUMNS)


def _group_by_size(rows: Sequence[Row]) -> list[tuple[int, int, list[Row]]]:
    groups = [(low, high, [row for row in rows if low <= row.num_lines < high]) for low, high in _SIZES]
    return [group for group in groups if group[2]]


def main() -> None:
    """Run what the command line asks for, print the tables and write the JSON."""
    options = _options()
    loaded = load_cases(options)
    print(describe_machine())
    cases = select_cases(
        select_part([*loaded.cases, *_make_cases(options)], options.part), options.format, options.limit, options.seed
    )
    rows = [measure(case, options.repeats) for case in cases]
    also = [row for case in cases if isinstance(case, Case) for row in measure_also(case, options.repeats)]
    summary: dict[str, Any] = summarise(rows)
    summary["also"] = {f"{row.format} of {row.shape}": {} for row in also}
    for title in summary["also"]:
        summary["also"][title] = count_rows([row for row in also if f"{row.format} of {row.shape}" == title])
    summary["wrong_certain_anywhere"] = sum(row.wrong_certain for row in rows + also)
    summary |= {"skipped_files": list(loaded.skipped_files), "unusable": list(loaded.unusable)}
    _print(summary, rows + also, loaded)
    if options.scale:
        summary["scale"] = measure_scale()
        _print_scale(summary["scale"])
    write_json(options.json, summary, [{**asdict(row), "ms": row.ms} for row in rows + also])
    if summary["wrong_certain"]:
        sys.exit("wrong and claimed certain: see above")


def _options() -> argparse.Namespace:
    parser = make_parser("edit", __doc__)
    add_case_flags(parser)
    add_part_flag(parser)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each case (default 5)")
    parser.add_argument("--scale", action=argparse.BooleanOptionalAction, default=True, help="time a 1 MB file, too")
    parser.add_argument("--commits", type=Path, default=DEFAULT_CASES / "commits", help="where they are made from")
    parser.add_argument("--made", type=int, default=0, help="this many snippets made from commits of the part, too")
    return parser.parse_args()


def _make_cases(options: argparse.Namespace) -> list[Case]:
    """Make snippets of the part, or as many of each with `--part all`."""
    if not options.made:
        return []
    parts = [part for part in PARTS if options.part in (part, "all")]
    return [
        case
        for part in parts
        for case in make_imitations(options.commits, options.made // len(parts), options.seed, part)
    ]


def _print(summary: dict[str, Any], rows: Sequence[Row], loaded: Loaded) -> None:
    blocks = [("all", summary)]
    blocks += [(f"format {name}", block) for name, block in summary["by_format"].items()]
    blocks += [(f"set {name}", block) for name, block in summary["by_set"].items()]
    blocks += [(f"rung {name}", block) for name, block in summary["by_rung"].items()]
    blocks += [(f"lines {name}", block) for name, block in summary["by_lines"].items()]
    blocks += [("of all: inexact", summary["inexact"])]
    blocks += [(f"apart: {name}", block) for name, block in summary["also"].items()]
    blocks += [(f"apart: {name}", block) for name, block in summary["variety"].items()]
    print(_render_blocks(blocks))
    if summary["readings"]["n"]:
        readings = [("read", summary["readings"]), ("hidden deletions", summary["hidden"])]
        readings += [(f"style {name}", block) for name, block in summary["by_style"].items()]
        readings += [(f"language {name}", block) for name, block in summary["by_language"].items()]
        print("readings of lazy snippets, with 95 % intervals:")
        print(render_readings(readings))
        print(f"certain {summary['certain']}, likely {summary['likely']}")
    for row in rows:
        right = row.outcome == "exact" or (row.outcome == "refused" and row.expects != "text")
        if (not right and not row.variety) or row.outcome == "wrong" or (right and row.format == "v4a" and row.detail):
            reason = ", ".join(row.failed_checks) or f"{row.reason} {row.detail}".strip() or row.rung
            print(f"  {'WRONG, CERTAIN' if row.wrong_certain else row.outcome:<15} {row.format:<14} {row.id}: {reason}")
    print_left_out(loaded)


def _print_scale(scale: dict[str, Any]) -> None:
    print("parse and merge of one large file:")
    for name, found in scale.items():
        each = "; ".join(
            f"{x['bytes'] / 1e6:.1f} MB, {x['hunks']} hunks: {x['ms']:.0f} ms ({x['result']})" for x in found
        )
        print(f"  {name:<15} {each}")


if __name__ == "__main__":
    main()
