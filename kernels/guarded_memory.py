"""Memory with poison around it and in it, so that what reads or writes where it must not is found out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

GUARD = 256
"""Elements before and behind each tensor: a few rows off by one, and as aligned as what torch allocates."""

ALIGNED = 16
"""Bytes of the widest load: Triton compiles a kernel anew for tensors that do not begin at a multiple."""

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element. The low 6 bits of a NaN are free in each: bfloat16 has no more."""

UNWRITTEN = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}
WRITTEN = {torch.zeros, torch.zeros_like, torch.full, torch.full_like, torch.Tensor.new_zeros, torch.Tensor.new_full}


class GuardedMemory(TorchFunctionMode):
    """While it is entered, what torch allocates is full of poison, and every tensor has guards that must stay as they
    are.

    Poison is NaN; in whole numbers the largest there is. Inputs are copied in by `copy`: what is read beside them is
    NaN, or their own first number where they are whole ones, so that an index read there points to something in use.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guards: list[tuple[Tensor, Tensor]] = []  # both ends of a tensor's memory, and what they were

    def is_untouched(self) -> bool:
        """Whether nothing was written beside any tensor."""
        return all(torch.equal(_bytes(ends), _bytes(before)) for ends, before in self._guards)

    def copy(self, value: Any) -> Any:
        """The same tensors in guarded memory, wherever they are in `value`: from the first number of each to its last,
        with what lies between its rows.
        """
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
        if (func not in UNWRITTEN and func not in WRITTEN) or made.numel() == 0:
            return made
        inside = self._allocate(made.numel(), made, _poison(made.dtype))
        placed = inside.as_strided(made.shape, made.stride())
        return placed if func in UNWRITTEN else placed.copy_(made)

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
        poison = _poison(tensor.dtype) if tensor.is_floating_point() else int(whole[0])
        shift = tensor.data_ptr() % ALIGNED // tensor.itemsize  # the copy may not be easier to load than what it is of
        placed = self._allocate(num_elements, tensor, poison, shift).copy_(whole)
        return placed.as_strided(tensor.shape, tensor.stride())


def _poison(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return float("nan")
    return 0 if dtype == torch.bool else torch.iinfo(dtype).max


def _mark(ends: Tensor, number: int) -> None:
    """Give each NaN bits of its own: one that was read beside another tensor and is written here is told from them."""
    if ends.is_floating_point() and ends.itemsize in BITS:
        ends.view(BITS[ends.itemsize]).add_(1 + (number + torch.arange(len(ends), device=ends.device)) % 63)


def _bytes(tensor: Tensor) -> Tensor:
    """Which equal themselves, unlike NaN."""
    return tensor.view(torch.uint8)
