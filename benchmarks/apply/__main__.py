"""Measure how right, sure and fast the whole pipeline is: `python -m benchmarks.apply --cases FILE_OR_FOLDER`.

Each case goes through the pipeline in this process, as a request to the service does: parsed, merged by rule, decided
by a model where the mode says so, verified. Every case falls into one count:

    exact            merged, checks passed, and equal to what was expected, byte for byte
    first_candidate  refused, and the first of the readings that the rules found is what was expected
    any_candidate    refused, and another one is
    refused          refused, or a check rejected the merge; or rightly refused where nothing may be merged
    wrong            anything else; `wrong_certain` of them claimed to be certain, which is the figure to fear

Data whose PROVENANCE says that final newlines and blank lines are inexact is compared modulo those and also counted
apart (`inexact`); input variety (EditEval, unit tests of other projects) is counted apart only. A wrong merge whose
syntax tree is that of the expected text differs in layout alone: `wrong_syntax_equal`.

With `--chooser untrained`, a model's scores are judged by fixed weights instead of the trained ones.

A long run goes on where it stopped with `--resume FILE`: each row is appended there as soon as it is measured.

With `--styles`, the cases are lazy snippets made from the texts before and after of all recorded edits (see
`benchmarks.snippets`) instead of the edits themselves. With `--growth`, what an edit costs by the length of its file
is measured instead of cases, on `--limit` edits (4).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import UnknownModel
from agent_runtime.models.config import Dtype, KVDtype, LoadOptions, ModelSettings, Quantize
from agent_runtime.process import set_environment
from agent_runtime.types import Decide, Mode, Options, ScopeName
from benchmarks.apply.growth import measure_growth, render_growth
from benchmarks.apply.run import Row, RowJournal, measure
from benchmarks.cases import (
    AnyCase,
    Case,
    add_case_flags,
    add_part_flag,
    load_cases,
    print_left_out,
    select_cases,
    select_part,
)
from benchmarks.harness import describe_machine, make_parser, say, write_json
from benchmarks.scoring import (
    COLUMNS,
    Counts,
    count_outcomes,
    group_counts,
    render_counts,
    select_goals,
    take_percentile,
)
from benchmarks.snippets import STYLES, make_snippet, read_pairs

if TYPE_CHECKING:
    from agent_runtime.llm.merger import ModelMerger

OWN_COLUMNS = {
    "wrong_syntax_equal": "w.layout",
    "exact_share": "right",
    "asked_model": "asked",
    "seconds_p50": "p50 s",
    "seconds_p99": "p99 s",
    "forwards_mean": "forwards",
}


_SETTINGS = ("model", "mode", "scope", "decide", "chooser", "dtype", "quantize", "kv_dtype", "device")
"""The options that decide what an answer is."""


def main() -> None:
    """Run what the command line asks for, print the tables and write the JSON."""
    set_environment()
    options = _options()
    wanted = Options(mode=options.mode, scope=options.scope, decide=options.decide)
    how = LoadOptions(dtype=options.dtype, quantize=options.quantize, device=options.device, kv_dtype=options.kv_dtype)
    applier = Applier(_make_opener(options.model, how, options.chooser))
    if options.growth:
        summary: dict[str, Any] = {
            "growth": measure_growth(read_pairs(options.cases), applier, wanted, options.limit or 4)
        }
        rows: list[Row] = []
        print(describe_machine())
        print(render_growth(summary["growth"]))
    else:
        rows, summary = _run(options, applier, wanted)
    summary |= {name: getattr(options, name) for name in _SETTINGS}
    write_json(options.json, summary, [{**asdict(row), "ms": row.ms} for row in rows])
    if summary.get("wrong_certain"):
        sys.exit("wrong and claimed certain: see above")


def _run(options: argparse.Namespace, applier: Applier, wanted: Options) -> tuple[list[Row], dict[str, Any]]:
    loaded = load_cases(options)
    cases: Sequence[AnyCase] = _make_snippets(options) if options.styles else loaded.cases
    cases = select_cases(select_part(cases, options.part), options.format, options.limit, options.seed)
    journal = RowJournal(options.resume, {name: getattr(options, name) for name in _SETTINGS})
    rows: list[Row] = []
    with suppress(KeyboardInterrupt):  # what was measured until then gets its summary
        for case in cases:
            row = journal.find(case.id) or journal.append(measure(case, applier, wanted))
            rows.append(row)
            said = f"{row.outcome}{' (model)' if row.asked_model else ''}"
            say(f"{len(rows)}/{len(cases)} {said:<24}{row.seconds:7.2f} s  {row.id}")
    summary = summarise(rows)
    summary |= {"skipped_files": list(loaded.skipped_files), "unusable": list(loaded.unusable)}
    print(describe_machine())
    print(render_summary(summary))
    _print_rows(rows)
    print_left_out(loaded)
    return rows, summary


def summarise(rows: Sequence[Row]) -> Counts:
    """Count the goals, as `benchmarks.edit` does: inexact data is part of them, variety apart, unless it is all."""
    found = select_goals(rows)
    return {
        **count_rows(found),
        "by_format": group_counts(found, lambda row: row.format, count_rows),
        "by_set": group_counts(found, lambda row: row.shape, count_rows),
        "by_style": group_counts([row for row in found if row.style], lambda row: row.style, count_rows),
        "by_certainty": group_counts([row for row in found if row.certainty], lambda row: row.certainty, count_rows),
        "inexact": count_rows([row for row in found if row.inexact]),
        "variety": group_counts([row for row in rows if row.variety], lambda row: row.shape, count_rows),
    }


def count_rows(rows: Sequence[Row]) -> Counts:
    """Return the counts of one block.

    `exact_share` is over the cases that have a right result. `syntax_equal` counts merges whose tree is that of the
    expected text, the exact ones among them; `wrong_syntax_equal` those that count as wrong. `asked_model` counts the
    cases that a model was asked for, `forwards_mean` is over these.
    """
    seconds = sorted(row.seconds for row in rows)
    forwards = [row.usage["forwards"] for row in rows if row.asked_model and row.usage]
    mergeable = [row for row in rows if row.expects == "text"]
    exact = sum(row.outcome == "exact" for row in mergeable)
    return {
        **count_outcomes(rows),
        "exact_share": round(exact / len(mergeable), 4) if mergeable else None,
        "syntax_equal": sum(row.syntax_equal for row in rows),
        "wrong_syntax_equal": sum(row.syntax_equal and row.outcome == "wrong" for row in rows),
        "asked_model": sum(row.asked_model for row in rows),
        "seconds_p50": take_percentile(seconds, 0.50),
        "seconds_p99": take_percentile(seconds, 0.99),
        "forwards_mean": round(statistics.fmean(forwards), 2) if forwards else None,
    }


def render_summary(summary: Counts) -> str:
    """Lay out all blocks of a summary."""
    blocks = [("all", summary)]
    for key, title in (("by_format", "format"), ("by_set", "set"), ("by_style", "style"), ("by_certainty", "claims")):
        blocks += [(f"{title} {name}", block) for name, block in summary[key].items()]
    blocks.append(("of all: inexact", summary["inexact"]))
    blocks += [(f"apart: {name}", block) for name, block in summary["variety"].items()]
    return render_counts(blocks, COLUMNS | OWN_COLUMNS)


def _options() -> argparse.Namespace:
    parser = make_parser("apply", __doc__)
    add_case_flags(parser)
    add_part_flag(parser)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="opened when an edit first needs it")
    parser.add_argument("--mode", choices=get_args(Mode), default="auto")
    parser.add_argument("--scope", choices=get_args(ScopeName), default=Options().scope)
    parser.add_argument("--decide", choices=get_args(Decide), default=Options().decide)
    parser.add_argument(
        "--chooser",
        choices=("trained", "untrained"),
        default="trained",
        help="what judges the scores of readings",
    )
    parser.add_argument("--dtype", choices=get_args(Dtype), default="auto", help="of the model (default auto)")
    parser.add_argument("--quantize", choices=get_args(Quantize), default="auto", help="of the model (default auto)")
    parser.add_argument("--kv-dtype", choices=get_args(KVDtype), default="auto", help="of keys and values")
    parser.add_argument("--device", default="cpu", help="where the model runs (default cpu)")
    parser.add_argument("--resume", type=Path, help="take the rows from this file, and append those that it lacks")
    parser.add_argument(
        "--styles", nargs="+", choices=(*STYLES, "all"), help="lazy snippets made in these styles instead"
    )
    parser.add_argument("--growth", action="store_true", help="seconds an edit by the length of the file instead")
    options = parser.parse_args()
    if options.part != "all" and (options.styles or options.growth):
        parser.error("--part: only recorded edits belong to a part, not what --styles and --growth make")
    return options


def _make_opener(name: str, how: LoadOptions, chooser: str) -> Callable[[], ModelMerger]:
    @cache
    def open_once() -> ModelMerger:
        from agent_runtime.wiring import open_merger
        from benchmarks.train_chooser.train import UntrainedMerger

        say(f"opening {name}")
        merger = open_merger(name, ModelSettings.from_env(os.environ), how)
        return UntrainedMerger(merger._loaded) if chooser == "untrained" else merger

    return open_once


def _make_snippets(options: argparse.Namespace) -> list[AnyCase]:
    """Make one case for each recorded edit and style that can say it."""
    styles = STYLES if "all" in options.styles else tuple(dict.fromkeys(options.styles))
    found: list[AnyCase] = []
    for pair in read_pairs(options.cases):
        for style in styles:
            edit = make_snippet(pair.before, pair.after, pair.path, style, options.seed)
            if edit is not None:
                name = f"{pair.id}/{style}"
                found.append(Case(name, "snippet", "lazy", pair.path, pair.before, edit, pair.after, style=style))
    return found


def _print_rows(rows: Sequence[Row]) -> None:
    for row in rows:
        right = row.outcome == "exact" or (row.outcome == "refused" and row.expects != "text")
        if right:
            continue
        outcome = "WRONG, CERTAIN" if row.wrong_certain else row.outcome
        why = ", ".join(row.failed_checks) or row.reason or row.certainty
        layout = " (layout only)" if row.outcome == "wrong" and row.syntax_equal else ""
        print(f"  {outcome:<15} {row.format:<14} {row.id}: {why}{layout}")


if __name__ == "__main__":
    try:
        main()
    except UnknownModel as error:
        sys.exit(str(error))
