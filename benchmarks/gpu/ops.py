"""One kernel at one shape: parity of all variants, then their times."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.card import Ceilings, Timer, Timing
from benchmarks.harness import Row, format_number, render_rows
from kernels import parity
from kernels.op import Cost, Inputs, Op, Shape, Variant
from kernels.winners import get_variant


def label(shape: Shape) -> str:
    """Return the shape as text: `num_seqs=4 num_keys=8192`."""
    return " ".join(f"{name}={size}" for name, size in shape.items())


def choose_shapes(op: Op, asked: Sequence[str]) -> list[Shape]:
    """Return the op's timed shapes, or those with all sizes of one in `asked` (`num_seqs=4,num_keys=8192`).

    A shape with all sizes given need not be a timed one. Raises ValueError for a text that is no shape.
    """
    if not asked:
        return list(op.benchmark_shapes)
    return [shape for text in asked for shape in _find_shapes(op, text)]


def _find_shapes(op: Op, text: str) -> list[Shape]:
    wanted = _parse(text)
    known = {name for shape in op.benchmark_shapes for name in shape}
    if unknown := set(wanted) - known:
        raise ValueError(f"{op.name} has no size {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
    if set(op.benchmark_shapes[0]) <= set(wanted):
        return [wanted]
    found = [shape for shape in op.benchmark_shapes if wanted.items() <= shape.items()]
    if not found:
        raise ValueError(f"no timed shape of {op.name} has {text}; give all of {', '.join(sorted(known))}")
    return found


def _parse(text: str) -> dict[str, int]:
    parts = [part.partition("=") for part in text.replace(",", " ").split()]
    try:
        return {name: int(size) for name, _, size in parts}
    except ValueError:
        raise ValueError(f"{text!r} is no shape; write it as num_seqs=4,num_keys=8192") from None


Outputs = tuple[Tensor, ...]
Call = Callable[[], Outputs]

TUNED, DEFAULT = "tuned", "default"


def list_variants(op: Op, shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Variant]:
    """Return the kernel's constants by name: the default, and those tuned for this card if they differ."""
    default, tuned = op.default(shape), get_variant(op, shape, device, dtype)
    return ({} if tuned == default else {TUNED: tuned}) | {DEFAULT: default}


def make_own_calls(op: Op, variant: Variant, sets: Sequence[Inputs]) -> list[Call]:
    """Return the kernel on each set of inputs."""
    return [partial(op.run, inputs, variant) for inputs in sets]


def make_other_calls(op: Op, sets: Sequence[Inputs]) -> Mapping[str, list[Call]]:
    """Return torch's implementations by name, on each set of inputs."""
    found: dict[str, list[Call]] = {}
    for inputs in sets:
        for name, call in op.torch_baselines(inputs).items():
            found.setdefault(name, []).append(call)
    return found


def make_input_sets(op: Op, shape: Shape, dtype: torch.dtype, device: torch.device, num_sets: int) -> list[Inputs]:
    """Return equal inputs in separate memory, so that no call finds its inputs in the cache."""
    first = op.inputs(shape, dtype, device, torch.Generator(device).manual_seed(parity.get_run_seed()))
    return [first, *(copy.deepcopy(first) for _ in range(num_sets - 1))]


MOST_SETS = 64

MOST_BYTES = 8 << 30
"""Most bytes of all sets of inputs together."""
CACHES = 3
"""How many times larger than the cache all sets together are, if MOST_SETS allows it."""


@dataclass(frozen=True, slots=True)
class Way:
    """One implementation. error: the distance of ours to the reference, of another one to our output.

    Without a timing, `why` says why.
    """

    name: str
    is_own: bool
    error: float
    timing: Timing | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of an op at a shape. cached: its inputs fit the cache, so that it may be below its floor."""

    op: str
    shape: Shape
    cost: Cost
    floor_s: float
    ways: tuple[Way, ...] = ()
    cached: bool = False

    @property
    def own(self) -> Way | None:
        """Our quickest timed variant."""
        return self._quickest(is_own=True)

    @property
    def peer(self) -> Way | None:
        return self._quickest(is_own=False)

    @property
    def share(self) -> float | None:
        """The share of the roofline that our quickest variant reaches."""
        return None if self.own is None or self.own.timing is None else self.floor_s / self.own.timing.median_s

    def _quickest(self, *, is_own: bool) -> Way | None:
        timed = [way for way in self.ways if way.is_own == is_own and way.timing is not None]
        return min(timed, key=lambda way: way.timing.median_s if way.timing else inf, default=None)


def count_op(op: Op, shape: Shape, dtype: torch.dtype, ceilings: Ceilings) -> Measured:
    cost = op.cost(shape, dtype)
    return Measured(op.name, shape, cost, ceilings.floor_s(cost))


def measure_op(
    op: Op,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    ceilings: Ceilings,
    timer: Timer,
    skip: Collection[str] = (),
) -> Measured:
    """Measure all implementations at one shape, except those named in `skip`.

    One with a wrong output gets no time; if ours is wrong, none gets one.
    """
    found = count_op(op, shape, dtype, ceilings)
    cache_bytes = _read_cache_bytes(device)
    sets = make_input_sets(op, shape, dtype, device, count_sets(found.cost, cache_bytes))
    unused = copy.deepcopy(sets[0])
    ways = list(_measure_own(op, shape, dtype, device, sets, timer))
    if all(way.error <= parity.BOUNDS[dtype] for way in ways):
        ways += _measure_others(op, shape, dtype, unused, sets, timer, skip)
    torch.compiler.reset()  # or the next shapes are compiled for any shape, and after some not at all
    cached = len(sets) * found.cost.num_bytes < 2 * cache_bytes
    return Measured(op.name, shape, found.cost, found.floor_s, tuple(ways), cached)


def count_sets(cost: Cost, cache_bytes: int) -> int:
    """Return the number of sets of inputs."""
    enough = -(-CACHES * cache_bytes // max(1, cost.num_bytes))
    return max(1, min(enough, MOST_SETS, MOST_BYTES // max(1, cost.num_bytes)))


def _measure_own(
    op: Op, shape: Shape, dtype: torch.dtype, device: torch.device, sets: Sequence[Inputs], timer: Timer
) -> Iterator[Way]:
    bound = parity.BOUNDS[dtype]
    for name, variant in list_variants(op, shape, dtype, device).items():
        check = partial(parity.measure_error, op, shape, dtype, device, variant)
        yield _measure_way(name, check, bound, partial(make_own_calls, op, variant, sets), timer, is_own=True)


def _measure_others(
    op: Op,
    shape: Shape,
    dtype: torch.dtype,
    unused: Inputs,
    sets: Sequence[Inputs],
    timer: Timer,
    skip: Collection[str],
) -> Iterator[Way]:
    """Measure torch's implementations; their outputs are compared on fresh inputs, since some write into them."""
    bound = 2 * parity.BOUNDS[dtype]  # either may be off by the bound of one
    try:
        expected = op.run(copy.deepcopy(unused), op.default(shape))
        calls = {name: own for name, own in make_other_calls(op, sets).items() if name not in skip}
    except Exception as fault:  # noqa: BLE001 -- what others lack must not end the run
        yield Way("others", False, inf, why=_describe_fault(fault))
        return
    for name, own in calls.items():
        yield _measure_way(
            name, partial(_compare_outputs, op, name, unused, expected), bound, partial(tuple, own), timer
        )


