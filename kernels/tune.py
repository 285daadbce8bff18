"""Searches the fastest constants of kernels on the installed card: `hunk tune OP`, or `python -m kernels.tune OP`.

Every variant that compiles, launches and agrees with the reference is timed by Triton's `do_bench`; the fastest few are
timed again for longer and checked at full size. The engine only reads the file that this leaves.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import TypeVar

import torch

from kernels.op import OP_NAMES, Inputs, Op, Shape, Variant, load_op
from kernels.parity import BOUNDS, get_run_seed, measure_error
from kernels.winners import (
    StoreError,
    Winner,
    compute_mean_seconds,
    compute_source_hash,
    get_default_folder,
    get_path,
    get_triton_version,
    get_winner_key,
    read_winners,
    write_winner,
)

MAX_PROOFS = 4
"""Parity shapes at which a variant is checked; each may need a compilation."""
NUM_FINALISTS = 5
FINAL_ROUNDS = 5
FIRST_MS, FINAL_MS = 10, 40
"""Length of a measurement of one variant at one shape."""
FIRST_SHARE = 0.85
"""Share of a target's time for all variants; the rest is for the finalists."""
REPORT_EVERY_S = 5.0
FREE_SHARE = 0.9
"""Share of a card's memory that is free where nobody else uses it."""

Measure = Callable[[Op, Inputs, Variant, int], float]
"""Returns the seconds of one run of an op's variant, measured for about so many milliseconds."""
Check = Callable[[Op, Shape, torch.dtype, torch.device, Variant, int], float]
"""Returns the error of a variant at a shape; `kernels.parity.measure_error`."""


Found = TypeVar("Found")


class CardFailed(Exception):
    """A variant left the card in a state in which this process cannot use it any more."""


@dataclass(frozen=True, slots=True)
class Target:
    """The subject of one search: shapes of one class in one dtype."""

    op: Op
    dtype: torch.dtype
    shape_class: str
    shapes: tuple[Shape, ...]

    @property
    def key(self) -> str:
        """The winner's key."""
        return get_winner_key(self.op.name, self.dtype, self.shape_class)


def group_targets(op: Op, dtype: torch.dtype, shapes: Sequence[Shape]) -> list[Target]:
    """Group shapes by class, in the order of the first shape of each class."""
    classes: dict[str, list[Shape]] = {}
    for shape in shapes:
        classes.setdefault(op.shape_class(shape), []).append(shape)
    return [Target(op, dtype, name, tuple(found)) for name, found in classes.items()]


def list_variants(op: Op, shapes: Sequence[Shape]) -> list[Variant]:
    """Return the declared variants that can run all shapes. The default is first, declared or not."""
    default = dict(op.default(shapes[0]))
    declared = [dict(zip(op.space, values, strict=True)) for values in product(*op.space.values())]
    return [default, *(each for each in declared if each != default and all(op.is_valid(each, s) for s in shapes))]


