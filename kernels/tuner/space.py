"""The variants of a kernel that a search tries: the declared space, less what cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
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
