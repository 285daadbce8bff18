"""Measure engine and kernels on a card: `python -m benchmarks.gpu [--ops] [--model 7b] [--json OUT]`.

Without `--ops` the engine is measured. Models are shapes with random weights (Qwen2.5, 1.5B and 7B), nothing is
downloaded: cold prompts, plain decoding, copied edits and the time to the first token of a second turn at 8k, 32k and
128k tokens of context. Copied are recorded edits: the drafts are those of an apply, the model does all of its work, and
what it chooses is then overwritten by what was recorded, so that as much is accepted as was then. Before all that, two
layers in float32 have to write the same on the card as on the CPU, token by token and with drafts.

With `--ops` each kernel is measured at each of its shapes, tuned and by default, next to torch's ways (SDPA,
FlexAttention, torch.compile). A way is timed only if its output is right (`kernels.parity`), by CUDA events around
replays of a graph, over inputs that take turns.

The bound is what bytes and operations take at the card's copy and GEMM rates, measured in the same run. `--count-only`
needs no card: it prints the bounds of a card that is stated.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import DEFAULT_CASES
from benchmarks.gpu.bounds import CONTEXTS, SHAPES, compute_bounds, draw_parameters
from benchmarks.gpu.card import STATED, Ceilings, CudaTimer, NoCard, cuda_device, measure_card
from benchmarks.gpu.edits import OWN_EDITS, load_edits, open_tokens
from benchmarks.gpu.engine import Copied, Found, find_fault, measure
from benchmarks.gpu.ops import (
    Measured,
    choose_shapes,
    count_op,
    format_digits,
    make_row,
    measure_op,
    render_op,
    render_ways,
)
from benchmarks.harness import Row, describe_machine, make_parser, write_json
from engine.config import ModelConfig
from engine.decoder import Decoder
from kernels.op import OP_NAMES, Op, Shape, load_op
from kernels.tuner import use_folder
from kernels.tuner.store import get_default_folder

DTYPE = torch.bfloat16

NO_CARD = 2
"""The exit code where there is nothing to measure on."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Count or measure, print the tables and write the JSON."""
    options = _options(arguments)
    device, ceilings = None, Ceilings(STATED.name, 1e12 * options.bandwidth, 1e12 * options.tflops)
    if not options.count_only:
        try:
            device = cuda_device()
        except NoCard as error:
            print(error, file=sys.stderr)
            sys.exit(NO_CARD)
        use_folder(options.store)
        ceilings = measure_card(device, CudaTimer())
        print(f"{describe_machine()}, triton {version('triton')}")
    print(ceilings, flush=True)
    rows = _run_ops(options, device, ceilings) if options.ops else _run_engine(options, device, ceilings)
    summary = {
        "machine": describe_machine(),
        "card": ceilings.name,
        "copy_bytes_s": ceilings.copy_bytes_s,
        "flops_s": ceilings.flops_s,
        "measured": device is not None,
    }
    write_json(options.json, summary, rows)


def _run_ops(options: argparse.Namespace, device: torch.device | None, ceilings: Ceilings) -> list[Row]:
    rows: list[Row] = []
    for name in options.op or OP_NAMES:
        op = load_op(name)
        found: list[Measured] = []
        for shape in options.shapes_of(op):
            if device is None:
                found.append(count_op(op, shape, DTYPE, ceilings))
            else:
                found.append(measure_op(op, shape, DTYPE, device, ceilings, CudaTimer(), options.skip))
                torch.cuda.empty_cache()  # the next shape's inputs are gigabytes, too
        print("\n".join(["", f"{name}:", "", *render_op(found)]), flush=True)
        if device is not None:
            print("\n".join(["", *render_ways(found)]), flush=True)
        rows += map(make_row, found)
    return rows


def _run_engine(options: argparse.Namespace, device: torch.device | None, ceilings: Ceilings) -> list[Row]:
    rows: list[Row] = []
    for name in options.model or SHAPES:
        config, found = SHAPES[name], Found()
        if device is not None:
            tokens, whose = open_tokens()
            edits = load_edits(options.cases, tokens, limit=options.limit, seed=options.seed)
            print(f"{len(edits)} edits of {options.cases}, {whose}", flush=True)
            wrong = find_fault(config, device, options.seed)
            if wrong is not None:
                sys.exit(f"{name}: {wrong}: no speed is shown")
            decoder = Decoder(draw_parameters(config, DTYPE, device, options.seed))
            found = measure(decoder, edits, tokens, options.rounds, options.most_context)
            del decoder
            torch.cuda.empty_cache()
        print(
            "\n".join(["", f"{name}:", "", *render_bounds(config, ceilings, found), "", *render_copied(found.copied)])
        )
        print("\n".join(found.faults), flush=True)
        rows += make_engine_rows(name, config, ceilings, found)
    return rows


