"""The interface of an op with a Triton kernel, the list of ops, and the choice between Triton and torch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

Shape = Mapping[str, int]
"""Sizes of an op's inputs by name: {"num_tokens": 4, "head_dim": 64}."""

Variant = Mapping[str, int]
"""Tunable constants of a kernel by name, including `num_warps` and `num_stages`."""

Inputs = Mapping[str, Any]
"""Arguments of an op by name."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The minimum work of an op: each input byte read once, each output byte written once, each product once."""

    num_bytes: int
    num_flops: int

    def floor_s(self, bytes_per_s: float, flops_per_s: float) -> float:
        """Return the lower bound of the run time, given a card's copy bandwidth and its rate of matrix products."""
        return max(self.num_bytes / bytes_per_s, self.num_flops / flops_per_s)


class Op(Protocol):
    """An op: its random inputs, its reference, its kernel and the kernel's variants.

    Each op is defined as `OP` in the package `kernels.<name>`; `OP_NAMES` lists all of them.
    """

    @property
    def name(self) -> str:
        """The name of the op's folder in `kernels`."""
        ...

    @property
    def parity_shapes(self) -> Sequence[Shape]:
        """Edge cases, small enough for Triton's interpreter: one query, one page, lengths at and near boundaries."""
        ...

    @property
    def benchmark_shapes(self) -> Sequence[Shape]:
        """Shapes that a service runs, in the order of the rows of a table."""
        ...

    @property
    def space(self) -> Mapping[str, Sequence[int]]:
        """The values that each tunable constant may take."""
        ...

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """Return whether a kernel with these constants can run a shape."""
        ...

    def default(self, shape: Shape) -> Variant:
        """Return the variant to use when nothing was tuned."""
        ...

    def shape_class(self, shape: Shape) -> str:
        """Name the class of shapes that share a winner of the tuner: 'head_dim=64 group=7 rows=16..64'."""
        ...

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Make random inputs with a generator of the same device.

        Memory that the op must not read (unused pages, elements after the end of a sequence) is NaN. Pools that the op
        writes to are NaN as well.
        """
        ...

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        """Run the Triton kernel and return its outputs, including every pool that it wrote to.

        With `variant` None the wrapper's own choice is used. Outputs come from `torch.empty`, which the parity check
        fills with NaN. Inputs that the op changes in place are copies.
        """
        ...

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return the same outputs computed by the naive implementation.

        The parity check passes floating-point inputs in float64. The result is NaN exactly where the kernel must not
        write.
        """
        ...

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Return torch's implementations by name ('sdpa', 'flex_attention', 'compile'); empty if torch has none.

        Masks and compiled functions are built before they are returned. A call only computes, and returns what `run`
        returns.
        """
        ...

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Count the bytes and operations of a shape."""
        ...


OP_NAMES = ("paged_attention", "rope_write", "span_placement", "accept", "rms_norm", "swiglu", "fp8_rows")


def load_op(name: str) -> Op:
    """Import one op. Raises ValueError, which lists the known names, for an unknown name."""
    if name not in OP_NAMES:
        raise ValueError(f"there is no op {name!r}; there are {', '.join(OP_NAMES)}")
    found: Op = import_module(f".{name}", __package__).OP
    return found


def runs_triton(tensor: Tensor) -> bool:
    """Return whether an op on this tensor runs its Triton kernel.

    Triton reads `TRITON_INTERPRET` when it is imported. With it kernels run on a CPU, thousands of times slower; this
    is how tests run them on machines without a GPU.
    """
    return tensor.is_cuda or is_interpreting()


@cache
def is_interpreting() -> bool:
    """Return whether this process uses Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


PROGRAMS_PER_PROCESSOR = "PER_PROCESSOR"
"""The variant's number of persistent programs on a processor; 0 launches one program a block."""

INTERPRETED_PROCESSORS = 2
"""Processors assumed by the interpreter: few, so that a persistent program takes several blocks."""


def count_programs(num_blocks: int, variant: Variant, device: torch.device) -> int:
    """Return the number of programs of a launch; each takes the blocks whose indices differ by a multiple of it."""
    per_processor = variant[PROGRAMS_PER_PROCESSOR]
    return num_blocks if not per_processor else min(num_blocks, per_processor * count_processors(device))


def get_compile_constants(variant: Variant) -> dict[str, int]:
    """Return the constants that a kernel is compiled with."""
    return {name: value for name, value in variant.items() if name != PROGRAMS_PER_PROCESSOR}


@cache
def count_processors(device: torch.device) -> int:
    """Return the number of a card's multiprocessors."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, to a card asynchronously: torch keeps the host memory alive until the copy is done."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def waits_for_card(run: Callable[[], object]) -> bool:
    """Run something once, and return whether the host waited for the card: a graph cannot capture that.

    Trying to is no answer: a capture that a wait has made invalid leaves torch's random numbers of the card unusable.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def round_up_to_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
