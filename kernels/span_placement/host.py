"""Placement of keys and values that are in host memory: on a CPU, or through staging buffers to a card.

Neighbouring slots are read and written in place; other rows are gathered and scattered as 8-byte words, in two thirds
of the time that rows of bf16 take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kernels.attention import Scratch
from kernels.op import Inputs
from kernels.rope import apply_rope
from kernels.span_placement.op import OP

Rows = Tensor | slice
"""A slice for neighbouring rows, otherwise int64 [num_rows]."""


def to_rows(slots: Tensor) -> Rows:
    """Return slots as a slice if they are neighbours."""
    first, end = int(slots[0]), int(slots[0]) + len(slots)
    return slice(first, end) if torch.equal(slots, torch.arange(first, end)) else slots


def read(rows: Tensor, at: Rows, out: Tensor) -> Tensor:
    """Return some rows: a view if they are neighbours, otherwise copies in `out`."""
    if isinstance(at, slice):
        return rows[at]
    torch.index_select(_view_as_words(rows), 0, at, out=_view_as_words(out))
    return out


def write(rows: Tensor, at: Rows, values: Tensor) -> None:
    """Overwrite some rows."""
    if isinstance(at, slice):
        rows[at] = values
    else:
        _view_as_words(rows).index_copy_(0, at, _view_as_words(values))


def _view_as_words(rows: Tensor) -> Tensor:
    """View rows of any dtype as rows of 8-byte words, if their size allows it."""
    flat = rows.flatten(1)
    return flat.view(torch.int64) if flat.shape[1] * flat.element_size() % 8 == 0 else flat


TOKENS = 4096
"""Tokens of a chunk: its copies stay in the cache."""


def place_on_cpu(
    keys: Tensor,
    values: Tensor,
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    target_slots: Tensor,
    scratch: Scratch,
) -> None:
    """Do the same as `kernels.span_placement.place` by torch, with keys and values in host memory."""
    for first in range(0, len(source_slots), TOKENS):
        chunk = slice(first, first + TOKENS)
        source, target = to_rows(source_slots[chunk]), to_rows(target_slots[chunk])
        stored = scratch.take("stored", (len(cos[chunk]), *keys.shape[1:]), keys.dtype)
        rotated = apply_rope(read(keys, source, stored), cos[chunk].cpu(), sin[chunk].cpu()).to(pool_keys.device)
        if isinstance(target, slice):
            pool_keys[target] = rotated
        else:
            write(pool_keys, target, rotated)
        write(pool_values, target, read(values, source, stored).to(pool_values.device))


CHUNK_BYTES = 16 << 20
"""Bytes of a staging buffer: a copy of about 0.3 ms over PCIe 5, compared with which a launch is short."""

ALIGNED_TOKENS = 2
"""A chunk's slots begin at a multiple of 16 bytes; for others Triton compiles another kernel."""

NUM_BUFFERS = 2
"""One buffer is filled while the other one is copied."""


class CopyStream(Protocol):
    """Copies to a device concurrently with its work. Each numbered buffer is pinned host memory and device memory.

    Calls come in the order of a sequential program. An implementation keeps dependent operations in that order.
    """

    def wait(self, number: int) -> None:
        """Wait until the copy out of a buffer's pinned memory is done."""
        ...

    def copy(self, number: int, pinned: Tensor, near: Tensor) -> None:
        """Start to copy a buffer, after the work that reads its device memory."""
        ...

    def run_after_copy(self, number: int, work: Callable[[], object]) -> None:
        """Launch kernels that read a buffer's device memory, after the copy."""
        ...