def render_bounds(config: ModelConfig, ceilings: Ceilings, found: Found) -> list[str]:
    """Render the best that the card allows, what was measured, and the share of the one that the other is."""
    lines = ["| | at best | measured | share |", "| --- | --: | --: | --: |"]
    for name, bound in compute_bounds(config, ceilings).items():
        cells = [name, format_digits(bound), "", ""]
        if values := found.figures.get(name):
            middle = statistics.median(values)
            cells[2:] = format_digits(middle), f"{middle / bound if name.endswith('tok/s') else bound / middle:.0%}"
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def render_copied(copied: Sequence[Copied]) -> list[str]:
    """Render each edit as it was written, and all of them together; nothing without edits."""
    if not copied:
        return []
    lines = ["| recorded edit | merge | tokens | passes | tokens a pass | tok/s |", "| --- | --- " + "| --: " * 4 + "|"]
    for each in copied:
        rate, mean = statistics.median(each.tok_s), each.num_tokens / len(each.passes)
        lines.append(
            f"| {each.name} | {each.group} | {each.num_tokens:,} | {len(each.passes)} | {format_digits(mean)} | "
            f"{format_digits(rate)} |"
        )
    return [*lines, "", f"All together: {format_digits(compute_total_tok_s(copied))} tok/s."]


def compute_total_tok_s(copied: Sequence[Copied]) -> float:
    """Divide all tokens by all seconds, each edit's the median of its runs."""
    seconds = sum(each.num_tokens / statistics.median(each.tok_s) for each in copied)
    return sum(each.num_tokens for each in copied) / seconds


def make_engine_rows(name: str, config: ModelConfig, ceilings: Ceilings, found: Found) -> list[Row]:
    """Return a row for each figure and each copied edit."""
    figures: list[dict[str, Any]] = [
        {"model": name, "figure": figure, "bound": bound, "values": found.figures.get(figure, [])}
        for figure, bound in compute_bounds(config, ceilings).items()
    ]
    return figures + [
        {"model": name, "edit": each.name, "tokens": each.num_tokens, "passes": each.passes, "tok_s": each.tok_s}
        for each in found.copied
    ]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("gpu", __doc__)
    parser.add_argument("--model", action="append", choices=SHAPES, help="only this one; may be given again")
    there = DEFAULT_CASES if DEFAULT_CASES.is_dir() else OWN_EDITS
    parser.add_argument("--cases", type=Path, default=there, help="recorded edits; without any, those of the tests")
    parser.add_argument("--limit", type=int, default=12, help="so many edits")
    parser.add_argument("--seed", type=int, default=1, help="for weights, prompts and the choice of edits")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--most-context", type=int, default=max(CONTEXTS), help="no second turn is longer than this")
    parser.add_argument("--ops", action="store_true", help="measure the kernels, not the engine")
    parser.add_argument("--op", action="append", choices=OP_NAMES, help="only this kernel; may be given again")
    parser.add_argument(
        "--shapes", nargs="+", default=[], help="only these (num_seqs=1,num_keys=8192: all timed shapes that have both)"
    )
    parser.add_argument(
        "--skip", action="append", default=[], help="a way that takes no part (flex_attention compiles for long)"
    )
    parser.add_argument(
        "--store",
        type=Path,
        default=get_default_folder(os.environ),
        help="winners of kernels.tune (default: %(default)s)",
    )
    parser.add_argument("--count-only", action="store_true", help="print what is counted; runs on any machine")
    parser.add_argument("--bandwidth", type=float, default=STATED.copy_bytes_s / 1e12, help="TB/s, for --count-only")
    parser.add_argument("--tflops", type=float, default=STATED.flops_s / 1e12, help="TFLOP/s, for --count-only")
    options = parser.parse_args(arguments)
    options.ops = options.ops or bool(options.op)
    if options.shapes and len(options.op or ()) != 1:
        parser.error("--shapes are those of one op: name it with --op")
    if min(options.rounds, options.limit) < 1 or min(options.bandwidth, options.tflops) <= 0:
        parser.error("--rounds and --limit must be at least 1, --bandwidth and --tflops must be above 0")
    if not options.cases.exists():
        parser.error(f"{options.cases}: no such file or folder; name one with --cases")

    def shapes_of(op: Op) -> list[Shape]:
        try:
            return choose_shapes(op, options.shapes)
        except ValueError as error:
            parser.error(str(error))

    options.shapes_of = shapes_of
    return options


if __name__ == "__main__":
    main()
