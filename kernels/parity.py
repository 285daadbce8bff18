"""Whether a kernel computes what its reference does: on random inputs, with everything poisoned that nobody may read.

The error is ||out - ref|| / ||ref||, the reference in float64. What it may be follows from the dtype alone.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from kernels.backend import is_interpreting
from kernels.guarded_memory import GuardedMemory
from kernels.op import Op, Shape, Variant

BOUNDS: Mapping[torch.dtype, float] = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""The largest error of a right kernel: rounding of inputs and products, not of what is summed up in float32."""

SEED_VARIABLE = "KERNELS_SEED"


def check(
    op: Op,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    variant: Variant | None = None,
    seed: int | None = None,
) -> float:
    """The worst error of an op's outputs; `inf` where one has a NaN that it should not, or lacks one that it should, or
    where something was written beside a tensor.

    What `run` leaves as it found it (rows that see nothing, a pool's other slots) is NaN in the reference, too. Outputs
    of whole numbers must be equal. Without a variant, the wrapper's choice is checked; without a seed, the run's is
    taken.
    """
    if not is_interpreting() and device.type != "cuda":
        raise RuntimeError("kernels run on a CUDA device, or with TRITON_INTERPRET=1 set before Python starts")
    generator = torch.Generator(device).manual_seed(run_seed() if seed is None else seed)
    inputs = op.inputs(shape, dtype, device, generator)
    memory = GuardedMemory()
    guarded = memory.copy(inputs)
    with memory:
        outputs = op.run(guarded, variant)
    expected = op.reference(_in_float64(inputs))
    if len(outputs) != len(expected):
        raise AssertionError(f"{op.name} has {len(outputs)} outputs and its reference {len(expected)}")
    return max(map(error_ratio, outputs, expected)) if memory.is_untouched() else inf


def assert_equal(
    op: Op,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    variant: Variant | None = None,
    seed: int | None = None,
) -> None:
    """Raise AssertionError where the error is above the dtype's bound, saying of what and how to see it again."""
    seed = run_seed() if seed is None else seed
    error = check(op, shape, dtype, device, variant, seed)
    assert error <= BOUNDS[dtype], (
        f"{op.name} {dict(shape)} {dtype} variant {None if variant is None else dict(variant)}: "
        f"error {error:.3g} is above {BOUNDS[dtype]:g}; {SEED_VARIABLE}={seed} in the environment draws this again"
    )


@cache
def run_seed() -> int:
    """The seed of this process' random inputs: a new one each run, or what the environment says."""
    return int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(2**31))


def error_ratio(output: Tensor, expected: Tensor) -> float:
    """||output - expected|| / ||expected||; `inf` where they differ in what is no finite number, or in whole ones."""
    if output.shape != expected.shape:
        raise AssertionError(f"an output is {list(output.shape)} and its reference {list(expected.shape)}")
    if not output.is_floating_point():
        return 0.0 if torch.equal(output.to(expected.dtype), expected) else inf
    least = torch.finfo(output.dtype).smallest_normal  # below it, a dtype has no digits to be exact in
    output, expected = output.double(), expected.double()
    finite = expected.isfinite()
    if not torch.equal(output.isfinite(), finite):
        return inf
    if not torch.equal(output[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return inf
    error = (output[finite] - expected[finite]).norm().item()
    size = expected[finite].norm().item()
    return float(error / max(size, least * max(1, int(finite.sum())) ** 0.5))


def _in_float64(value: Any) -> Any:
    """The same inputs, with every tensor of a float dtype in float64."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: _in_float64(part) for name, part in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map(_in_float64, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _in_float64(getattr(value, field.name)) for field in fields(value)})
    return value
