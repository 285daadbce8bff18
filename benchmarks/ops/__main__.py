"""How near the kernels come to the card's roofline: `python -m benchmarks.ops [--op paged_attention] [--json OUT]`.

The card is measured first: a large copy, bytes read plus bytes written, and a large bfloat16 product of random numbers.
Then each op at each shape: a way to compute it is timed only if its output is right (`kernels.parity`), by CUDA events
around replays of a graph, over inputs that take turns. The ways are the kernel with the tuner's constants and by
default, torch's (SDPA, FlexAttention, torch.compile) and FlashInfer where it is installed. The floor is what bytes and
operations take at the measured rates; the share is floor by time.

`--count-only` needs no card: it prints bytes, operations and their floor on a card that is stated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.machine import describe
from benchmarks.ops import flash_infer
from benchmarks.ops.ceilings import STATED, Ceilings, NoCard, cuda_device, measured
from benchmarks.ops.measuring import Measured, counted, measure
from benchmarks.ops.shapes import chosen
from benchmarks.ops.tables import op_lines, row_json, way_lines
from benchmarks.ops.timing import CudaTimer
from kernels.op import NAMES, Op, Shape, op_named
from kernels.tuner import use_folder
from kernels.tuner.store import default_folder

DTYPE = torch.bfloat16

NO_CARD = 2
"""The exit code where there is nothing to measure on."""

Measure = Callable[[Op, Shape], Measured]


def main(arguments: Sequence[str] | None = None) -> None:
    """Count or measure, print the tables and write the JSON."""
    options = _options(arguments)
    if options.count_only:
        ceilings = Ceilings(STATED.name, 1e12 * options.bandwidth, 1e12 * options.tflops)
        _run(options, ceilings, lambda op, shape: counted(op, shape, DTYPE, ceilings))
        return
    try:
        device = cuda_device()
    except NoCard as error:
        print(error, file=sys.stderr)
        sys.exit(NO_CARD)
    timer = CudaTimer()
    ceilings = measured(device, timer)
    use_folder(options.store)
    print(f"{describe()}, triton {version('triton')}")
    if why := flash_infer.absence():
        print(why)
    _run(options, ceilings, lambda op, shape: measure(op, shape, DTYPE, device, ceilings, timer, options.skip))


def _run(options: argparse.Namespace, ceilings: Ceilings, measure_one: Measure) -> None:
    print(ceilings, flush=True)
    rows: list[Measured] = []
    for name in options.op or NAMES:
        op = op_named(name)
        found = []
        for shape in options.shapes_of(op):
            found.append(measure_one(op, shape))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # the next shape's inputs are gigabytes, too
        print("\n".join(["", f"{name}:", "", *op_lines(found)]), flush=True)
        if not options.count_only:
            print("\n".join(["", *way_lines(found)]), flush=True)
        rows += found
    if options.json:
        summary = {
            "machine": describe(),
            "card": ceilings.name,
            "copy_bytes_s": ceilings.copy_bytes_s,
            "flops_s": ceilings.flops_s,
            "measured": not options.count_only,
        }
        written = {"summary": summary, "rows": [row_json(row) for row in rows]}
        options.json.write_text(json.dumps(written, indent=1), encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", action="append", choices=NAMES, help="only this one; may be given again")
    parser.add_argument(
        "--shapes", nargs="+", default=[], help="only these (num_seqs=1,num_keys=8192: all timed shapes that have both)"
    )
    parser.add_argument(
        "--skip", action="append", default=[], help="a way that takes no part (flex_attention compiles for long)"
    )
    parser.add_argument(
        "--store", type=Path, default=default_folder(os.environ), help="winners of kernels.tune (default: %(default)s)"
    )
    parser.add_argument("--count-only", action="store_true", help="print what is counted; runs on any machine")
    parser.add_argument("--bandwidth", type=float, default=STATED.copy_bytes_s / 1e12, help="TB/s, for --count-only")
    parser.add_argument("--tflops", type=float, default=STATED.flops_s / 1e12, help="TFLOP/s, for --count-only")
    parser.add_argument("--json", type=Path, help="write summary and rows there")
    options = parser.parse_args(arguments)
    if options.shapes and len(options.op or ()) != 1:
        parser.error("--shapes are those of one op: name it with --op")
    if options.bandwidth <= 0 or options.tflops <= 0:
        parser.error("--bandwidth and --tflops must be above 0")

    def shapes_of(op: Op) -> list[Shape]:
        try:
            return chosen(op, options.shapes)
        except ValueError as error:
            parser.error(str(error))

    options.shapes_of = shapes_of
    return options


if __name__ == "__main__":
    main()
