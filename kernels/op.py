"""The interface of an op with a Triton kernel, and the list of all ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

Shape = Mapping[str, int]
"""The sizes that an op's inputs are made of, by name: {"num_tokens": 4, "head_dim": 64}."""

Variant = Mapping[str, int]
"""A kernel's tunable constants by name, `num_warps` and `num_stages` among them."""

Inputs = Mapping[str, Any]
"""An op's arguments by name."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The least that an op has to do: every input byte read once, every output byte written once, every product."""

    num_bytes: int
    num_flops: int

    def floor_s(self, bytes_per_s: float, flops_per_s: float) -> float:
        """The time that no version is below on a card of this copy bandwidth and this rate of matrix products."""
        return max(self.num_bytes / bytes_per_s, self.num_flops / flops_per_s)


class Op(Protocol):
    """One op: how to make inputs of it, what is true of them, how its kernel is run and varied.

    `kernels/<op>/op.py` has it as `OP`, and `kernels.op` lists all.
    """

    @property
    def name(self) -> str:
        """As in `kernels/<name>`."""
        ...

    @property
    def parity_shapes(self) -> Sequence[Shape]:
        """Awkward ones, small enough for Triton's interpreter: one query, one page, lengths at and around borders."""
        ...

    @property
    def timed_shapes(self) -> Sequence[Shape]:
        """What a service meets, in the order in which a table shows them."""
        ...

    @property
    def space(self) -> Mapping[str, Sequence[int]]:
        """The values that each tunable constant may take."""
        ...

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """Whether a kernel of these constants can run a shape at all."""
        ...

    def default(self, shape: Shape) -> Variant:
        """A sane variant where nothing was tuned."""
        ...

    def shape_class(self, shape: Shape) -> str:
        """What shapes share a winner of the tuner: 'head_dim=64 group=7 rows=16..64'."""
        ...

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Random inputs, from a generator of that device. What must not be read (unused pages, what lies behind an end)
        is NaN, and so is a pool that the op writes to.
        """
        ...

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        """The Triton kernel's outputs, all of a pool that it wrote to among them; None: the wrapper's own variant.

        Outputs are `torch.empty`, which parity has filled with NaN; inputs that are changed in place are copies.
        """
        ...

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """The same by `reference.py`; parity gives it the inputs in float64 where they are of a float dtype.

        It is NaN exactly where the kernel must not write.
        """
        ...

    def torch_ways(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """What torch has for it, by name ('sdpa', 'flex_attention', 'compile').

        Masks and compiled functions are made here; a call only computes, and gives what `run` gives. Empty where torch
        has nothing.
        """
        ...

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """The bytes and operations counted."""
        ...


NAMES = ("paged_attention", "rope_write", "span_placement", "accept", "rms_norm", "swiglu")


def op_named(name: str) -> Op:
    """One op; raises ValueError with the names that there are."""
    if name not in NAMES:
        raise ValueError(f"there is no op {name!r}; there are {', '.join(NAMES)}")
    found: Op = import_module(f"kernels.{name}.op").OP
    return found
