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

UNWRITTEN = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}
WRITTEN = {torch.zeros, torch.zeros_like, torch.full, torch.full_like, torch.Tensor.new_zeros, torch.Tensor.new_full}


class GuardedMemory(TorchFunctionMode):
    """While it is entered, what torch allocates is full of poison, and every tensor has guards that must stay as they
    are.

    Poison is NaN; in whole numbers the largest there is. Inputs are copied in by `copy`: what is read beside them is
    NaN, or 0 where it is a whole number, so that an index read there points to something.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guards: list[tuple[Tensor, Tensor]] = []  # both ends of a tensor's memory, and what they were

    def is_untouched(self) -> bool:
        """Whether nothing was written beside any tensor."""
        return all(torch.equal(_bytes(ends), _bytes(before)) for ends, before in self._guards)

    def copy(self, value: Any) -> Any:
        """The same tensors in guarded memory, wherever they are in `value`; what shared memory still does."""
        return self._copy(value, {})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if (func not in UNWRITTEN and func not in WRITTEN) or made.numel() == 0:
            return made
        inside = self._allocate(made.numel(), made, _poison(made.dtype))
        placed = inside.as_strided(made.shape, made.stride())
        return placed if func in UNWRITTEN else placed.copy_(made)

    def _allocate(self, num_elements: int, like: Tensor, poison: float) -> Tensor:
        memory = torch.full((num_elements + 2 * GUARD,), poison, dtype=like.dtype, device=like.device)
        for ends in (memory[:GUARD], memory[-GUARD:]):
            self._guards.append((ends, ends.clone()))
        return memory[GUARD:-GUARD]

    def _copy(self, value: Any, done: dict[int, Tensor]) -> Any:
        if isinstance(value, Tensor):
            return self._copy_tensor(value, done)
        if isinstance(value, Mapping):
            return {name: self._copy(part, done) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy(part, done) for part in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: self._copy(getattr(value, each.name), done) for each in fields(value)})
        return value

    def _copy_tensor(self, tensor: Tensor, done: dict[int, Tensor]) -> Tensor:
        """All of the memory that a tensor is a view of is copied, and the view taken anew."""
        storage = tensor.untyped_storage()
        num_elements = storage.nbytes() // tensor.itemsize
        if num_elements == 0:
            return tensor.clone()
        if storage.data_ptr() not in done:
            whole = tensor.as_strided((num_elements,), (1,), 0)
            poison = _poison(tensor.dtype) if tensor.is_floating_point() else 0
            done[storage.data_ptr()] = self._allocate(num_elements, tensor, poison).copy_(whole)
        inside = done[storage.data_ptr()].view(tensor.dtype)
        return inside.as_strided(tensor.shape, tensor.stride(), inside.storage_offset() + tensor.storage_offset())


def _poison(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return float("nan")
    return 0 if dtype == torch.bool else torch.iinfo(dtype).max


def _bytes(tensor: Tensor) -> Tensor:
    """Which equal themselves, unlike NaN."""
    return tensor.view(torch.uint8)