def time_variant(op: Op, inputs: Inputs, variant: Variant, milliseconds: int) -> float:
    """Return the median seconds of a run whose inputs are not in the L2 cache."""
    from triton.testing import do_bench

    def run() -> object:
        return op.run(inputs, variant)

    return float(do_bench(run, warmup=milliseconds // 4, rep=milliseconds, return_mode="median")) / 1e3


@dataclass(frozen=True, slots=True)
class Search:
    """The search of one target. `measure` and `check` are the card; tests pass others."""

    target: Target
    device: torch.device
    seed: int
    say: Callable[[str], None]
    measure: Measure = time_variant
    check: Check = measure_error

    def run(self, seconds: float) -> Winner | None:
        """Return the fastest right variant that was found in so many seconds, None if there was none.

        The default is tried first, the others in random order, so that a search that ends early has seen a fair sample.
        Raises CardFailed.
        """
        target, op = self.target, self.target.op
        variants = list_variants(op, target.shapes)
        default = variants[0]
        generator = torch.Generator(self.device).manual_seed(self.seed)
        inputs = [op.inputs(shape, target.dtype, self.device, generator) for shape in target.shapes]
        ranked, num_tried = self._rank(variants, inputs, seconds)
        finalists = ranked[:NUM_FINALISTS] + [each for each in ranked[NUM_FINALISTS:] if each == default]
        finalists = [each for each in finalists if catch_launch(lambda variant: self._is_right(variant, True), each)]
        if not finalists:
            return None
        rounds = [[self._measure(inputs, each, FINAL_MS) for each in finalists] for _ in range(FINAL_ROUNDS)]
        medians = [tuple(map(median, zip(*samples, strict=True))) for samples in zip(*rounds, strict=True)]
        best = min(range(len(finalists)), key=lambda at: compute_mean_seconds(medians[at]))
        return Winner(
            op=op.name,
            dtype=str(target.dtype).removeprefix("torch."),
            shape_class=target.shape_class,
            variant=finalists[best],
            shapes=target.shapes,
            seconds=medians[best],
            default_seconds=medians[finalists.index(default)] if default in finalists else None,
            num_variants=len(variants),
            num_tried=num_tried,
            num_right=len(ranked),
            source=compute_source_hash(op.name),
            triton=get_triton_version(),
        )

    def _rank(self, variants: Sequence[Variant], inputs: Sequence[Inputs], seconds: float) -> tuple[list[Variant], int]:
        """Return the right variants, the fastest first, and how many there was time to try."""

        def attempt(variant: Variant) -> tuple[float, ...] | None:
            return self._measure(inputs, variant, FIRST_MS) if self._is_right(variant, False) else None

        began = reported = time.monotonic()
        timed: list[tuple[float, Variant]] = []
        others = Random(self.seed).sample(variants[1:], len(variants) - 1)
        for num_tried, variant in enumerate((variants[0], *others)):
            now = time.monotonic()
            if num_tried and now - began > FIRST_SHARE * seconds:
                break
            if now - reported >= REPORT_EVERY_S:
                reported = now
                self.say(f"{self.target.key}: {num_tried} of {len(variants)} variants tried, {len(timed)} right")
            found = catch_launch(attempt, variant)
            if found is not None:
                timed.append((compute_mean_seconds(found), variant))
        else:
            num_tried = len(variants)
        return [variant for _, variant in sorted(timed, key=lambda each: each[0])], num_tried

    def _is_right(self, variant: Variant, at_full_size: bool) -> bool:
        """Check a variant at small shapes, or at the target's own, whose offsets may exceed 32 bits."""
        target, bound = self.target, BOUNDS[self.target.dtype]
        for shape in target.shapes if at_full_size else _select_proofs(target, variant):
            try:
                if not self.check(target.op, shape, target.dtype, self.device, variant, self.seed) <= bound:
                    return False
            except torch.OutOfMemoryError:
                self.say(f"{target.key}: the card cannot hold the reference of {dict(shape)}: not checked there")
        return True

    def _measure(self, inputs: Sequence[Inputs], variant: Variant, milliseconds: int) -> tuple[float, ...]:
        return tuple(self.measure(self.target.op, each, variant, milliseconds) for each in inputs)


def _select_proofs(target: Target, variant: Variant) -> Sequence[Shape]:
    """Return small shapes at which a variant must be right before it is timed, those of its own class first.

    A variant for long contexts runs no small shape: it is checked at one of the target's.
    """
    op = target.op
    small = [shape for shape in op.parity_shapes if op.is_valid(variant, shape)]
    small.sort(key=lambda shape: op.shape_class(shape) != target.shape_class)
    return small[:MAX_PROOFS] or target.shapes[:1]


def catch_launch(attempt: Callable[[Variant], Found | None], variant: Variant) -> Found | None:
    """Return what an attempt returns, None where the variant does not compile or launch. Raises CardFailed."""
    from triton.errors import TritonError

    try:
        return attempt(variant)
    except (TritonError, RuntimeError) as error:
        try:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        except RuntimeError as fault:
            raise CardFailed(f"{dict(variant)}: {str(error).splitlines()[0]}") from fault
        return None


def format_winner(winner: Winner) -> str:
    """Return a winner and its times beside the default's as text."""
    counts = f"{winner.num_right} right of {winner.num_tried} tried of {winner.num_variants}"
    lines = [f"{winner.key}: {_format_times(winner.seconds)} ({_format_sizes(winner.variant)}; {counts})"]
    if winner.default_seconds is None:
        lines.append("  the default is not right here, or does not launch")
    else:
        ratio = compute_mean_seconds(winner.default_seconds) / compute_mean_seconds(winner.seconds)
        lines.append(f"  default {_format_times(winner.default_seconds)}: {ratio:.2f} times as long")
    return "\n".join(lines)


def format_space(target: Target) -> str:
    """Return how many variants a target has, and the default for each of its shapes, as text."""
    lines = [f"{target.key}: {len(list_variants(target.op, target.shapes))} variants"]
    lines += [f"  {_format_sizes(each)}: by default {_format_sizes(target.op.default(each))}" for each in target.shapes]
    return "\n".join(lines)


def list_all(folder: Path) -> list[tuple[str, Winner, bool]]:
    """Return the card, the winner, and whether its kernel is still the same, of all files of a folder.

    Raises StoreError for a file that holds no winners.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            card = str(json.loads(path.read_text(encoding="utf-8"))["card"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} holds no winners ({error}); move it away") from error
        for winner in read_winners(folder, card).values():
            found.append((card, winner, winner.source == compute_source_hash(winner.op)))
    return found


def _format_times(seconds: Sequence[float]) -> str:
    return ", ".join(f"{each * 1e6:.1f}" for each in seconds) + " µs"


def _format_sizes(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
NO_CARD = """no CUDA device, or no Triton, was found (torch {torch}). Kernels are timed on the card that they run on:
call this there, with a CUDA build of torch and `pip install 'hunk-apply[gpu]'`. `--dry-run` and `--list` work
anywhere."""
BUSY = """{used:.0%} of the card's memory is in use: its times would be those of a card that others use, too. Stop what
runs there (`nvidia-smi` lists it), or choose another card (CUDA_VISIBLE_DEVICES=1)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0: done. 1: no variant of a target was right, or the card failed. 2: wrong usage, or no card. 130: interrupted; the
    winners that were found stay.
    """
    options = _make_parser().parse_args(arguments)
    try:
        if options.list:
            return _print_winners(options)
        targets = [target for op in map(load_op, options.ops or OP_NAMES) for target in _select_targets(op, options)]
        if options.dry_run:
            _print("\n".join(map(format_space, targets)))
            return DONE
        return _tune_all(targets, options)
    except (ValueError, StoreError) as error:
        _say(str(error))
        return USAGE
    except CardFailed as error:
        _say(f"this variant broke the card's context: {error}; please report it")
        return FAILED
    except KeyboardInterrupt:
        _say("interrupted; the winners that were found are kept")
        return INTERRUPTED


def _tune_all(targets: Sequence[Target], options: argparse.Namespace) -> int:
    if not torch.cuda.is_available() or find_spec("triton") is None:
        raise ValueError(NO_CARD.format(torch=torch.__version__))
    device = torch.device("cuda", torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info(device)
    if free < FREE_SHARE * total:
        raise ValueError(BUSY.format(used=1 - free / total))
    card = torch.cuda.get_device_name(device)
    read_winners(options.store, card)  # a file of another form ends it now, not after a search
    num_failed, end = 0, time.monotonic() + options.budget_seconds
    for index, target in enumerate(targets):
        seconds = max(0.0, end - time.monotonic()) / (len(targets) - index)
        winner = Search(target, device, get_run_seed(), _say).run(seconds)
        torch.cuda.empty_cache()
        if winner is None:
            num_failed += 1
            _say(f"{target.key}: no variant is right")
        else:
            write_winner(options.store, card, winner)
            if not options.json:
                _print(format_winner(winner))
    if options.json:
        _print(
            json.dumps({"card": card, "winners": [asdict(each) for each in read_winners(options.store, card).values()]})
        )
    else:
        _say(f"written to {get_path(options.store, card)}")
    return FAILED if num_failed else DONE


def _print_winners(options: argparse.Namespace) -> int:
    found = list_all(options.store)
    if options.json:
        _print(json.dumps({"winners": [{"card": card, "is_used": new, **asdict(each)} for card, each, new in found]}))
        return DONE
    for card, winner, is_new in found:
        _print(f"{card}: {format_winner(winner)}" + ("" if is_new else "\n  the kernel has changed since: not used"))
    if not found:
        _print(f"nothing was tuned yet: {options.store} has no winners")
    return DONE


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
    parser = argparse.ArgumentParser(prog="hunk tune", description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"{', '.join(OP_NAMES)}; default: all")
    parser.add_argument(
        "--shapes", nargs="+", metavar="NAME=N,...", help="default: the shapes of `benchmarks.gpu --ops`"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="for all of it; default: no limit")
    parser.add_argument("--store", type=Path, default=get_default_folder(os.environ), help="default: %(default)s")
    parser.add_argument("--list", action="store_true", help="what was tuned, and how fast it is")
    parser.add_argument("--dry-run", action="store_true", help="the targets and their variants, on any machine")
    parser.add_argument("--json", action="store_true", help="print the winners as JSON")
    return parser


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _say(text: str) -> None:
    """Write progress and errors to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent by `timeout`
    sys.exit(main())
