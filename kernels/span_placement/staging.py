"""What is stored in host memory, on its way to a card: gathered, copied and placed in chunks, each beside the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kernels.attention import Scratch
from kernels.op import Inputs
from kernels.span_placement.cpu import Rows, read, rows_at
from kernels.span_placement.op import OP

CHUNK_BYTES = 16 << 20
"""Of a buffer: a copy of some 0.3 ms over PCIe 5, beside which a launch is short."""

ALIGNED_TOKENS = 2
"""A chunk's slots begin at a multiple of 16 bytes: Triton compiles a kernel anew for others."""

NUM_BUFFERS = 2
"""One is filled while the other is copied."""


class Lane(Protocol):
    """Copies to a device beside its work; each numbered buffer is pinned memory of the host and memory of the device.

    The order of calls is that in which a plain program would do it all; an implementation keeps what depends on another
    in that order.
    """

    def wait(self, number: int) -> None:
        """Return when what was copied out of a buffer's pinned memory has left it."""
        ...

    def copy(self, number: int, pinned: Tensor, near: Tensor) -> None:
        """Begin to copy a buffer, behind the work that its device memory was read by."""
        ...

    def behind(self, number: int, work: Callable[[], object]) -> None:
        """Do what launches kernels that read a buffer's device memory, once the copy is done."""
        ...


class Staging:
    """Places stored keys and values of a host on a device. For one thread at a time."""

    def __init__(
        self,
        device: torch.device,
        lane: Lane | None = None,
        placer: Callable[[Inputs], object] = OP.run,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Takes the buffers. `lane`: CUDA's own unless another is given; `placer`: places what is on the device."""
        self._chunk_bytes = chunk_bytes
        self._placer = placer
        self._pinned, self._near = (
            [torch.empty(chunk_bytes, dtype=torch.uint8, **where) for _ in range(NUM_BUFFERS)]
            for where in ({"pin_memory": device.type == "cuda"}, {"device": device})
        )
        self._lane: Lane = CudaLane(device) if lane is None else lane

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
        """As `kernels.span_placement.place_layers`; stored and source_slots are in host memory, all else is not."""
        most = self._most_tokens(keys)
        rows = torch.arange(min(most, len(source_slots)), device=target_slots.device)
        for count, first in enumerate(range(0, len(source_slots), most)):
            number, chunk = count % NUM_BUFFERS, slice(first, first + most)
            at = source_slots[chunk]
            shape = (2, len(keys), len(at), *keys[0].shape[1:])
            pinned, near = (_shaped(each[number], shape, keys[0].dtype) for each in (self._pinned, self._near))
            self._lane.wait(number)
            _gather((*keys, *values), rows_at(at), pinned.flatten(0, 1))
            self._lane.copy(number, pinned, near)
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
            self._lane.behind(number, partial(self._placer, inputs))

    def _most_tokens(self, keys: Sequence[Tensor]) -> int:
        token_bytes = 2 * sum(each[0].nbytes for each in keys)
        if token_bytes > self._chunk_bytes:
            raise ValueError(f"a token of {token_bytes} bytes does not fit a buffer of {self._chunk_bytes}")
        most = self._chunk_bytes // token_bytes
        return most - most % ALIGNED_TOKENS or most


class CudaLane:
    """A stream of its own for the copies."""

    def __init__(self, device: torch.device) -> None:
        """Behind what the current stream does by now: the buffers' memory may still be read by others' kernels."""
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._copied = [_event() for _ in range(NUM_BUFFERS)]
        self._used = [_event() for _ in range(NUM_BUFFERS)]

    def wait(self, number: int) -> None:
        """As `Lane.wait`; an event that was never recorded is waited for by nobody."""
        self._copied[number].synchronize()

    def copy(self, number: int, pinned: Tensor, near: Tensor) -> None:
        """As `Lane.copy`."""
        self._stream.wait_event(self._used[number])
        with torch.cuda.stream(self._stream):
            near.copy_(pinned, non_blocking=True)
        self._copied[number].record(self._stream)

    def behind(self, number: int, work: Callable[[], object]) -> None:
        """As `Lane.behind`."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._copied[number])
        work()
        self._used[number].record(current)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


_STAGINGS: WeakKeyDictionary[Scratch, Staging] = WeakKeyDictionary()


def staging_for(scratch: Scratch, device: torch.device) -> Staging:
    """The buffers that go with a caller's scratch memory, which is one device's; taken at the first use."""
    if scratch not in _STAGINGS:
        _STAGINGS[scratch] = Staging(device)
    return _STAGINGS[scratch]


def _shaped(buffer: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return buffer[: torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)


def _gather(stored: Sequence[Tensor], at: Rows, out: Tensor) -> None:
    """Some rows of each tensor into `out`, [num_tensors, num_rows, num_kv_heads, head_dim]."""
    for source, target in zip(stored, out, strict=True):
        found = read(source, at, target)
        if found is not target:
            target.copy_(found)
