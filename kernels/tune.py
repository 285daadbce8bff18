"""Searches the fastest constants of a kernel on the installed card: `python -m kernels.tune OP`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from kernels.op import OP_NAMES, Op, Shape, Variant, load_op
from kernels.tuner.search import (
    Budget,
    CardFailed,
    NoCorrectVariant,
    SharedMemoryCounter,
    Target,
    group_targets,
    list_valid_variants,
    list_variants,
)
from kernels.tuner.store import Store, StoreError, Timing, Winner, compute_source_hash, get_default_folder
from kernels.tuner.timers import make_search


def describe_space(op: Op, targets: Sequence[Target]) -> str:
    """Describe how many variants an op declares, and how many can run each target's shapes."""
    lines = [f"{op.name}: {len(list_variants(op.space))} variants are declared"]
    lines += [f"  {name}: {', '.join(map(str, values))}" for name, values in op.space.items()]
    for target in targets:
        lines.append(f"{target.key}: {len(list_valid_variants(target))} valid")
        lines += [f"  {_format_sizes(shape)}: by default {_format_sizes(op.default(shape))}" for shape in target.shapes]
    if isinstance(op, SharedMemoryCounter):
        lines.append("A card whose shared memory is too small for some of them has fewer.")
    return "\n".join(lines)


def describe_winner(winner: Winner) -> str:
    """Describe a winner and its times, compared with the default's."""
    end = "" if winner.is_complete else ", the time was over before the end"
    lines = [f"{winner.key}: {_describe_timing(winner.best)}{end}"]
    if winner.default is None:
        lines.append("  the default is not right here, or does not launch")
    else:
        ratio = winner.default.score / winner.best.score
        lines.append(f"  default {_describe_timing(winner.default)}: {ratio:.2f} times as long")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in winner.outcomes.items())
    return "\n".join([*lines, f"  variants: {counts}"])


def list_store(folder: Path) -> str:
    """List all winners of a folder by card; winners of a kernel that has changed are marked."""
    lines = []
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith(".tried.json"):
            continue
        try:
            found = Store(folder, json.loads(path.read_text(encoding="utf-8"))["card"]).read_winners()
        except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
            lines.append(f"{path}: not read ({error})")
            continue
        lines.append(str(path))
        for winner in found.values():
            is_old = winner.versions.source != compute_source_hash(winner.op)
            lines.append(describe_winner(winner) + ("\n  the kernel has changed since: not used" if is_old else ""))
    return "\n".join(lines) or f"nothing was tuned yet: {folder} has no winners"


def _describe_timing(timed: Timing) -> str:
    micros = ", ".join(f"{each * 1e6:.1f}" for each in timed.seconds)
    return f"{micros} µs ({_format_sizes(timed.variant)}; {timed.num_samples} samples)"


def _format_sizes(sizes: Variant) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
NO_CARD = """no CUDA device, or no Triton, was found (torch {torch}). Kernels are timed on the card that they run on:
call this there, with a CUDA build of torch and `pip install 'hunk[gpu]'`; `--dry-run` and `--list` work anywhere."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0: done. 1: a search found no variant, or the card failed. 2: wrong usage, or no card. 130: interrupted.
    """
    options = _make_parser().parse_args(arguments)
    try:
        return _run(options)
    except (ValueError, StoreError) as error:
        _complain(str(error))
        return USAGE
    except KeyboardInterrupt:
        _complain("interrupted; the same command goes on from here")
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    if options.list:
        _say(list_store(options.store))
        return DONE
    if not options.ops:
        raise ValueError(f"which op? There are {', '.join(OP_NAMES)}")
    wanted = [(op, _select_targets(op, options)) for op in map(load_op, options.ops)]
    if options.dry_run:
        _say("\n\n".join(describe_space(op, found) for op, found in wanted))
        return DONE
    if not torch.cuda.is_available() or find_spec("triton") is None:
        raise ValueError(NO_CARD.format(torch=torch.__version__))
    return _tune([target for _, found in wanted for target in found], options)


def _tune(wanted: Sequence[Target], options: argparse.Namespace) -> int:
    device = torch.device("cuda", torch.cuda.current_device())
    failed = 0
    end = time.monotonic() + options.budget_seconds
    for index, target in enumerate(wanted):
        now = time.monotonic()
        budget = Budget(time.monotonic, now, max(0.0, end - now) / (len(wanted) - index))
        try:
            _say(describe_winner(make_search(device, target, options.store, budget, _complain).run()))
        except NoCorrectVariant as error:
            failed += 1
            _complain(str(error))
        except CardFailed as error:
            _complain(
                f"{target.key}: a variant broke the card's context ({error}); the same command goes on without it"
            )
            return FAILED
    return FAILED if failed else DONE


def _select_targets(op: Op, options: argparse.Namespace) -> list[Target]:
    shapes = op.benchmark_shapes if options.shapes is None else [_parse_shape(op, text) for text in options.shapes]
    return group_targets(op, DTYPES[options.dtype], shapes)


def _parse_shape(op: Op, text: str) -> Shape:
    """Parse 'num_tokens=64,head_dim=128'; sizes that are not given are those of the op's first benchmark shape."""
    names = {name for shape in (*op.benchmark_shapes, *op.parity_shapes) for name in shape}
    shape = dict(op.benchmark_shapes[0])
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in names or not value.isdigit():
            raise ValueError(f"{part!r} is no size of {op.name}: write NAME=NUMBER, of {', '.join(sorted(names))}")
        shape[name] = int(value)
    return shape


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune", description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP", help=", ".join(OP_NAMES))
    parser.add_argument(
        "--shapes", nargs="+", metavar="NAME=N,...", help="default: the shapes of `benchmarks.gpu --ops`"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="for all of it; default: no limit")
    parser.add_argument("--store", type=Path, default=get_default_folder(os.environ), help="default: %(default)s")
    parser.add_argument("--list", action="store_true", help="what was tuned, and how fast it is")
    parser.add_argument("--dry-run", action="store_true", help="the space of variants, on any machine")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _complain(text: str) -> None:
    """Write progress and errors to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent by `timeout`: not a fault of the current variant
    sys.exit(main())
