"""Measure how fast the engine is: `python -m benchmarks.engine --model M --peers vllm,transformers`.

Prefill of cold prompts and its share of the GEMM ceiling that is measured with it, plain decoding by batch size,
what a request waits for its first token while others decode, a cached prefix, and passes over k draft tokens. Greedy,
bf16, the same token ids and the same number of new tokens for everyone; each contestant has a process of its own, and
they run in turns. Figures are medians over the rounds. A peer's output must be ours, but for near-ties; else its speed
is not shown.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from agent_runtime.errors import ModelUnavailable
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import read_folder_tokenizer
from benchmarks.engine.report import (
    Outcome,
    make_agreement_rows,
    make_figure_rows,
    make_pass_rows,
    render_tables,
    run_contest,
    summarise,
)
from benchmarks.engine.workload import Text, make_measures, read_source_text, select_fitting
from benchmarks.harness import describe_machine, make_parser, say, warn_if_busy, write_json
from benchmarks.peers.contest import is_there, open_entrants
from benchmarks.peers.environments import PEERS
from benchmarks.peers.protocol import ContestantFailed

CONTEXT = 9216
"""Tokens of the longest prompt and its answer, and some more."""

KINDS = ("prefill", "decode", "load", "prefix")
"""First words of the measures' names."""


def main() -> None:
    """Measure every model, print the tables and write the JSON."""
    options = _options()
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    peers = [name for name in options.peers.split(",") if name and is_there(name, cache_dir)]
    print(describe_machine(), flush=True)
    load = warn_if_busy()
    summaries: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for model in options.model.split(","):
        try:
            outcome = _measure(model, peers, options, cache_dir)
        except (ContestantFailed, ModelUnavailable) as error:
            sys.exit(str(error))
        print(f"\n{model}: " + ", ".join(outcome.versions.values()) + f"\n\n{render_tables(outcome)}", flush=True)
        summaries.append(summarise(model, outcome))
        found = make_figure_rows(outcome) + make_pass_rows(outcome) + make_agreement_rows(outcome)
        rows += [{"model": model, **row} for row in found]
    machine = {"machine": describe_machine(), "load_at_start": load, "rounds": options.rounds}
    write_json(options.json, summaries[0] | machine | {"models": summaries}, rows)


def _options() -> argparse.Namespace:
    parser = make_parser("engine", __doc__)
    parser.add_argument(
        "--model", default="qwen2.5-coder-0.5b", help="names, by commas; the first one is the summary's"
    )
    parser.add_argument(
        "--quantize",
        choices=["none", "int8", "int4"],
        default="none",
        help="our weights; peers of GGUF files have as many bits",
    )
    parser.add_argument("--peers", default="", help=f"some of {','.join(PEERS)} (`make peers` installs them)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--only", default=",".join(KINDS), help="only these measures, by commas")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if unknown := set(options.only.split(",")) - set(KINDS):
        parser.error(f"--only: there is no measure {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    return options


def _measure(model: str, peers: list[str], options: argparse.Namespace, cache_dir: Path) -> Outcome:
    say(f"{model}: loading in {', '.join(['hunk', *peers])}")
    with open_entrants(model, CONTEXT, peers, cache_dir, quantize=options.quantize) as found:
        tokenizer, _ = read_folder_tokenizer(found.folder)
        text = Text(tokenizer.encode(read_source_text()))
        chosen = [measure for measure in make_measures(text) if measure.name.split(" ")[0] in options.only.split(",")]
        chosen = select_fitting(
            chosen, min(CONTEXT, found.config.max_positions), lambda why: print(why, file=sys.stderr)
        )
        return run_contest(found, chosen, text, options.rounds)


if __name__ == "__main__":
    main()