class StagingBuffers:
    """Places keys and values from host memory on a device. Not thread-safe."""

    def __init__(
        self,
        device: torch.device,
        copy_stream: CopyStream | None = None,
        placer: Callable[[Inputs], object] = OP.run,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Allocate the buffers. `copy_stream` is a CUDA stream by default; `placer` places what is on the device."""
        self._chunk_bytes = chunk_bytes
        self._placer = placer
        self._pinned, self._near = (
            [torch.empty(chunk_bytes, dtype=torch.uint8, **where) for _ in range(NUM_BUFFERS)]
            for where in ({"pin_memory": device.type == "cuda"}, {"device": device})
        )
        self._copy_stream: CopyStream = CudaCopyStream(device) if copy_stream is None else copy_stream

    def place(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        source_slots: Tensor,
        cos: Tensor,
        sin: Tensor,
        pool_keys: Sequence[Tensor],
        pool_values: Sequence[Tensor],
        target_slots: Tensor,
    ) -> None:
        """Do the same as `place_layers`; keys, values and source_slots are in host memory, all else on the device."""
        most = self._count_tokens_per_chunk(keys)
        rows = torch.arange(min(most, len(source_slots)), device=target_slots.device)
        for count, first in enumerate(range(0, len(source_slots), most)):
            number, chunk = count % NUM_BUFFERS, slice(first, first + most)
            at = source_slots[chunk]
            shape = (2, len(keys), len(at), *keys[0].shape[1:])
            pinned, near = (_view_as(each[number], shape, keys[0].dtype) for each in (self._pinned, self._near))
            self._copy_stream.wait(number)
            _gather((*keys, *values), to_rows(at), pinned.flatten(0, 1))
            self._copy_stream.copy(number, pinned, near)
            inputs = {
                "keys": near[0].unbind(),
                "values": near[1].unbind(),
                "source_slots": rows[: len(at)],
                "cos": cos[chunk],
                "sin": sin[chunk],
                "pool_keys": pool_keys,
                "pool_values": pool_values,
                "target_slots": target_slots[chunk],
            }
            self._copy_stream.run_after_copy(number, partial(self._placer, inputs))

    def _count_tokens_per_chunk(self, keys: Sequence[Tensor]) -> int:
        token_bytes = 2 * sum(each[0].nbytes for each in keys)
        if token_bytes > self._chunk_bytes:
            raise ValueError(f"a token of {token_bytes} bytes does not fit a buffer of {self._chunk_bytes}")
        most = self._chunk_bytes // token_bytes
        return most - most % ALIGNED_TOKENS or most


class CudaCopyStream:
    """A CUDA stream for the copies."""

    def __init__(self, device: torch.device) -> None:
        """Start after the current stream's work, which may still read the memory of the buffers."""
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._copied = [_make_event() for _ in range(NUM_BUFFERS)]
        self._used = [_make_event() for _ in range(NUM_BUFFERS)]

    def wait(self, number: int) -> None:
        """Wait for the buffer's last copy; an event that was never recorded does not block."""
        self._copied[number].synchronize()

    def copy(self, number: int, pinned: Tensor, near: Tensor) -> None:
        self._stream.wait_event(self._used[number])
        with torch.cuda.stream(self._stream):
            near.copy_(pinned, non_blocking=True)
        self._copied[number].record(self._stream)

    def run_after_copy(self, number: int, work: Callable[[], object]) -> None:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._copied[number])
        work()
        self._used[number].record(current)


def _make_event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


_BUFFERS: WeakKeyDictionary[Scratch, StagingBuffers] = WeakKeyDictionary()


def get_staging_buffers(scratch: Scratch, device: torch.device) -> StagingBuffers:
    """Return the buffers of a caller's scratch memory, which is used for one device; allocated on first use."""
    if scratch not in _BUFFERS:
        _BUFFERS[scratch] = StagingBuffers(device)
    return _BUFFERS[scratch]


def _view_as(buffer: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return buffer[: torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)


def _gather(stored: Sequence[Tensor], at: Rows, out: Tensor) -> None:
    """Copy some rows of each tensor to `out`, [num_tensors, num_rows, num_kv_heads, head_dim]."""
    for source, target in zip(stored, out, strict=True):
        found = read(source, at, target)
        if found is not target:
            target.copy_(found)
