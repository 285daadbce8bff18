"""Whether a file changes beyond its edit, and whether anybody guesses: `python -m benchmarks.trust`.

Parts, named with `--only`:

    planted    right results, and the same with one corruption planted, sent as a model's answer and as a rule's result
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_runtime.process import settle
from benchmarks.cases import DEFAULT_CASES
from benchmarks.machine import describe
from benchmarks.trust.corruptions import CORRUPTIONS
from benchmarks.trust.planted import RIGHT, Row, measure_all
from benchmarks.trust.right_results import right_results
from benchmarks.trust.summary import blocks, planted_table, right_table

PARTS = ("planted",)
SHOWN = ("missed", "refused", "legal_other", "certain")


def main() -> None:
    """Run what the command line asks for, print the tables and write the JSON."""
    settle()
    options = _options()
    if not options.cases.exists():
        sys.exit(f"{options.cases}: no such folder; name one with --cases")
    print(describe())
    summary: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    if "planted" in options.only:
        rows = _measured(options)
        made = blocks(rows)
        print(planted_table(made))
        print(right_table(made))
        _show(rows, options.show, options.shown)
        summary |= {key: made[0][key] for key in made[0] if key not in ("kind", "name")}
        found += made
        found += [{"kind": "case", **asdict(row)} for row in rows if _is_telling(row)]
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "rows": found}, indent=1, ensure_ascii=False), "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="the folder of recorded data")
    parser.add_argument("--limit", type=int, help="a sample of this many right results")
    parser.add_argument("--seed", type=int, default=0, help="for samples and corruptions")
    parser.add_argument("--only", type=_parts, default=PARTS, help=f"parts, with commas between: {','.join(PARTS)}")
    parser.add_argument("--classes", type=_classes, default=tuple(CORRUPTIONS), help="corruptions, commas between")
    parser.add_argument("--show", choices=SHOWN, action="append", default=[], help="print a sample of these")
    parser.add_argument("--shown", type=int, default=50, help="how many of them (default 50)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--json", type=Path, help="write summary and rows there")
    return parser.parse_args()


def _parts(text: str) -> tuple[str, ...]:
    return _named(text, PARTS)


def _classes(text: str) -> tuple[str, ...]:
    return _named(text, tuple(CORRUPTIONS))


def _named(text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
    return names


def _measured(options: argparse.Namespace) -> list[Row]:
    cases = right_results(options.cases, options.limit, options.seed)
    rows: list[Row] = []
    started = time.monotonic()
    for number, some in enumerate(measure_all(cases, options.classes, options.seed, options.workers), start=1):
        rows += some
        if number % 50 == 0 or number == len(cases):
            print(f"planted: {number}/{len(cases)} {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return rows


def _is_telling(row: Row) -> bool:
    return row.is_refused if row.name == RIGHT else bool(row.legal) or not row.is_detected


def _show(rows: Sequence[Row], kinds: Sequence[str], num_shown: int) -> None:
    picked = {
        "missed": [row for row in rows if row.name != RIGHT and not row.legal and not row.is_detected],
        "refused": [row for row in rows if row.name == RIGHT and row.is_refused],
        "legal_other": [row for row in rows if row.legal],
        "certain": [row for row in rows if row.certain],
    }
    for kind in kinds:
        found = picked[kind]
        step = max(1, len(found) // num_shown)
        print(f"{kind}: {len(found)}")
        for row in found[::step][:num_shown]:
            sent = f"answer {row.as_answer}, rule {row.as_rule}"
            print(f"  {row.name} {row.format} {row.source}/{row.style} {row.id} line {row.line}: {row.what}")
            print(f"    {sent}; {row.legal} {' | '.join(row.failed)}")


if __name__ == "__main__":
    main()
