"""Compares a kernel with its reference on random inputs in guarded memory.

The error is ||out - ref|| / ||ref|| with the reference in float64. The bound depends on the dtype alone.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernels.op import Op, Shape, Variant, is_interpreting

GUARD = 256
"""Guard elements before and after each tensor: they catch offsets of a few rows, and keep torch's alignment."""

ALIGNED = 16
"""Bytes of the widest load. Triton compiles another kernel for tensors that do not begin at a multiple of it."""

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by element size. The low 6 bits of a NaN are free in each; bfloat16 has no more."""

EMPTY_FUNCTIONS = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}
FILL_FUNCTIONS = {
    torch.zeros,
    torch.zeros_like,
    torch.full,
    torch.full_like,
    torch.Tensor.new_zeros,
    torch.Tensor.new_full,
}


class GuardedMemory(TorchFunctionMode):
    """While active, fills memory that torch allocates with poison and puts guards around every tensor.

    Poison is NaN, or the largest value of an integer dtype. `copy` moves inputs into guarded memory. A read outside of
    such a tensor returns NaN, or for integers the tensor's own first element, so that an index read there points to
    memory in use.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guards: list[tuple[Tensor, Tensor]] = []  # guards of each tensor, and their first values

    def is_untouched(self) -> bool:
        """Return whether all guards still have their values."""
        return all(torch.equal(_view_bytes(ends), _view_bytes(before)) for ends, before in self._guards)

    def copy(self, value: Any) -> Any:
        """Copy all tensors within `value`, with the gaps between their rows, to guarded memory."""
        if isinstance(value, Tensor):
            return self._copy_tensor(value)
        if isinstance(value, Mapping):
            return {name: self.copy(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.copy(part) for part in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: self.copy(getattr(value, each.name)) for each in fields(value)})
        return value

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if (func not in EMPTY_FUNCTIONS and func not in FILL_FUNCTIONS) or made.numel() == 0:
            return made
        inside = self._allocate(made.numel(), made, _get_poison(made.dtype))
        placed = inside.as_strided(made.shape, made.stride())
        return placed if func in EMPTY_FUNCTIONS else placed.copy_(made)

    def _allocate(self, num_elements: int, like: Tensor, poison: float, shift: int = 0) -> Tensor:
        start = GUARD + shift
        memory = torch.full((start + num_elements + GUARD,), poison, dtype=like.dtype, device=like.device)
        for ends in (memory[:start], memory[-GUARD:]):
            _mark(ends, len(self._guards))
            self._guards.append((ends, ends.clone()))
        return memory[start:-GUARD]

    def _copy_tensor(self, tensor: Tensor) -> Tensor:
        if tensor.numel() == 0:
            return tensor.clone()
        num_elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        whole = tensor.as_strided((num_elements,), (1,))
        poison = _get_poison(tensor.dtype) if tensor.is_floating_point() else int(whole[0])
        shift = tensor.data_ptr() % ALIGNED // tensor.itemsize  # the copy must not be better aligned than the original
        placed = self._allocate(num_elements, tensor, poison, shift).copy_(whole)
        return placed.as_strided(tensor.shape, tensor.stride())


def _get_poison(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return float("nan")
    return 0 if dtype == torch.bool else torch.iinfo(dtype).max


def _mark(ends: Tensor, number: int) -> None:
    """Give each guard NaN bits of its own, so that a guard that was read elsewhere and written here is detected."""
    if ends.is_floating_point() and ends.itemsize in BITS:
        ends.view(BITS[ends.itemsize]).add_(1 + (number + torch.arange(len(ends), device=ends.device)) % 63)


def _view_bytes(tensor: Tensor) -> Tensor:
    """View a tensor as bytes, which compare equal to themselves, unlike NaN."""
    return tensor.view(torch.uint8)


BOUNDS: Mapping[torch.dtype, float] = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""The largest error of a correct kernel: inputs and products are rounded, sums are in float32."""

SEED_VARIABLE = "KERNELS_SEED"


def measure_error(
    op: Op,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    variant: Variant | None = None,
    seed: int | None = None,
) -> float:
    """Return the largest error of an op's outputs; `inf` for a NaN in the wrong place, and for a write outside of a
    tensor.

    Elements that `run` does not write (rows that see no key, other slots of a pool) are NaN in the reference, too.
    Integer outputs must be equal. `variant` None checks the wrapper's choice; `seed` None takes the seed of the
    process.
    """
    if not is_interpreting() and device.type != "cuda":
        raise RuntimeError("kernels run on a CUDA device, or with TRITON_INTERPRET=1 set before Python starts")
    generator = torch.Generator(device).manual_seed(get_run_seed() if seed is None else seed)
    inputs = op.inputs(shape, dtype, device, generator)
    memory = GuardedMemory()
    guarded = memory.copy(inputs)
    with memory:
        outputs = op.run(guarded, variant)
    expected = op.reference(_to_float64(inputs))
    if len(outputs) != len(expected):
        raise AssertionError(f"{op.name} has {len(outputs)} outputs and its reference {len(expected)}")
    return max(map(compute_error_ratio, outputs, expected)) if memory.is_untouched() else inf


def assert_equal(
    op: Op,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    variant: Variant | None = None,
) -> None:
    """Raise AssertionError if the error is above the dtype's bound. The message says how to repeat the run."""
    seed = get_run_seed()
    error = measure_error(op, shape, dtype, device, variant, seed)
    assert error <= BOUNDS[dtype], (
        f"{op.name} {dict(shape)} {dtype} variant {None if variant is None else dict(variant)}: "
        f"error {error:.3g} is above {BOUNDS[dtype]:g}; {SEED_VARIABLE}={seed} in the environment draws this again"
    )


@cache
def get_run_seed() -> int:
    """Return the seed of this process's random inputs: from the environment, or a new one for each process."""
    return int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(2**31))


def compute_error_ratio(output: Tensor, expected: Tensor) -> float:
    """Return ||output - expected|| / ||expected||; `inf` if non-finite elements or integers differ."""
    if output.shape != expected.shape:
        raise AssertionError(f"an output is {list(output.shape)} and its reference {list(expected.shape)}")
    if not output.is_floating_point():
        return 0.0 if torch.equal(output.to(expected.dtype), expected) else inf
    least = torch.finfo(output.dtype).smallest_normal  # smaller numbers lose precision
    output, expected = output.double(), expected.double()
    finite = expected.isfinite()
    if not torch.equal(output.isfinite(), finite):
        return inf
    if not torch.equal(output[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return inf
    error = (output[finite] - expected[finite]).norm().item()
    size = expected[finite].norm().item()
    return float(error / max(size, least * max(1, int(finite.sum())) ** 0.5))


def _to_float64(value: Any) -> Any:
    """Convert every floating-point tensor within a value to float64."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: _to_float64(part) for name, part in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map(_to_float64, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _to_float64(getattr(value, field.name)) for field in fields(value)})
    return value
