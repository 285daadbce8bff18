"""How right and how fast the editor is on recorded edits: `python -m benchmarks.edit --cases FILE_OR_FOLDER`.

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
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cases import DEFAULT_CASES, Case, Loaded
from benchmarks.choosing import add_case_flags, add_part_flag, chosen, in_part, load_cases, print_left_out
from benchmarks.edit.measuring import Row, measure, measure_also
from benchmarks.edit.peers import compare
from benchmarks.edit.round_trips import Failure, run
from benchmarks.edit.samples import read_samples
from benchmarks.edit.scale import measure_scale
from benchmarks.edit.summary import counts, reading_table, summarise, table
from benchmarks.machine import describe
from benchmarks.snippets import imitations
from benchmarks.snippets.parts import PARTS


def main() -> None:
    """Run what the command line asks for, print the tables and write the JSON."""
    options = _options()
    loaded = load_cases(options)
    print(describe())
    cases = chosen(in_part([*loaded.cases, *_made(options)], options.part), options.format, options.limit, options.seed)
    rows = [measure(case, options.repeats) for case in cases]
    also = [row for case in cases if isinstance(case, Case) for row in measure_also(case, options.repeats)]
    summary: dict[str, Any] = summarise(rows)
    summary["also"] = {f"{row.format} of {row.shape}": {} for row in also}
    for title in summary["also"]:
        summary["also"][title] = counts([row for row in also if f"{row.format} of {row.shape}" == title])
    summary["wrong_certain_anywhere"] = sum(row.wrong_certain for row in rows + also)
    summary |= {"skipped_files": list(loaded.skipped_files), "unusable": list(loaded.unusable)}
    summary["parser_samples"] = read_samples(loaded.skipped_files)
    _print(summary, rows + also, loaded)
    if options.peers:
        summary["peers"] = compare([case for case in cases if isinstance(case, Case)], options.seed)
        _print_peers(summary["peers"])
    if options.scale:
        summary["scale"] = measure_scale()
        _print_scale(summary["scale"])
    failures: list[Failure] = []
    if options.round_trips:
        summary["round_trips"], failures = run(options.round_trips, options.seed, loaded.cases)
        _print_round_trips(summary["round_trips"], failures)
    if options.json:
        found = {"summary": summary, "rows": [{**asdict(row), "ms": row.ms} for row in rows + also]}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    if summary["wrong_certain"] or failures:
        sys.exit("wrong and claimed certain: see above")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_flags(parser)
    add_part_flag(parser)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each case (default 5)")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="time other matchers too")
    parser.add_argument("--scale", action=argparse.BooleanOptionalAction, default=True, help="time a 1 MB file, too")
    parser.add_argument("--round-trips", type=int, default=0, help="this many generated round trips, too")
    parser.add_argument("--commits", type=Path, default=DEFAULT_CASES / "commits", help="where they are made from")
    parser.add_argument("--made", type=int, default=0, help="this many snippets made from commits of the part, too")
    return parser.parse_args()


def _made(options: argparse.Namespace) -> list[Case]:
    """Make snippets of the part, or as many of each with `--part all`."""
    if not options.made:
        return []
    parts = [part for part in PARTS if options.part in (part, "all")]
    return [
        case for part in parts for case in imitations(options.commits, options.made // len(parts), options.seed, part)
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
    print(table(blocks))
    if summary["readings"]["n"]:
        readings = [("read", summary["readings"]), ("hidden deletions", summary["hidden"])]
        readings += [(f"style {name}", block) for name, block in summary["by_style"].items()]
        readings += [(f"language {name}", block) for name, block in summary["by_language"].items()]
        print("readings of lazy snippets, with 95 % intervals:")
        print(reading_table(readings))
        print(f"certain {summary['certain']}, likely {summary['likely']}")
    for row in rows:
        right = row.outcome == "exact" or (row.outcome == "refused" and row.expects != "text")
        if (not right and not row.variety) or row.outcome == "wrong" or (right and row.format == "v4a" and row.detail):
            reason = ", ".join(row.failed_checks) or f"{row.reason} {row.detail}".strip() or row.rung
            print(f"  {'WRONG, CERTAIN' if row.wrong_certain else row.outcome:<15} {row.format:<14} {row.id}: {reason}")
    samples = summary["parser_samples"]
    if samples["files"]:
        print(f"diffs without their files: {samples['read']} of {samples['files']} read; refused:")
        for name, message in samples["refused"].items():
            print(f"  {name}: {message}")
    print_left_out(loaded)


def _print_peers(peers: dict[str, Any]) -> None:
    if not peers:
        return
    print(f"matchers on the same {peers['cases']} cases, in alternation ({peers['note']});")
    print("time over hunk's (parse and merge) in all and in the median case, and over hunk's with its checks:")
    for name, found in peers.items():
        if isinstance(found, dict):
            ratios = [found[f"{kind}_{own}"] for own in ("hunk", "hunk_verified") for kind in ("ratio", "median_ratio")]
            times = "  ".join(f"{ratio:7.2f}x" for ratio in ratios)
            right = f"{found['exact']:>4} of {found['cases']} right"
            print(f"  {name:<15}{right}, median {found['median_ms']:8.3f} ms  {times}")


def _print_round_trips(found: dict[str, Any], failures: Sequence[Failure]) -> None:
    total = sum(results["cases"] for results in found.values())
    print(f"{total} generated round trips, apply(diff(a, b), a) == b; {len(failures)} failures:")
    for name, results in found.items():
        print(f"  {name:<15} " + ", ".join(f"{number} {what}" for what, number in results.items()))
    for failure in sorted(failures, key=lambda failure: len(failure.before) + len(failure.after))[:10]:
        print(f"  FAILED {failure.format}: {failure.before!r} -> {failure.after!r}, but: {failure.got!r}")


def _print_scale(scale: dict[str, Any]) -> None:
    print("parse and merge of one large file:")
    for name, found in scale.items():
        each = "; ".join(
            f"{x['bytes'] / 1e6:.1f} MB, {x['hunks']} hunks: {x['ms']:.0f} ms ({x['result']})" for x in found
        )
        print(f"  {name:<15} {each}")


if __name__ == "__main__":
    main()
