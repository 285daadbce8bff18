"""Count forward passes by way of drafting: `python -m benchmarks.forwards`.

No model runs: the target is the text after a real edit, and a draft is accepted as far as it equals it. A case is a
pair of texts of at least 80 lines, before and after, turned into a lazy snippet by the seeded maker, in each style
that can say it. M, the merge that is drafted, is the editor's merge or its first candidate, even when it is wrong;
where the editor has none, the original is drafted first.

Counted are the passes after the prefill, which gives the first token itself. The merge draft's first window, all of M,
is fused with the prefill; after that a pass drafts 1,024 tokens at most. The first row below it has this cap in the
fused pass, too; its other rows have nothing fused, as the general servers, whose windows are their own. Recreated from:

    pointer             one pointer over the original and the update that re-synchronises on the longest match, 256
    longest suffix      what followed the last place with the longest match of the output's tail, up to 64 tokens, 128
    n-gram              vLLM's ngram method: what followed the first place of the longest match of 2 to 5 tokens, 64
    suffix decoding     vLLM's suffix method (Arctic): the commonest continuation, as long as the match; in its tree of
                        depth 24 that is 12 tokens at most
    prompt lookup       transformers: what followed the first place of the last 2 tokens (1 where there is none), 10
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runtime.errors import HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, resolve
from agent_runtime.process import set_environment
from benchmarks.cases import DEFAULT_CASES
from benchmarks.forwards.cases import ForwardsCase, count_files, make_cases
from benchmarks.forwards.drafters import DRAFTERS, MERGE_DRAFT, count_forwards
from benchmarks.harness import make_parser, write_json
from repo_cache.tokenizer import BPETokenizer

GROUPS = ("all", "merge right", "merge wrong", "no merge")


@dataclass(frozen=True, slots=True)
class Count:
    """What one case takes with each way of drafting, by name."""

    case: ForwardsCase
    forwards: dict[str, int]


def make_rows(counts: Sequence[Count]) -> list[dict[str, Any]]:
    """Return a row for each way of drafting over all cases, and over those of each group that has any."""
    return [row for group in GROUPS for row in _make_group_rows(group, counts)]


def summarise(counts: Sequence[Count], drafter: str) -> dict[str, Any]:
    """Return one drafter's figures over all cases, and what the cases are."""
    cases = [one.case for one in counts]
    by_style: dict[str, list[int]] = defaultdict(list)
    by_group: dict[str, int] = defaultdict(int)
    for one in counts:
        by_style[one.case.style].append(one.forwards[drafter])
        by_group[one.case.group] += 1
    return {
        "cases": len(cases),
        **_compute_figures([one.forwards[drafter] for one in counts]),
        "edits": len({(case.before, case.target) for case in cases}),
        "files": count_files(cases),
        "mean_tokens": round(statistics.fmean(len(case.target) for case in cases)),
        "mean_hunks": round(statistics.fmean(case.num_hunks for case in cases), 2),
        "groups": {group: by_group[group] for group in GROUPS if group in by_group},
        "mean_by_style": {style: round(statistics.fmean(found), 2) for style, found in sorted(by_style.items())},
    }


def make_case_row(one: Count) -> dict[str, Any]:
    case = one.case
    what = {"id": case.id, "style": case.style, "group": case.group, "tokens": len(case.target)}
    return what | {"hunks": case.num_hunks, "forwards": one.forwards}


def render_lines(rows: Sequence[dict[str, Any]], summary: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{summary['cases']} snippets of {summary['edits']} edits of {summary['files']} different files; "
        f"mean {summary['mean_tokens']:,} tokens, {summary['mean_hunks']} hunks"
    )
    for group in GROUPS:
        members = [row for row in rows if row["group"] == group]
        if members:
            yield ""
            yield f"| forward passes after the prefill; {group}: {members[0]['cases']} | mean | median | p90 | most |"
            yield "| --- | --- | --- | --- | --- |"
            for row in members:
                figures = (f"{row[key]:,}" for key in ("mean", "median", "p90", "most"))
                yield f"| {row['drafter']} | {' | '.join(figures)} |"
    yield ""
    yield "mean by style: " + ", ".join(f"{style} {mean}" for style, mean in summary["mean_by_style"].items())


def _make_group_rows(group: str, counts: Sequence[Count]) -> Iterator[dict[str, Any]]:
    members = [one for one in counts if group in ("all", one.case.group)]
    for drafter in members[0].forwards if members else ():
        figures = _compute_figures([one.forwards[drafter] for one in members])
        yield {"group": group, "drafter": drafter, "cases": len(members), **figures}


def _compute_figures(numbers: Sequence[int]) -> dict[str, float]:
    ordered = sorted(numbers)
    return {
        "mean": round(statistics.fmean(ordered), 2),
        "median": statistics.median(ordered),
        "p90": ordered[-(-9 * len(ordered) // 10) - 1],
        "most": ordered[-1],
    }


TOKENIZER = "qwen2.5-coder-0.5b"


def main(arguments: Sequence[str] | None = None, tokenizer: BPETokenizer | None = None) -> None:
    """Count, print the table and write the JSON."""
    options = _options(arguments)
    tokenizer = tokenizer or _open_tokenizer()
    cases = make_cases(options.cases, tokenizer.encode, limit=options.limit, seed=options.seed)
    if not cases:
        sys.exit(f"{options.cases} holds no pair of 80 lines that a snippet can be made of")
    counts = count_cases(cases, tokenizer.token_bytes())
    rows, summary = make_rows(counts), summarise(counts, MERGE_DRAFT)
    print("\n".join(render_lines(rows, summary)))
    write_json(options.json, summary, rows, cases=[make_case_row(one) for one in counts])


def count_cases(cases: Sequence[ForwardsCase], token_bytes: Sequence[bytes]) -> list[Count]:
    """Run every case with every way of drafting."""
    counts = []
    for number, case in enumerate(cases, start=1):
        print(f"\r{number}/{len(cases)} counted", end="", file=sys.stderr, flush=True)
        found = {
            name: count_forwards(drafter.make(case, token_bytes), case.target, drafter.windows)
            for name, drafter in DRAFTERS.items()
        }
        counts.append(Count(case, found))
    print(file=sys.stderr)
    return counts


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("forwards", __doc__)
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="a .jsonl or .jsonl.gz file, or a folder")
    parser.add_argument("--limit", type=int, help="a sample of this many cases")
    parser.add_argument("--seed", type=int, default=0, help="for the snippets and the sample")
    options = parser.parse_args(arguments)
    if not options.cases.exists():
        sys.exit(f"{options.cases}: no such file or folder; name one with --cases")
    return options


def _open_tokenizer() -> BPETokenizer:
    from agent_runtime.models.tokenizer import (  # loads torch, which `set_environment` must come before
        read_folder_tokenizer,
        read_gguf_tokenizer,
    )
    from engine.weights.gguf import GGUFModel

    try:
        files = resolve(TOKENIZER, ModelStore(ModelSettings.from_env(os.environ).cache_dir))
    except HunkError as error:
        sys.exit(f"the tokenizer is that of {TOKENIZER}: {error}")
    return (read_gguf_tokenizer(GGUFModel(files.path)) if files.kind == "gguf" else read_folder_tokenizer(files.path))[
        0
    ]


if __name__ == "__main__":
    set_environment()
    main()
