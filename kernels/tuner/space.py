"""The search space of a kernel's constants, and successive halving over it.

Of 100 variants, all are timed 3 times, 34 of them 6 times more, 12 of them 12 times, the last 4 another 48 times: most
of the time goes to those among which it is hard to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, fsum, log
from random import Random
from statistics import median
from typing import Protocol, runtime_checkable

import torch

from kernels.op import Op, Shape, Variant

FEWEST_PROOFS, MOST_PROOFS = 3, 6
"""Each may cost a compilation."""


@runtime_checkable
class CountsSharedMemory(Protocol):
    """An op that can say beforehand how much shared memory a variant takes; others are found out by the compiler."""

    def shared_bytes(self, variant: Variant, shape: Shape, dtype: torch.dtype) -> int:
        """At least what one block of threads takes."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """What one winner is searched for: shapes of one class, in one dtype."""

    op: Op
    dtype: torch.dtype
    shape_class: str
    shapes: tuple[Shape, ...]

    @property
    def key(self) -> str:
        """'paged_attention bfloat16 head_dim=128 group=7 rows=1'."""
        return winner_key(self.op.name, self.dtype, self.shape_class)


def winner_key(op_name: str, dtype: torch.dtype, shape_class: str) -> str:
    return f"{op_name} {dtype_name(dtype)} {shape_class}"


def dtype_name(dtype: torch.dtype) -> str:
    """'bfloat16'."""
    return str(dtype).removeprefix("torch.")


def targets(op: Op, dtype: torch.dtype, shapes: Sequence[Shape]) -> list[Target]:
    """Shapes by their class, in the order in which the classes first come."""
    classes: dict[str, list[Shape]] = {}
    for shape in shapes:
        classes.setdefault(op.shape_class(shape), []).append(shape)
    return [Target(op, dtype, name, tuple(found)) for name, found in classes.items()]


def declared(space: Mapping[str, Sequence[int]]) -> list[Variant]:
    """Every combination of the values that a space lists."""
    return [dict(zip(space, values, strict=True)) for values in product(*space.values())]


def valid(target: Target, shared_bytes: int | None = None) -> list[Variant]:
    """The declared variants that can run all of a target's shapes; `shared_bytes` is what the card has, if known.

    The defaults are among them, declared or not: what is found has to be better than what would run without it.
    """
    found = [variant for variant in declared(target.op.space) if _runs(variant, target, shared_bytes)]
    for shape in target.shapes:
        default = dict(target.op.default(shape))
        if default not in found and _runs(default, target, shared_bytes):
            found.append(default)
    return found


def _runs(variant: Variant, target: Target, shared_bytes: int | None) -> bool:
    op = target.op
    if not all(op.is_valid(variant, shape) for shape in target.shapes):
        return False
    if shared_bytes is None or not isinstance(op, CountsSharedMemory):
        return True
    return all(op.shared_bytes(variant, shape, target.dtype) <= shared_bytes for shape in target.shapes)


def proofs(target: Target, variant: Variant) -> list[Shape]:
    """The shapes that a variant has to be right at before it is timed.

    They are the parity shapes that it can run, those of its class before others, and where these are few (a split of
    long contexts runs no short one), the target's own.
    """
    op = target.op
    small = [shape for shape in op.parity_shapes if op.is_valid(variant, shape)]
    small.sort(key=lambda shape: op.shape_class(shape) != target.shape_class)
    return [*small[:MOST_PROOFS], *target.shapes[: max(0, FEWEST_PROOFS - len(small))]]


FIRST_REPEATS = 3
KEPT = 1 / 3
NUM_FINALISTS = 4
FINAL_REPEATS = 48

Sample = Callable[[Variant], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Timed:
    """A variant and the median time of one run, for each shape that it was timed at."""

    variant: Variant
    seconds: tuple[float, ...]
    num_samples: int

    @property
    def score(self) -> float:
        """The geometric mean over the shapes: a tenth off any of them counts alike, whatever its length."""
        return exp(fsum(map(log, self.seconds)) / len(self.seconds))


def halve(
    candidates: Sequence[Variant],
    sample: Sample,
    random: Random,
    *,
    baseline: Variant | None = None,
    dropped: Callable[[Variant], None] = lambda variant: None,
    expired: Callable[[], bool] = lambda: False,
) -> list[Timed]:
    """The finalists, fastest first, the baseline among them; more than these where the time expires before.

    A round runs each variant once, in an order of its own: what drifts (clocks, heat, a neighbour) drifts for all.
    """
    samples: list[list[tuple[float, ...]]] = [[] for _ in candidates]
    left, repeats = list(range(len(candidates))), FIRST_REPEATS
    while left:
        is_final = len(left) <= NUM_FINALISTS + 1
        for _ in range(FINAL_REPEATS if is_final else repeats):
            for index in random.sample(left, len(left)):
                samples[index].append(sample(candidates[index]))
            if expired():
                break
        timed = {index: _median(candidates[index], samples[index]) for index in left}
        left.sort(key=lambda index: timed[index].score)
        if is_final or expired():
            return [timed[index] for index in left]
        num_kept = max(NUM_FINALISTS, ceil(len(left) * KEPT))
        for index in [index for index in left[num_kept:] if candidates[index] != baseline]:
            left.remove(index)
            dropped(candidates[index])
        repeats *= 2
    return []


def _median(variant: Variant, samples: Sequence[tuple[float, ...]]) -> Timed:
    return Timed(variant, tuple(median(times) for times in zip(*samples, strict=True)), len(samples))


class DoesNotLaunch(Exception):
    """The card cannot run this variant: it takes more than a block may have, or does not compile."""


class CardFailed(Exception):
    """A variant brought the card into a state in which this process can do nothing more with it."""


class Timer(Protocol):
    """Times variants of one op at the shapes of one target."""

    def prepare(self, variant: Variant) -> None:
        """Compile a variant and run it once at every shape; raises DoesNotLaunch."""
        ...

    def seconds(self, variant: Variant) -> tuple[float, ...]:
        """One sample of a prepared variant: the time of one run, for each shape."""
        ...

    def release(self, variant: Variant) -> None:
        """The variant is not going to be timed any more."""
        ...
