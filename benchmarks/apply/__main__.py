"""How right, how sure and how fast the whole pipeline is: `python -m benchmarks.apply --cases FILE_OR_FOLDER`.

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

With `--styles`, the cases are lazy snippets made from the texts before and after of all recorded edits (see
`benchmarks.snippets`) instead of the edits themselves. With `--exec`, a merge is also run through its case's own tests
in a sandbox. With `--growth`, what an edit costs by the length of its file is measured instead of cases, on `--limit`
edits (4).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import UnknownModel
from agent_runtime.process import settle
from agent_runtime.types import Decide, Mode, Options, ScopeName
from benchmarks.apply.growth import grow, growth_table
from benchmarks.apply.measuring import Row, measure
from benchmarks.apply.sandbox import sandbox
from benchmarks.apply.summary import executions, summarise, table
from benchmarks.cases import AnyCase, Case
from benchmarks.choosing import add_case_flags, chosen, load_cases, print_left_out
from benchmarks.machine import describe
from benchmarks.snippets import STYLES, make_snippet, pairs

if TYPE_CHECKING:
    from agent_runtime.llm.merger import ModelMerger


def main() -> None:
    """Run what the command line asks for, print the tables and write the JSON."""
    settle()
    options = _options()
    wanted = Options(mode=options.mode, scope=options.scope, decide=options.decide)
    applier = Applier(_model_source(options.model))
    if options.growth:
        summary: dict[str, Any] = {"growth": grow(pairs(options.cases), applier, wanted, options.limit or 4)}
        rows: list[Row] = []
        print(describe())
        print(growth_table(summary["growth"]))
    else:
        rows, summary = _run(options, applier, wanted)
    summary |= {"model": options.model, "mode": options.mode, "scope": options.scope, "decide": options.decide}
    if options.json:
        found = {"summary": summary, "rows": [{**asdict(row), "ms": row.ms} for row in rows]}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    if summary.get("wrong_certain"):
        sys.exit("wrong and claimed certain: see above")


def _run(options: argparse.Namespace, applier: Applier, wanted: Options) -> tuple[list[Row], dict[str, Any]]:
    loaded = load_cases(options)
    cases: Sequence[AnyCase] = _snippets(options) if options.styles else loaded.cases
    cases = chosen(cases, options.format, options.limit, options.seed)
    rows: list[Row] = []
    with suppress(KeyboardInterrupt):  # what was measured until then is worth its summary
        for case in cases:
            rows.append(measure(case, applier, wanted, run_tests=options.execute))
            _say(rows, len(cases))
    summary = summarise(rows)
    summary |= {"skipped_files": list(loaded.skipped_files), "unusable": list(loaded.unusable)}
    print(describe())
    print(table(summary))
    if options.execute:
        summary["sandbox"] = sandbox().restrictions
        print(f"the cases' own tests ({sandbox().restrictions}):\n{executions(summary) or 'none were run'}")
    _print_rows(rows)
    print_left_out(loaded)
    return rows, summary


def _say(rows: Sequence[Row], num_cases: int) -> None:
    row = rows[-1]
    said = f"{row.outcome}{' (model)' if row.asked_model else ''} {row.execution}"
    print(f"{len(rows)}/{num_cases} {said:<32}{row.seconds:7.2f} s  {row.id}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_flags(parser)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="opened when an edit first needs it")
    parser.add_argument("--mode", choices=get_args(Mode), default="auto")
    parser.add_argument("--scope", choices=get_args(ScopeName), default=Options().scope)
    parser.add_argument("--decide", choices=get_args(Decide), default=Options().decide)
    parser.add_argument(
        "--styles", nargs="+", choices=(*STYLES, "all"), help="lazy snippets made in these styles instead"
    )
    parser.add_argument("--exec", dest="execute", action="store_true", help="run the cases' own tests, in a sandbox")
    parser.add_argument("--growth", action="store_true", help="seconds an edit by the length of the file instead")
    return parser.parse_args()


def _model_source(name: str) -> Callable[[], ModelMerger]:
    @cache
    def opened() -> ModelMerger:
        from agent_runtime.models.config import LoadOptions, ModelSettings
        from agent_runtime.wiring import open_merger

        print(f"opening {name}", file=sys.stderr, flush=True)
        return open_merger(name, ModelSettings.from_env(os.environ), LoadOptions())

    return opened


def _snippets(options: argparse.Namespace) -> list[AnyCase]:
    """Make one case for each recorded edit and style that can say it."""
    styles = STYLES if "all" in options.styles else tuple(dict.fromkeys(options.styles))
    found: list[AnyCase] = []
    for pair in pairs(options.cases):
        for style in styles:
            edit = make_snippet(pair.before, pair.after, pair.path, style, options.seed)
            if edit is not None:
                name = f"{pair.id}/{style}"
                found.append(Case(name, "snippet", "lazy", pair.path, pair.before, edit, pair.after, style=style))
    return found


def _print_rows(rows: Sequence[Row]) -> None:
    for row in rows:
        right = row.outcome == "exact" or (row.outcome == "refused" and row.expects != "text")
        if right and row.execution in ("", "passed"):
            continue
        outcome = "WRONG, CERTAIN" if row.wrong_certain else row.outcome
        why = ", ".join(row.failed_checks) or row.reason or row.certainty
        layout = " (layout only)" if row.outcome == "wrong" and row.syntax_equal else ""
        tests = f" [tests: {row.execution}]" if row.execution else ""
        print(f"  {outcome:<15} {row.format:<14} {row.id}: {why}{layout}{tests}")


if __name__ == "__main__":
    try:
        main()
    except UnknownModel as error:
        sys.exit(str(error))
