"""Sums of the ranks of one machine, through memory that they share.

Each rank has some slots. For sum n it copies its tensor into slot n modulo NUM_SLOTS and counts what it has written;
when all have, each adds up the slots in the order of the ranks, so that all get the same bits, and counts what it has
read. A slot is written again once all have read it. There is no thread, and no copy through the kernel.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kernels.native import Function, find_function

NUM_SLOTS = 4
"""As many sums may be under way: `parts` has four."""

SLOT_BYTES = 1 << 22
"""A larger tensor is not summed here: of 896 numbers in float32 it has 1,170 rows."""

LINE = 8
"""Numbers between two counters, so that no two ranks write into one cache line."""

PATIENCE_S = 0.2
"""After so long, a wait looks whether a rank is gone."""


@dataclass(frozen=True, slots=True)
class SharedSum:
    """A sum that is under way. parts: the slots of all ranks, [num_ranks, *shape of the tensor]."""

    sums: SharedSums
    number: int
    tensor: Tensor
    parts: Tensor

    def wait(self) -> None:
        """Return when it is in the tensor."""
        self.sums.finish(self)


class SharedSums:
    """One rank's view of the shared memory; sums are started, and waited for, in one order on all ranks."""

    def __init__(self, file: Path, rank: int, size: int, check: Callable[[], None]) -> None:
        """Map a file that `create` has made. check: raises if a rank is gone. Raises OSError."""
        self._rank, self._size, self._check = rank, size, check
        if file.stat().st_size != _count_bytes(size):  # torch would make it larger without memory for it
            raise OSError(f"{file} is not of {size} ranks")
        try:
            memory = torch.from_file(str(file), shared=True, size=_count_bytes(size), dtype=torch.uint8)
        except RuntimeError as error:  # as torch says that a file cannot be mapped
            raise OSError(str(error)) from error
        counters = memory[: 2 * size * LINE * 8].view(torch.int64).view(2, size, LINE)
        self._written, self._read = counters.unbind()
        self._slots = memory[counters.nbytes :].view(size, NUM_SLOTS, SLOT_BYTES)
        self._started = self._finished = 0
        store, wait = _find_functions()
        assert store is not None, "can_share says so"
        assert wait is not None, "can_share says so"
        self._store_counter, self._wait_for_counters = store, wait

    @staticmethod
    def create(file: Path, size: int) -> None:
        """Make the file for so many ranks, with all of its memory; raises OSError if there is none."""
        try:
            with file.open("xb") as opened:
                os.posix_fallocate(opened.fileno(), 0, _count_bytes(size))
        except OSError:
            file.unlink(missing_ok=True)
            raise

    def start(self, tensor: Tensor) -> SharedSum | None:
        """Begin to replace a contiguous tensor by its sum; return None if it is too large."""
        if tensor.nbytes > SLOT_BYTES:
            return None
        assert self._started - self._finished < NUM_SLOTS, "a slot is free once its sum is finished"
        self._wait_for(self._read, self._started + 1 - NUM_SLOTS)
        number = self._started = self._started + 1
        parts = self._slots[:, number % NUM_SLOTS, : tensor.nbytes].view(tensor.dtype).view(self._size, *tensor.shape)
        parts[self._rank].copy_(tensor)
        self._store(self._written, number)
        return SharedSum(self, number, tensor, parts)

    def finish(self, pending: SharedSum) -> None:
        """Wait for a sum, the first of those that were not waited for."""
        assert pending.number == self._finished + 1, "sums are finished in their order"
        self._wait_for(self._written, pending.number)
        first, second, *others = pending.parts.unbind()
        torch.add(first, second, out=pending.tensor)
        for part in others:
            pending.tensor.add_(part)
        self._finished = pending.number
        self._store(self._read, pending.number)

    def _store(self, counters: Tensor, value: int) -> None:
        self._store_counter(counters[self._rank].data_ptr(), value)

    def _wait_for(self, counters: Tensor, value: int) -> None:
        while not self._wait_for_counters(counters.data_ptr(), self._size, LINE, value, PATIENCE_S):
            self._check()


def can_share() -> bool:
    """Return whether this machine has what it needs: Linux and a compiler."""
    return all(_find_functions())


def _count_bytes(size: int) -> int:
    return size * (2 * LINE * 8 + NUM_SLOTS * SLOT_BYTES)


@cache
def _find_functions() -> tuple[Function | None, Function | None]:
    store, wait = (find_function(name, torch.int64) for name in ("store_counter", "wait_for_counters"))
    if store is not None and wait is not None:
        store.argtypes, store.restype = [ctypes.c_void_p, ctypes.c_int64], None
        wait.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_int64, ctypes.c_double]
        wait.restype = ctypes.c_int
    return store, wait
