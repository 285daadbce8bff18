"""Measure whether a file changes beyond its edit, and whether edits are guessed: `python -m benchmarks.trust`.

Parts, named with `--only`:

    planted    right results, and the same with one planted corruption, sent as a model's answer and as a rule's result
    ambiguous  explicit edits whose text stands in several places or nowhere, sent through all six interfaces ("doors")
               with a model that counts its calls
    stale      edits of files that have changed since the edit was written
    resent     edits that were merged right, applied again to their own result
    adversary  edits made to break the rules
    slowest    processor time of inputs that are meant to be slow

`summary` of the JSON: planted, detected, legal_other (planted texts that are another legal reading of the edit; they do
not count as planted), correct, correct_refused, repaired_exact; ambiguous (edits times doors), guessed, model_calls;
stale, stale_wrong (certain merges), stale_noop_wrong, stale_likely, stale_likely_wrong; resent, resent_changed,
resent_refused; adversary_right, adversary_wrong, and both as adversary_certain_* with `min_certainty: certain`;
slowest_s. `rows` have a `kind`: counts by place, class, format, source and style, then each case that went wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from agent_runtime.certainty import Certainty
from agent_runtime.process import set_environment
from benchmarks.cases import DEFAULT_CASES, Case
from benchmarks.harness import One, describe_machine, group_by, make_parser, map_in_processes, say, write_json
from benchmarks.slow_inputs import make_slow_inputs
from benchmarks.trust import adversary, ambiguous
from benchmarks.trust import stale as other_states
from benchmarks.trust.ambiguous import DOORS
from benchmarks.trust.corruptions import CORRUPTIONS
from benchmarks.trust.planted import RIGHT, Row, measure
from benchmarks.trust.report import make_blocks, render_counted, render_planted, render_right
from benchmarks.trust.right_results import load_right_results

_SUMMED = ("planted", "detected", "legal_other", "correct", "correct_refused", "repaired_exact")
_NUM_SHOWN = 50

Rows = list[dict[str, Any]]


def main() -> None:
    """Run what the command line asks for, print the tables and write the JSON."""
    set_environment()
    options = _options()
    if not options.cases.exists():
        sys.exit(f"{options.cases}: no such folder; name one with --cases")
    print(describe_machine())
    cases = load_right_results(options.cases, options.limit, options.seed)
    summary: dict[str, Any] = {}
    rows: Rows = []
    for part in (part for part in PARTS if part in options.only):
        started = time.monotonic()
        found = PARTS[part](cases, options)
        say(f"{part}: {time.monotonic() - started:.0f} s")
        summary |= found[0]
        rows += found[1]
    write_json(options.json, summary, rows)


def _run_planted(cases: Sequence[Case], options: argparse.Namespace) -> tuple[dict[str, Any], Rows]:
    tasks = [(case, _draw_classes(options, number), options.seed) for number, case in enumerate(cases)]
    found = map_in_processes(_measure_task, tasks, options.workers, 4)
    rows = [row for some in _show_progress("planted", found, len(cases)) for row in some]
    made = make_blocks(rows)
    print(render_planted(made))
    print(render_right(made))
    return {key: made[0][key] for key in _SUMMED}, made + [
        {"kind": "case", **asdict(row)}
        for row in rows
        if (row.is_refused if row.name == RIGHT else row.legal or not row.is_detected)
    ]


def _measure_task(task: tuple[Case, Sequence[str], int]) -> list[Row]:
    return measure(*task)


def _draw_classes(options: argparse.Namespace, number: int) -> tuple[str, ...]:
    """Return the classes of corruptions for one right result; over all results, each class is equally often drawn."""
    names = list(CORRUPTIONS)
    Random(f"classes\0{options.seed}\0{number // len(names)}").shuffle(names)
    first = number % len(names)
    return tuple((names[first:] + names[:first])[: options.plants])


def _run_ambiguous(cases: Sequence[Case], options: argparse.Namespace) -> tuple[dict[str, Any], Rows]:
    explicit = [case for case in cases if case.format != "lazy"]
    num_edits = ambiguous.NUM_EDITS if options.limit is None else min(ambiguous.NUM_EDITS, options.limit)
    edits = ambiguous.make_ambiguous_edits(explicit, num_edits, options.seed)
    sent = list(_show_progress("ambiguous", ambiguous.send_all(edits), len(edits) * len(DOORS)))

    def count(some: Sequence[ambiguous.Sending]) -> dict[str, int]:
        return {
            "ambiguous": len(some),
            "guessed": sum(one.guessed for one in some),
            "model_calls": sum(one.model_calls for one in some),
            "ambiguous_crashed": sum(bool(one.crashed) for one in some),
        }

    rows: Rows = [
        {"kind": "ambiguous", "name": name, **count(some)}
        for kind in ("door", "format", "style")
        for name, some in group_by(sent, lambda one, kind=kind: f"{kind} {getattr(one, kind)}").items()  # type: ignore[misc]
    ]
    print(render_counted("ambiguous", [*rows, {"name": "all", **count(sent)}]))
    rows += [{"kind": "ambiguous case", **asdict(one)} for one in sent if one.guessed or one.model_calls or one.crashed]
    return count(sent), rows


def _run_stale(cases: Sequence[Case], options: argparse.Namespace) -> tuple[dict[str, Any], Rows]:
    num_chained = other_states.NUM_CHAINED if options.limit is None else min(other_states.NUM_CHAINED, options.limit)
    stale = other_states.make_stale_cases(cases, options.cases, num_chained, options.seed)
    found = map_in_processes(other_states.send_stale, stale, options.workers, 8)
    outcomes, rows = _count_states("stale", list(_show_progress("stale", found, len(stale))))
    return {
        "stale": outcomes.total(),
        "stale_wrong": outcomes["wrong"] + outcomes["crashed"],
        "stale_noop_wrong": outcomes["noop_wrong"],
        "stale_likely": outcomes["likely"] + outcomes["likely_wrong"],
        "stale_likely_wrong": outcomes["likely_wrong"],
    }, rows


def _run_resent(cases: Sequence[Case], options: argparse.Namespace) -> tuple[dict[str, Any], Rows]:
    found = map_in_processes(other_states.send_again, cases, options.workers, 8)
    sent = [one for one in _show_progress("resent", found, len(cases)) if one is not None]
    outcomes, rows = _count_states("resent", sent)
    return {
        "resent": outcomes.total(),
        "resent_changed": outcomes["wrong"] + outcomes["crashed"],
        "resent_refused": outcomes["refused"],
    }, rows


def _count_states(kind: str, sent: Sequence[other_states.Sent]) -> tuple[Counter[str], Rows]:
    """Count outcomes by state of the file, format and style, and print the counts and what went wrong."""
    keys: tuple[Callable[[other_states.Sent], str], ...] = (
        lambda one: one.kind,
        lambda one: f"format {one.format}",
        lambda one: f"style {one.source}/{one.style}",
    )
    rows: Rows = []
    for key in keys:
        for name, some in group_by(sent, key).items():
            rows.append({"kind": kind, "name": name, "cases": len(some), **Counter(one.outcome for one in some)})
    print(render_counted(kind, [row for row in rows if not row["name"].startswith("style ")]))
    wrong = [one for one in sent if one.outcome in ("wrong", "likely_wrong", "noop_wrong", "crashed")]
    for one in wrong:
        print(f"  {one.outcome.upper()} {one.kind} {one.format} {one.source}/{one.style} {one.id}")
    rows += [{**asdict(one), "kind": f"{kind} case", "state": one.kind} for one in wrong]
    return Counter(one.outcome for one in sent), rows


def _run_adversary(cases: Sequence[Case], options: argparse.Namespace) -> tuple[dict[str, Any], Rows]:
    found = list(adversary.judge_cases(options.cases / "adversary", options.limit, options.seed))
    rows = adversary.count_verdicts(found)
    print(render_counted("adversary", rows))
    wrong = [one for one in found if one.verdict in adversary.WRONG]
    for one in wrong[:_NUM_SHOWN]:
        print(f"  {one.verdict} {one.file}: {one.name} ({one.least})")
    rows += [{"kind": "adversary case", **asdict(one)} for one in found if one.verdict not in adversary.RIGHT]
    return _count_adversary(found, "model", "adversary") | _count_adversary(found, "certain", "adversary_certain"), rows


def _count_adversary(found: Sequence[adversary.Verdict], least: Certainty, name: str) -> dict[str, int]:
    """Count the verdicts with one `min_certainty`."""
    verdicts = [one.verdict for one in found if one.least == least]
    return {
        f"{name}_right": sum(one in adversary.RIGHT for one in verdicts),
        f"{name}_wrong": sum(one in adversary.WRONG for one in verdicts),
    }


def _run_slowest(cases: Sequence[Case], options: argparse.Namespace) -> tuple[dict[str, Any], Rows]:
    scale = 1.0 if options.limit is None else 0.1
    found = list(_show_progress("slowest", adversary.time_inputs(make_slow_inputs(scale)), None))
    found.sort(key=lambda one: -one.seconds)
    for one in found[:10]:
        print(f"  {one.seconds:7.2f} s  {one.outcome:<9} {one.num_bytes:>9} bytes  {one.name}")
    slowest = found[0].seconds if found else None
    return {"slowest_s": slowest, "slowest_scale": scale}, [{"kind": "slow", **asdict(one)} for one in found]


PARTS: dict[str, Callable[[Sequence[Case], argparse.Namespace], tuple[dict[str, Any], Rows]]] = {
    "planted": _run_planted,
    "ambiguous": _run_ambiguous,
    "stale": _run_stale,
    "resent": _run_resent,
    "adversary": _run_adversary,
    "slowest": _run_slowest,
}


def _options() -> argparse.Namespace:
    parser = make_parser("trust", __doc__)
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="the folder of recorded data")
    parser.add_argument(
        "--limit", type=int, help="only a sample of this many right results; other parts shrink with it"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of samples and corruptions")
    parser.add_argument("--only", type=_parse_parts, default=tuple(PARTS), help=f"only these parts: {','.join(PARTS)}")
    parser.add_argument("--plants", type=int, default=10, help="corruptions of each right result (default 10)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="number of processes")
    return parser.parse_args()


def _parse_parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
    return names


def _show_progress(part: str, found: Iterable[One], total: int | None) -> Iterator[One]:
    """Yield each result, and print the progress every ten seconds."""
    said = time.monotonic()
    for number, one in enumerate(found, start=1):
        yield one
        if time.monotonic() - said > 10:
            said = time.monotonic()
            say(f"{part}: {number}{'' if total is None else f'/{total}'}")


if __name__ == "__main__":
    main()
