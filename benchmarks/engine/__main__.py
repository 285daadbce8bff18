"""How fast the engine is: `python -m benchmarks.engine --model qwen2.5-coder-0.5b --peers vllm,transformers`.

Prefill of cold prompts and its share of the GEMM ceiling that is measured beside it, plain decoding by batch size,
what a request waits for its first token while others decode, a cached prefix, passes over k draft tokens, and the
operations and bytes of each pass with the least time for them on this machine. Greedy, bf16, the same token ids and
the same number of new tokens for everyone; each contestant has a process of its own, and they run in turns. Figures
are medians over the rounds. A peer's output must be ours, but for near-ties; else its speed is not shown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from agent_runtime.errors import ModelUnavailable
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import read_folder_tokenizer
from benchmarks.engine.contest import Outcome, hold
from benchmarks.engine.contestants import entrants
from benchmarks.engine.rows import agreement_rows, figure_rows, pass_rows, summary
from benchmarks.engine.tables import tables
from benchmarks.engine.workload import Text, fitting, measures, source_text
from benchmarks.machine import describe
from benchmarks.peers.contestant import ContestantFailed
from benchmarks.peers.environments import PEERS

CONTEXT = 9216
"""Tokens of the longest prompt and its answer, and some more."""

KINDS = ("prefill", "decode", "load", "prefix")
"""First words of the measures' names."""

BUSY = 0.5
"""Load of the machine, in running processes, from which on a measurement says little."""


def main() -> None:
    """Measure every model, print the tables and write the JSON."""
    options = _options()
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    peers = [name for name in options.peers.split(",") if name and is_there(name, cache_dir)]
    print(describe(), flush=True)
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"the machine is busy (load {load:.1f}): these figures are not to be kept", file=sys.stderr)
    summaries: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for model in options.model.split(","):
        try:
            outcome = _measure(model, peers, options, cache_dir)
        except (ContestantFailed, ModelUnavailable) as error:
            sys.exit(str(error))
        print(f"\n{model}: " + ", ".join(outcome.versions.values()) + f"\n\n{tables(outcome)}", flush=True)
        summaries.append(summary(model, outcome))
        found = figure_rows(outcome) + pass_rows(outcome) + agreement_rows(outcome)
        rows += [{"model": model, **row} for row in found]
    if options.json:
        machine = {"machine": describe(), "load_at_start": load, "rounds": options.rounds}
        written = {"summary": summaries[0] | machine | {"models": summaries}, "rows": rows}
        options.json.write_text(json.dumps(written, indent=1), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="qwen2.5-coder-0.5b", help="names, by commas; the first one is the summary's"
    )
    parser.add_argument("--peers", default="", help=f"some of {','.join(PEERS)} (`make peers` installs them)")
    parser.add_argument("--json", type=Path, help="write summary and rows there, too")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--only", default=",".join(KINDS), help="only these measures, by commas")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if unknown := set(options.only.split(",")) - set(KINDS):
        parser.error(f"--only: there is no measure {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    return options


def is_there(name: str, cache_dir: Path) -> bool:
    """Tell whether a peer can take part; one that cannot is named."""
    if name not in PEERS:
        sys.exit(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    there = PEERS[name].python(cache_dir) is not None
    if not there:
        print(f"{name} is left out: its environment is not there; run `make peers`", file=sys.stderr)
    return there


def _measure(model: str, peers: list[str], options: argparse.Namespace, cache_dir: Path) -> Outcome:
    print(f"{model}: loading in {', '.join(['hunk', *peers])}", file=sys.stderr, flush=True)
    with entrants(model, CONTEXT, peers, cache_dir) as found:
        tokenizer, _ = read_folder_tokenizer(found.folder)
        text = Text(tokenizer.encode(source_text()))
        chosen = [measure for measure in measures(text) if measure.name.split(" ")[0] in options.only.split(",")]
        chosen = fitting(chosen, min(CONTEXT, found.config.max_positions), lambda why: print(why, file=sys.stderr))
        return hold(found, chosen, text, options.rounds)


if __name__ == "__main__":
    main()
