"""Searches the fastest constants of a kernel on the card that is there: `python -m kernels.tune OP`."""

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

from kernels.op import NAMES, Op, Shape, Variant, op_named
from kernels.tuner.search import Budget, NothingRight
from kernels.tuner.space import CardFailed, CountsSharedMemory, Target, Timed, declared, targets, valid
from kernels.tuner.store import Store, StoreError, Winner, default_folder, source_hash
from kernels.tuner.timers import search_on


def describe_space(op: Op, targets: Sequence[Target]) -> str:
    """How many variants are declared, and how many of these can run each target's shapes."""
    lines = [f"{op.name}: {len(declared(op.space))} variants are declared"]
    lines += [f"  {name}: {', '.join(map(str, values))}" for name, values in op.space.items()]
    for target in targets:
        lines.append(f"{target.key}: {len(valid(target))} valid")
        lines += [f"  {_named(shape)}: by default {_named(op.default(shape))}" for shape in target.shapes]
    if isinstance(op, CountsSharedMemory):
        lines.append("A card whose shared memory is too small for some of them has fewer.")
    return "\n".join(lines)


def describe_winner(winner: Winner) -> str:
    """The winner with its times beside the default's."""
    lines = [f"{winner.key}: {_timed(winner.best)}{'' if winner.is_complete else ', the time was over before the end'}"]
    if winner.default is None:
        lines.append("  the default is not right here, or does not launch")
    else:
        lines.append(
            f"  default {_timed(winner.default)}: {winner.default.score / winner.best.score:.2f} times as long"
        )
    counts = ", ".join(f"{count} {outcome}" for outcome, count in winner.outcomes.items())
    return "\n".join([*lines, f"  variants: {counts}"])


def list_store(folder: Path) -> str:
    """All winners of a folder, by card; those of a kernel that has changed since say so."""
    lines = []
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith(".tried.json"):
            continue
        try:
            found = Store(folder, json.loads(path.read_text(encoding="utf-8"))["card"]).winners()
        except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
            lines.append(f"{path}: not read ({error})")
            continue
        lines.append(str(path))
        for winner in found.values():
            is_old = winner.versions.source != source_hash(winner.op)
            lines.append(describe_winner(winner) + ("\n  the kernel has changed since: not used" if is_old else ""))
    return "\n".join(lines) or f"nothing was tuned yet: {folder} has no winners"


def _timed(timed: Timed) -> str:
    micros = ", ".join(f"{each * 1e6:.1f}" for each in timed.seconds)
    return f"{micros} µs ({_named(timed.variant)}; {timed.num_samples} samples)"


def _named(sizes: Variant) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
NO_CARD = """no CUDA device, or no Triton, was found (torch {torch}). Kernels are timed on the card that they run on:
call this there, with a CUDA build of torch and `pip install 'hunk[gpu]'`; `--dry-run` and `--list` work anywhere."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 a search found nothing or lost the card, 2 usage or no card, 130 interrupted."""
    options = _parser().parse_args(arguments)
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
        raise ValueError(f"which op? There are {', '.join(NAMES)}")
    wanted = [(op, _targets(op, options)) for op in map(op_named, options.ops)]
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
            _say(describe_winner(search_on(device, target, options.store, budget, _complain).run()))
        except NothingRight as error:
            failed += 1
            _complain(str(error))
        except CardFailed as error:
            _complain(
                f"{target.key}: a variant broke the card's context ({error}); the same command goes on without it"
            )
            return FAILED
    return FAILED if failed else DONE


def _targets(op: Op, options: argparse.Namespace) -> list[Target]:
    shapes = op.timed_shapes if options.shapes is None else [_shape(op, text) for text in options.shapes]
    return targets(op, DTYPES[options.dtype], shapes)


def _shape(op: Op, text: str) -> Shape:
    """'num_tokens=64,head_dim=128'; sizes that it does not name are those of the op's first timed shape."""
    names = {name for shape in (*op.timed_shapes, *op.parity_shapes) for name in shape}
    shape = dict(op.timed_shapes[0])
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in names or not value.isdigit():
            raise ValueError(f"{part!r} is no size of {op.name}: write NAME=NUMBER, of {', '.join(sorted(names))}")
        shape[name] = int(value)
    return shape


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.tune", description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP", help=", ".join(NAMES))
    parser.add_argument(
        "--shapes", nargs="+", metavar="NAME=N,...", help="default: the shapes of `benchmarks.gpu --ops`"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="for all of it; default: no limit")
    parser.add_argument("--store", type=Path, default=default_folder(os.environ), help="default: %(default)s")
    parser.add_argument("--list", action="store_true", help="what was tuned, and how fast it is")
    parser.add_argument("--dry-run", action="store_true", help="the space of variants, on any machine")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _complain(text: str) -> None:
    """Progress and faults, beside what was asked for."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of `timeout`: the variant being tried is not to blame
    sys.exit(main())
