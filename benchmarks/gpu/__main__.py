"""Measure engine and kernels on a card: `python -m benchmarks.gpu [--ops] [--model 7b] [--json OUT]`.

Without `--ops` the engine is measured: cold prompts, plain decoding, copied edits, and the time to the first token of a
second turn at 8k, 32k and 128k tokens of context. The models have the shapes of Qwen2.5 1.5B and 7B and random weights;
nothing is downloaded. The copied edits are recorded ones: the drafts are those of an apply, the model does all of its
work, and then its choice is overwritten by the recorded token, so that the recorded text decides what is accepted.
First, two layers in float32 must write the same tokens on the card as on the CPU, plainly and with drafts.

With `--ops` each kernel is measured at each of its shapes, with tuned and default constants, next to torch (SDPA,
FlexAttention, torch.compile). A variant is timed only if its output is right (`kernels.parity`), by CUDA events around
replays of a graph, over several sets of inputs in turn.

The bound is the time for the bytes and operations at the card's copy and GEMM rates, measured in the same run.
`--count-only` needs no card: it prints the bounds for the given rates.
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
    make_row,
    measure_op,
    render_op,
    render_ways,
)
from benchmarks.harness import Row, describe_machine, format_number, make_parser, render_rows, write_json
from engine.config import ModelConfig
from engine.decoder import Decoder
from kernels.op import OP_NAMES, Op, Shape, load_op
from kernels.winners import get_default_folder, use_folder

DTYPE = torch.bfloat16

NO_CARD = 2
"""The exit code without a card."""


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
        print(f"\n{name}:\n\n{render_op(found)}", flush=True)
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
        print(f"\n{name}:\n\n{render_bounds(config, ceilings, found)}\n\n{render_copied(found.copied)}")
        print("\n".join(found.faults), flush=True)
        rows += make_engine_rows(name, config, ceilings, found)
    return rows


def render_bounds(config: ModelConfig, ceilings: Ceilings, found: Found) -> str:
    """Render the bound of each figure, what was measured, and the share that was reached."""
    rows = []
    for name, bound in compute_bounds(config, ceilings).items():
        middle = statistics.median(found.figures[name]) if found.figures.get(name) else None
        share = None if middle is None else middle / bound if name.endswith("tok/s") else bound / middle
        rows.append({"name": name, "bound": bound, "measured": middle, "share": share})
    return render_rows(rows, {"": "{name}", "at best": "{bound:n}", "measured": "{measured:n}", "share": "{share:.0%}"})


def render_copied(copied: Sequence[Copied]) -> str:
    """Render the speed of each copied edit and of all together; "" without edits."""
    if not copied:
        return ""
    rows = [
        {"name": each.name, "merge": each.group, "tokens": each.num_tokens, "passes": len(each.passes)}
        | {"mean": each.num_tokens / len(each.passes), "rate": statistics.median(each.tok_s)}
        for each in copied
    ]
    columns = {"recorded edit": "{name}", "merge": "{merge}", "tokens": "{tokens:,}", "passes": "{passes}"}
    columns |= {"tokens a pass": "{mean:n}", "tok/s": "{rate:n}"}
    return f"{render_rows(rows, columns)}\n\nAll together: {format_number(compute_total_tok_s(copied))} tok/s."


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
    parser.add_argument("--model", action="append", choices=SHAPES, help="only this model; can be repeated")
    there = DEFAULT_CASES if DEFAULT_CASES.is_dir() else OWN_EDITS
    parser.add_argument(
        "--cases", type=Path, default=there, help="recorded edits (default: shared data or those of the tests)"
    )
    parser.add_argument("--limit", type=int, default=12, help="number of edits")
    parser.add_argument("--seed", type=int, default=1, help="random seed of weights, prompts and edits")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements")
    parser.add_argument("--most-context", type=int, default=max(CONTEXTS), help="longest second turn, in tokens")
    parser.add_argument("--ops", action="store_true", help="measure the kernels, not the engine")
    parser.add_argument("--op", action="append", choices=OP_NAMES, help="only this kernel; can be repeated")
    parser.add_argument(
        "--shapes", nargs="+", default=[], help="only shapes with these sizes, such as num_seqs=1,num_keys=8192"
    )
    parser.add_argument(
        "--skip", action="append", default=[], help="a variant that is not measured, such as flex_attention"
    )
    parser.add_argument(
        "--store",
        type=Path,
        default=get_default_folder(os.environ),
        help="folder with results of kernels.tune (default: %(default)s)",
    )
    parser.add_argument("--count-only", action="store_true", help="print the bounds only; runs on any machine")
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
