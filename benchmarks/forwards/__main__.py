"""Forward passes an edited file, by way of drafting: `python -m benchmarks.forwards`.

No model runs: the target is the text after a real edit, and a draft is accepted as far as it equals it. A case is a
pair of texts of at least 80 lines, before and after, turned into a lazy snippet by the seeded maker, in each style
that can say it. M, the merge that is drafted, is the editor's merge or its first candidate, even when it is wrong;
where the editor has none, the original is drafted first.

Counted are the passes behind the prefill, which gives the first token itself. The merge draft's first window, all of M,
is fused with the prefill; behind that a pass drafts 1,024 tokens at most. The first row below it has this cap in the
fused pass, too; its other rows have nothing fused, as the general servers, whose windows are their own. Recreated from:

    pointer             one pointer over the original and the update that re-synchronises on the longest match, 256
    longest suffix      what followed the last place with the longest match of the output's tail, up to 64 tokens, 128
    n-gram              vLLM's ngram method: what followed the first place of the longest match of 2 to 5 tokens, 64
    suffix decoding     vLLM's suffix method (Arctic): the commonest continuation, as long as the match; in its tree of
                        depth 24 that is 12 tokens at most
    prompt lookup       transformers: what followed the first place of the last 2 tokens (1 where there is none), 10

With `--model`, a model writes the same cases through the engine, which decides how far it drafts; `right` counts those
in which it wrote the text after the edit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_runtime.errors import HunkError
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.store import ModelStore, resolve
from agent_runtime.process import settle
from benchmarks.cases import DEFAULT_CASES
from benchmarks.forwards.cases import ForwardsCase, made_cases
from benchmarks.forwards.counting import forwards
from benchmarks.forwards.drafters import DRAFTERS, MERGE_DRAFT
from benchmarks.forwards.summary import Count, case_row, model_summary, rows_of, summary_of, table
from repo_cache.tokenizer import BPETokenizer

TOKENIZER = "qwen2.5-coder-0.5b"


def main(arguments: Sequence[str] | None = None, tokenizer: BPETokenizer | None = None) -> None:
    """Count, print the table and write the JSON."""
    options = _options(arguments)
    tokenizer = tokenizer or _tokenizer()
    cases = made_cases(options.cases, tokenizer.encode, limit=options.limit, seed=options.seed)
    if not cases:
        sys.exit(f"{options.cases} holds no pair of 80 lines that a snippet can be made of")
    counts = count(cases, tokenizer.token_bytes())
    rows, summary = rows_of(counts), summary_of(counts, MERGE_DRAFT)
    print("\n".join(table(rows, summary)))
    by_model: list[dict[str, Any]] = []
    if options.model:
        from benchmarks.forwards.model_runs import run_with  # loads torch

        by_model = run_with(options.model, cases)
        summary["model"] = model_summary(options.model, by_model)
        print(json.dumps(summary["model"], indent=1))
    if options.json:
        found = {"summary": summary, "rows": rows, "cases": [case_row(one) for one in counts], "by_model": by_model}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def count(cases: Sequence[ForwardsCase], token_bytes: Sequence[bytes]) -> list[Count]:
    """Run every case with every way of drafting."""
    counts = []
    for number, case in enumerate(cases, start=1):
        print(f"\r{number}/{len(cases)} counted", end="", file=sys.stderr, flush=True)
        found = {
            name: forwards(drafter.make(case, token_bytes), case.target, drafter.windows)
            for name, drafter in DRAFTERS.items()
        }
        counts.append(Count(case, found))
    print(file=sys.stderr)
    return counts


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forwards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="a .jsonl or .jsonl.gz file, or a folder")
    parser.add_argument("--limit", type=int, help="a sample of this many cases")
    parser.add_argument("--seed", type=int, default=0, help="for the snippets and the sample")
    parser.add_argument("--model", help="also have this model write them, which takes a minute or so each")
    parser.add_argument("--json", type=Path, help="write summary and rows there")
    options = parser.parse_args(arguments)
    if not options.cases.exists():
        sys.exit(f"{options.cases}: no such file or folder; name one with --cases")
    return options


def _tokenizer() -> BPETokenizer:
    from agent_runtime.models.tokenizer import (  # loads torch, which `settle` must come before
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
    settle()
    main()
