"""One kernel at one shape: parity of all ways to compute it, then their times."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import inf
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.card import Ceilings, Timer, Timing
from kernels import parity
from kernels.op import Cost, Inputs, Op, Shape, Variant
from kernels.tuner import get_variant

MODEL_SIZES = ("num_layers", "num_heads", "num_kv_heads", "group", "head_dim", "size", "ffn_size", "vocab_size")
"""Sizes that are a model's: shapes that share them stand in one table."""


def select_model_sizes(shape: Shape) -> tuple[tuple[str, int], ...]:
    return tuple((name, size) for name, size in shape.items() if name in MODEL_SIZES)


def find_common(shapes: Sequence[Shape]) -> Shape:
    """Return the sizes that all shapes have alike."""
    first, *others = shapes
    return {name: size for name, size in first.items() if all(each.get(name) == size for each in others)}


def label(shape: Shape, without: Shape | None = None) -> str:
    """`num_seqs=4 num_keys=8192`, but for what stands elsewhere."""
    return " ".join(f"{name}={size}" for name, size in shape.items() if name not in (without or {}))


def choose_shapes(op: Op, asked: Sequence[str]) -> list[Shape]:
    """Return the op's timed shapes, or those that hold all sizes of one that is asked for (`num_seqs=4,num_keys=8192`).

    A size may be any where all sizes are given. Raises ValueError for what is no shape.
    """
    if not asked:
        return list(op.benchmark_shapes)
    return [shape for text in asked for shape in _find_shapes(op, text)]


def _find_shapes(op: Op, text: str) -> list[Shape]:
    wanted = _parse(text)
    known = set(op.benchmark_shapes[0])
    if unknown := set(wanted) - known:
        raise ValueError(f"{op.name} has no size {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
    if set(wanted) == known:
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
    """The kernel's constants by name: what the tuner has chosen for this card, if it is another, and the default."""
    default, tuned = op.default(shape), get_variant(op, shape, device, dtype)
    return ({} if tuned == default else {TUNED: tuned}) | {DEFAULT: default}


def make_own_calls(op: Op, variant: Variant, sets: Sequence[Inputs]) -> list[Call]:
    """Return the kernel on each set of inputs."""
    return [partial(op.run, inputs, variant) for inputs in sets]


def make_other_calls(op: Op, sets: Sequence[Inputs]) -> Mapping[str, list[Call]]:
    """Return what others have for it, on each set of inputs."""
    found: dict[str, list[Call]] = {}
    for inputs in sets:
        for name, call in op.torch_baselines(inputs).items():
            found.setdefault(name, []).append(call)
    return found


def make_input_sets(op: Op, shape: Shape, dtype: torch.dtype, device: torch.device, num_sets: int) -> list[Inputs]:
    """Equal inputs in memory of their own, so that a call finds nothing in a cache that another one left there."""
    first = op.inputs(shape, dtype, device, torch.Generator(device).manual_seed(parity.get_run_seed()))
    return [first, *(copy.deepcopy(first) for _ in range(num_sets - 1))]


MOST_SETS = 64

MOST_BYTES = 8 << 30
"""Of all sets of inputs together."""
CACHES = 3
"""All sets together are so many times as large as the cache, where MOST_SETS of them are."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute it. error: distance to the reference, of others to our own output.

    Without a timing, `why` says why.
    """

    name: str
    is_own: bool
    error: float
    timing: Timing | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found of an op at a shape. cached: its inputs fit the cache, so that it may be below its floor."""

    op: str
    shape: Shape
    cost: Cost
    floor_s: float
    ways: tuple[Way, ...] = ()
    cached: bool = False

    @property
    def own(self) -> Way | None:
        """Our quickest, of those that have a time."""
        return self._quickest(is_own=True)

    @property
    def peer(self) -> Way | None:
        return self._quickest(is_own=False)

    @property
    def share(self) -> float | None:
        """Of the roofline, what our quickest reaches."""
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
    """Measure all ways at one shape, but those named in `skip`.

    A way whose output is not right has no time, and where ours is not, nobody has one.
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
    """Return how many sets of inputs take turns."""
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
    """Compare each way on inputs that nothing has run on: some write into them."""
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
    """Timed if it is right. What it lacks (a compiler's support, memory) must not end the others."""
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


HEADS = ("shape", "MB", "GFLOP", "floor, µs", "measured, µs", "best peer, µs", "share")
CACHED = "\\*"
TINY = 0.001
WITH = "With "


def render_op(rows: Sequence[Measured]) -> Iterator[str]:
    """Yield one op's tables, one for each model's sizes: what all its shapes have alike, then a line a shape."""
    for number, (_, found) in enumerate(groupby(rows, key=lambda row: select_model_sizes(row.shape))):
        own = list(found)
        alike = find_common([row.shape for row in own]) if len(own) > 1 else dict(select_model_sizes(own[0].shape))
        if number:
            yield ""
        yield f"{WITH}{label(alike)}:"
        yield ""
        yield _render_line(HEADS)
        yield _render_line(["---", *["--:"] * (len(HEADS) - 1)])
        for row in own:
            yield _render_line([label(row.shape, alike), *format_counts(row), *_format_times(row)])
    if any(row.cached for row in rows):
        yield ""
        yield f"{CACHED} All inputs together fit the card's cache, so it can be quicker than the floor."


def render_ways(rows: Sequence[Measured]) -> Iterator[str]:
    """Yield each way's time with its spread, and its error; or why it has none."""
    for row in rows:
        yield f"  {label(row.shape)}"
        for way in row.ways:
            yield f"    {way.name:16} {_format_time(way)}"


def format_counts(row: Measured) -> list[str]:
    """MB, GFLOP and the floor in µs, the same on every machine."""
    return [
        format_digits(row.cost.num_bytes / 1e6),
        format_digits(row.cost.num_flops / 1e9),
        format_digits(1e6 * row.floor_s),
    ]


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


def format_digits(number: float) -> str:
    """Format three digits that count: 0.0123, 1.23, 123, 12,300; what is tiny is `< 0.001`."""
    if 0 < number < TINY:
        return f"< {TINY}"
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def _format_times(row: Measured) -> list[str]:
    own, peer = row.own, row.peer
    mark = CACHED if row.cached and own else ""
    return [
        f"{format_digits(1e6 * own.timing.median_s)}{mark}" if own and own.timing else "",
        f"{format_digits(1e6 * peer.timing.median_s)} ({peer.name})" if peer and peer.timing else "",
        "" if row.share is None else f"{row.share:.0%}",
    ]


def _format_time(way: Way) -> str:
    if way.timing is None:
        return f"- {way.why}"
    launched = "" if way.timing.graphed else ", launches included"
    median = format_digits(1e6 * way.timing.median_s)
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


def _render_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
