"""One op at one shape: first whether every way computes the same, then how long each takes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

import torch

from benchmarks.ops.ceilings import Ceilings
from benchmarks.ops.timing import Timer, Timing
from benchmarks.ops.ways import Call, Outputs, input_sets, other_calls, own_calls, variants
from kernels import parity
from kernels.op import Cost, Inputs, Op, Shape

MOST_SETS = 64

MOST_BYTES = 8 << 30
"""Of all sets of inputs together."""
CACHES = 3
"""All sets together are so many times as large as the cache, where MOST_SETS of them are."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute it. error: to the reference, or of others to our own output; no timing: `why` tells."""

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
        """The others' quickest."""
        return self._quickest(is_own=False)

    @property
    def share(self) -> float | None:
        """Of the roofline, what our quickest reaches."""
        return None if self.own is None or self.own.timing is None else self.floor_s / self.own.timing.median_s

    def _quickest(self, *, is_own: bool) -> Way | None:
        timed = [way for way in self.ways if way.is_own == is_own and way.timing is not None]
        return min(timed, key=lambda way: way.timing.median_s if way.timing else inf, default=None)


def counted(op: Op, shape: Shape, dtype: torch.dtype, ceilings: Ceilings) -> Measured:
    """What needs no run."""
    cost = op.cost(shape, dtype)
    return Measured(op.name, shape, cost, ceilings.floor_s(cost))


def measure(
    op: Op,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    ceilings: Ceilings,
    timer: Timer,
    skip: Collection[str] = (),
) -> Measured:
    """All ways at one shape, but those named in `skip`.

    A way whose output is not right has no time, and where ours is not, nobody has one.
    """
    found = counted(op, shape, dtype, ceilings)
    cache_bytes = _cache_bytes(device)
    sets = input_sets(op, shape, dtype, device, number_of_sets(found.cost, cache_bytes))
    unused = copy.deepcopy(sets[0])
    ways = list(_own_ways(op, shape, dtype, device, sets, timer))
    if all(way.error <= parity.BOUNDS[dtype] for way in ways):
        ways += _other_ways(op, shape, dtype, unused, sets, timer, skip)
    torch.compiler.reset()  # or the next shapes are compiled for any shape, and after some not at all
    cached = len(sets) * found.cost.num_bytes < 2 * cache_bytes
    return Measured(op.name, shape, found.cost, found.floor_s, tuple(ways), cached)


def number_of_sets(cost: Cost, cache_bytes: int) -> int:
    """How many sets of inputs take turns."""
    enough = -(-CACHES * cache_bytes // max(1, cost.num_bytes))
    return max(1, min(enough, MOST_SETS, MOST_BYTES // max(1, cost.num_bytes)))


def _own_ways(
    op: Op, shape: Shape, dtype: torch.dtype, device: torch.device, sets: Sequence[Inputs], timer: Timer
) -> Iterator[Way]:
    bound = parity.BOUNDS[dtype]
    for name, variant in variants(op, shape, dtype, device).items():
        check = partial(parity.check, op, shape, dtype, device, variant)
        yield _way(name, check, bound, partial(own_calls, op, variant, sets), timer, is_own=True)


def _other_ways(
    op: Op,
    shape: Shape,
    dtype: torch.dtype,
    unused: Inputs,
    sets: Sequence[Inputs],
    timer: Timer,
    skip: Collection[str],
) -> Iterator[Way]:
    """Each is compared on inputs that nothing has run on: some write into them."""
    bound = 2 * parity.BOUNDS[dtype]  # either may be off by the bound of one
    try:
        expected = op.run(copy.deepcopy(unused), op.default(shape))
        calls = {name: own for name, own in other_calls(op, sets).items() if name not in skip}
    except Exception as fault:  # noqa: BLE001 -- what others lack must not end the run
        yield Way("others", False, inf, why=_reason(fault))
        return
    for name, own in calls.items():
        yield _way(name, partial(_difference, op, name, unused, expected), bound, partial(tuple, own), timer)


def _way(
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
            seed = f"{parity.SEED_VARIABLE}={parity.run_seed()} draws this again"
            return Way(name, is_own, error, why=f"no speed is shown: it is off {whose} by {error:.2g} ({seed})")
        return Way(name, is_own, error, timer.time(calls_of()))
    except Exception as fault:  # noqa: BLE001 -- see above
        return Way(name, is_own, inf, why=_reason(fault))


def _difference(op: Op, name: str, unused: Inputs, expected: Outputs) -> float:
    (call,) = other_calls(op, [copy.deepcopy(unused)])[name]
    outputs = call()
    return max(map(parity.error_ratio, outputs, expected), default=inf) if len(outputs) == len(expected) else inf


def _reason(fault: Exception) -> str:
    return f"{type(fault).__name__}: {(str(fault) or 'no reason given').splitlines()[0]}"


def _cache_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
