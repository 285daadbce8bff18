"""Searches the fastest constants of a kernel on the installed card: `python -m kernels.tune OP`."""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels import parity
from kernels.op import OP_NAMES, Inputs, Op, Shape, Variant, load_op, waits_for_card
from kernels.tuner.search import (
    Budget,
    CardFailed,
    Check,
    LaunchFailed,
    NoCorrectVariant,
    Search,
    SharedMemoryCounter,
    Target,
    group_targets,
    list_valid_variants,
    list_variants,
)
from kernels.tuner.store import (
    Store,
    StoreError,
    Timing,
    Versions,
    Winner,
    compute_source_hash,
    describe_card,
    get_default_folder,
)

MIN_SETS, MAX_SETS = 2, 32
CACHES = 3
"""The input sets together are this many times the L2 cache, so no set is still in it when it is used again."""


class CudaTimer:
    """Runs one target's op over rotating sets of random inputs.

    The runs over all sets are captured in one graph for each variant and shape, because Python and the driver take
    longer for a launch than the smaller kernels run. An op that cannot be captured (it waits for the device) is run by
    Python instead.
    """

    def __init__(self, target: Target, device: torch.device, l2_bytes: int, seed: int) -> None:
        self._op = target.op
        self._sets = [_make_input_sets(target, shape, device, l2_bytes, seed) for shape in target.shapes]
        self._memory = torch.cuda.graph_pool_handle()
        self._replays: dict[frozenset[tuple[str, int]], list[Callable[[], object]]] = {}
        self._captures = True

    def prepare(self, variant: Variant) -> None:
        with classify_faults():
            for sets in self._sets:
                for inputs in sets:  # copies for inputs that are new to an op cannot be captured
                    self._op.run(inputs, variant)
            torch.cuda.synchronize()
        self._replays[frozenset(variant.items())] = [self._make_replay(sets, variant) for sets in self._sets]

    def sample(self, variant: Variant) -> tuple[float, ...]:
        replays = self._replays[frozenset(variant.items())]
        return tuple(_time_replay(replay) / len(sets) for replay, sets in zip(replays, self._sets, strict=True))

    def release(self, variant: Variant) -> None:
        del self._replays[frozenset(variant.items())]

    def _make_replay(self, sets: Sequence[Inputs], variant: Variant) -> Callable[[], object]:
        def run() -> None:
            for inputs in sets:
                self._op.run(inputs, variant)

        if self._captures and waits_for_card(run):
            torch.cuda.synchronize()
            self._captures = False
        if self._captures:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self._memory):
                    run()
            except RuntimeError:
                torch.cuda.synchronize()
                self._captures = False
            else:
                return graph.replay
        return run


@contextmanager
def classify_faults() -> Iterator[None]:
    """Translate faults of a variant: LaunchFailed if the card still works, otherwise CardFailed."""
    from triton.errors import TritonError

    try:
        yield
    except (TritonError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise MemoryError(str(error)) from error
        try:
            torch.cuda.synchronize()
        except RuntimeError as fault:
            raise CardFailed(str(error).splitlines()[0]) from fault
        raise LaunchFailed(str(error)) from error


def _time_replay(replay: Callable[[], object]) -> float:
    start, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
    start.record()
    replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _make_input_sets(target: Target, shape: Shape, device: torch.device, l2_bytes: int, seed: int) -> list[Inputs]:
    """Make enough input sets to exceed the cache, within half of the free memory."""
    gc.collect()
    torch.cuda.empty_cache()  # memory of an earlier target
    generator = torch.Generator(device).manual_seed(seed)
    sets = [target.op.inputs(shape, target.dtype, device, generator)]
    set_bytes = max(1, _count_bytes(sets[0]))
    free_bytes, _ = torch.cuda.mem_get_info(device)
    fitting = free_bytes // (2 * len(target.shapes) * set_bytes)
    wanted = min(ceil(CACHES * l2_bytes / set_bytes), fitting, MAX_SETS)
    while len(sets) < max(MIN_SETS, wanted):
        sets.append(target.op.inputs(shape, target.dtype, device, generator))
    return sets


def _count_bytes(value: Any) -> int:
    """Count the bytes of all tensors within an op's inputs."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_count_bytes, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_count_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


def make_search(
    device: torch.device, target: Target, folder: Path, budget: Budget, say: Callable[[str], None]
) -> Search:
    """Make the search of a target's winner on this device, with its store in this folder."""
    card, seed = describe_card(device), parity.get_run_seed()
    return Search(
        target=target,
        variants=list_valid_variants(target, card.shared_bytes),
        check=make_check(device, target, seed),
        bound=parity.BOUNDS[target.dtype],
        timer=CudaTimer(target, device, card.l2_bytes, seed),
        store=Store(folder, card.name),
        versions=Versions.from_card(card, compute_source_hash(target.op.name)),
        budget=budget,
        seed=seed,
        say=say,
    )


def make_check(device: torch.device, target: Target, seed: int) -> Check:
    """Return `kernels.parity.measure_error` with a card's faults translated."""

    def check(variant: Variant, shape: Shape) -> float:
        with classify_faults():
            return parity.measure_error(target.op, shape, target.dtype, device, variant, seed)

    return check


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
call this there, with a CUDA build of torch and `pip install 'hunk-apply[gpu]'`. `--dry-run` and `--list` work
anywhere."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0: done. 1: a search found no variant, or the card failed. 2: wrong usage, or no card. 130: interrupted.
    """
    options = _make_parser().parse_args(arguments)
    try:
        return _run(options)
    except (ValueError, StoreError) as error:
        _print_error(str(error))
        return USAGE
    except KeyboardInterrupt:
        _print_error("interrupted; the same command goes on from here")
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    if options.list:
        _print_line(list_store(options.store))
        return DONE
    if not options.ops:
        raise ValueError(f"which op? There are {', '.join(OP_NAMES)}")
    wanted = [(op, _select_targets(op, options)) for op in map(load_op, options.ops)]
    if options.dry_run:
        _print_line("\n\n".join(describe_space(op, found) for op, found in wanted))
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
            _print_line(describe_winner(make_search(device, target, options.store, budget, _print_error).run()))
        except NoCorrectVariant as error:
            failed += 1
            _print_error(str(error))
        except CardFailed as error:
            _print_error(
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


def _print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _print_error(text: str) -> None:
    """Write progress and errors to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent by `timeout`: not a fault of the current variant
    sys.exit(main())