def _measure_way(
    name: str,
    error_of: Callable[[], float],
    bound: float,
    calls_of: Callable[[], Sequence[Call]],
    timer: Timer,
    *,
    is_own: bool = False,
) -> Way:
    """Time an implementation if its output is right; its failure must not stop the others."""
    try:
        error = error_of()
        if not error <= bound:
            whose = "the reference" if is_own else "our output"
            seed = f"{parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
            return Way(name, is_own, error, why=f"no speed is shown: it is off {whose} by {error:.2g} ({seed})")
        return Way(name, is_own, error, timer.time(calls_of()))
    except Exception as fault:  # noqa: BLE001 -- see above
        return Way(name, is_own, inf, why=_describe_fault(fault))


def _compare_outputs(op: Op, name: str, unused: Inputs, expected: Outputs) -> float:
    (call,) = make_other_calls(op, [copy.deepcopy(unused)])[name]
    outputs = call()
    return (
        max(map(parity.compute_error_ratio, outputs, expected), default=inf) if len(outputs) == len(expected) else inf
    )


def _describe_fault(fault: Exception) -> str:
    return f"{type(fault).__name__}: {(str(fault) or 'no reason given').splitlines()[0]}"


def _read_cache_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


COLUMNS = {
    "shape": "{shape}",
    "MB": "{mb:n}",
    "GFLOP": "{gflop:n}",
    "floor, µs": "{floor:n}",
    "measured, µs": "{own}",
    "best peer, µs": "{peer}",
    "share": "{share:.0%}",
}
CACHED = "\\*"


def render_op(rows: Sequence[Measured]) -> str:
    """Render one op's table, a line for each shape."""
    cells = []
    for row in rows:
        own, peer = row.own, row.peer
        cell: Row = {"shape": label(row.shape), "mb": row.cost.num_bytes / 1e6, "gflop": row.cost.num_flops / 1e9}
        cell |= {"floor": 1e6 * row.floor_s, "own": None, "peer": None, "share": row.share}
        if own and own.timing:
            cell["own"] = f"{format_number(1e6 * own.timing.median_s)}{CACHED if row.cached else ''}"
        if peer and peer.timing:
            cell["peer"] = f"{format_number(1e6 * peer.timing.median_s)} ({peer.name})"
        cells.append(cell)
    note = f"\n\n{CACHED} All inputs together fit the card's cache, so it can be quicker than the floor."
    return render_rows(cells, COLUMNS) + (note if any(row.cached for row in rows) else "")


def render_ways(rows: Sequence[Measured]) -> Iterator[str]:
    """Yield the time, spread and error of each implementation, or why it has none."""
    for row in rows:
        yield f"  {label(row.shape)}"
        for way in row.ways:
            yield f"    {way.name:16} {_format_time(way)}"


def make_row(row: Measured) -> dict[str, Any]:
    found: dict[str, Any] = {
        "op": row.op,
        "shape": dict(row.shape),
        "bytes": row.cost.num_bytes,
        "flops": row.cost.num_flops,
        "floor_s": row.floor_s,
        "share": row.share,
        "cached": row.cached,
        "ways": {way.name: _make_way_row(way) for way in row.ways},
    }
    if row.own and row.peer and row.own.timing and row.peer.timing:
        found["ratio_best_peer"] = row.peer.timing.median_s / row.own.timing.median_s
    return found


def _format_time(way: Way) -> str:
    if way.timing is None:
        return f"- {way.why}"
    launched = "" if way.timing.graphed else ", launches included"
    median = format_number(1e6 * way.timing.median_s)
    return f"{median} µs, spread {way.timing.spread:.1%}, error {way.error:.1e}{launched}"


def _make_way_row(way: Way) -> Mapping[str, Any]:
    timing = way.timing
    if timing is None:
        return {"error": way.error if way.error < float("inf") else None, "why": way.why}
    return {
        "error": way.error,
        "median_s": timing.median_s,
        "spread": timing.spread,
        "runs": len(timing.seconds),
        "graphed": timing.graphed,
    }
