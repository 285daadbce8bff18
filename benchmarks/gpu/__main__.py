"""How fast the engine is on a card: `python -m benchmarks.gpu [--model 7b] [--json OUT]`.

Models are shapes with random weights (Qwen2.5, 1.5B and 7B), nothing is downloaded. Measured are cold prompts, plain
decoding, copied edits and the time to the first token of a second turn at 8k, 32k and 128k tokens of context, beside
the least time that the card allows, whose copy and GEMM rates are measured in the same run. Copied are recorded edits:
the drafts are those of an apply, the model does all of its work, and what it chooses is then overwritten by what was
recorded, so that as much is accepted as was then. Before all that, two layers in float32 have to write the same on the
card as on the CPU, token by token and with drafts.

`--count-only` needs no card: it prints what is counted on one that is stated, and how the edits' drafts are accepted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import DEFAULT_CASES
from benchmarks.gpu.counted import CONTEXTS, accepted_passes
from benchmarks.gpu.edits import OWN_EDITS, Edit, edits
from benchmarks.gpu.gate import fault
from benchmarks.gpu.measuring import measure
from benchmarks.gpu.pieces import TextTokens, tokens_at_hand
from benchmarks.gpu.shapes import SHAPES, random_parameters
from benchmarks.gpu.tables import acceptance_lines, bound_lines, claim_lines, copied_lines, rows
from benchmarks.machine import describe
from benchmarks.ops.__main__ import NO_CARD
from benchmarks.ops.ceilings import STATED, Ceilings, NoCard, cuda_device, measured
from benchmarks.ops.timing import CudaTimer
from engine.decoder import Decoder
from kernels.tuner import use_folder
from kernels.tuner.store import default_folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Count or measure, print the tables and write the JSON."""
    options = _options(arguments)
    if options.count_only:
        _count(options, Ceilings(STATED.name, 1e12 * options.bandwidth, 1e12 * options.tflops))
        return
    try:
        device = cuda_device()
    except NoCard as error:
        print(error, file=sys.stderr)
        sys.exit(NO_CARD)
    use_folder(options.store)
    _measure(options, device, measured(device, CudaTimer()))


def _count(options: argparse.Namespace, ceilings: Ceilings) -> None:
    tokens, found = _edits(options)
    patterns = [accepted_passes(each.draft(tokens), each.output) for each in found]
    print(ceilings)
    written: list[dict[str, Any]] = []
    for name in options.model:
        config = SHAPES[name]
        print("\n".join(["", f"{name}:", "", *bound_lines(config, ceilings), "", *claim_lines(config, ceilings)]))
        print("\n".join(["", *acceptance_lines(config, ceilings, found, patterns)]), flush=True)
        written += rows(name, config, ceilings, None)
    _write(options, ceilings, written)


def _measure(options: argparse.Namespace, device: torch.device, ceilings: Ceilings) -> None:
    tokens, found_edits = _edits(options)
    print(f"{describe()}\n{ceilings}", flush=True)
    written: list[dict[str, Any]] = []
    for name in options.model:
        config = SHAPES[name]
        wrong = fault(config, device, options.seed)
        if wrong is not None:
            sys.exit(f"{name}: {wrong}: no speed is shown")
        decoder = Decoder(random_parameters(config, torch.bfloat16, device, options.seed))
        found = measure(decoder, found_edits, tokens, options.rounds, options.most_context)
        del decoder
        torch.cuda.empty_cache()
        print("\n".join(["", f"{name}:", "", *bound_lines(config, ceilings, found), "", *copied_lines(found)]))
        print("\n".join(found.faults), flush=True)
        written += rows(name, config, ceilings, found)
    _write(options, ceilings, written)


def _edits(options: argparse.Namespace) -> tuple[TextTokens, list[Edit]]:
    tokens, whose = tokens_at_hand()
    found = edits(options.cases, tokens, limit=options.limit, seed=options.seed)
    print(f"{len(found)} edits of {options.cases}, {whose}", flush=True)
    return tokens, found


def _write(options: argparse.Namespace, ceilings: Ceilings, written: list[dict[str, Any]]) -> None:
    if options.json:
        summary = {
            "machine": describe(),
            "card": ceilings.name,
            "copy_bytes_s": ceilings.copy_bytes_s,
            "flops_s": ceilings.flops_s,
            "measured": not options.count_only,
        }
        options.json.write_text(json.dumps({"summary": summary, "rows": written}, indent=1), encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", choices=SHAPES, help="only this one; may be given again")
    there = DEFAULT_CASES if DEFAULT_CASES.is_dir() else OWN_EDITS
    parser.add_argument("--cases", type=Path, default=there, help="recorded edits; without any, those of the tests")
    parser.add_argument("--limit", type=int, default=12, help="so many edits")
    parser.add_argument("--seed", type=int, default=1, help="for weights, prompts and the choice of edits")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--most-context", type=int, default=max(CONTEXTS), help="no second turn is longer than this")
    parser.add_argument(
        "--store", type=Path, default=default_folder(os.environ), help="winners of kernels.tune (default: %(default)s)"
    )
    parser.add_argument("--count-only", action="store_true", help="print what is counted; runs on any machine")
    parser.add_argument("--bandwidth", type=float, default=STATED.copy_bytes_s / 1e12, help="TB/s, for --count-only")
    parser.add_argument("--tflops", type=float, default=STATED.flops_s / 1e12, help="TFLOP/s, for --count-only")
    parser.add_argument("--json", type=Path, help="write summary and rows there")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.limit) < 1 or min(options.bandwidth, options.tflops) <= 0:
        parser.error("--rounds and --limit must be at least 1, --bandwidth and --tflops above 0")
    if not options.cases.exists():
        parser.error(f"{options.cases}: no such file or folder; name one with --cases")
    options.model = options.model or list(SHAPES)
    return options


if __name__ == "__main__":
    main()
