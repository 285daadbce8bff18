"""What ranks say to each other: sums of their results, and what the first rank has the others do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import RankLost
from engine.tensor_parallel.shared_sums import SharedSums, can_share

BUFFER = 4096
"""Numbers of the message that each pass begins with; what does not fit follows it."""

PATIENCE = timedelta(days=365)
"""How long a rank waits for the next pass of an idle service."""


def find_memory_folder() -> str | None:
    """Return the folder whose files are memory, where ranks are to meet; None if there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


class Command(IntEnum):
    """What the first rank has the others do."""

    SET_UP = 0
    RUN = 1
    FIND_LIKELIEST = 2
    COMPUTE_LOGITS = 3
    COPY = 4
    STOP = 5


class Work(Protocol):
    """A sum that is under way."""

    def wait(self) -> object:
        """Return when it is there."""
        ...


class RankGroup:
    """The ranks of one model. Every method is called by all ranks in the same order; it raises RankLost if one is gone.

    They meet by a file, and on a CPU talk through the loopback interface: nothing listens on the network. Sums go
    through memory that they share there, if it can be had.
    """

    def __init__(
        self, rank: int, size: int, meeting: Path, device: torch.device, *, shares_memory: bool = True
    ) -> None:
        """`meeting`: a file that does not exist yet, in a folder that is private to the user (`find_memory_folder`)."""
        self.rank, self.size, self.device = rank, size, device
        self.lost: str | None = None
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]
        with self._name_fault():
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        self._buffer = torch.zeros(BUFFER, dtype=torch.int64, device=device)
        shares_memory = shares_memory and backend == "gloo"
        self._shared = self._share_memory(meeting.with_name("sums")) if shares_memory else None

    def _share_memory(self, file: Path) -> SharedSums | None:
        """Return the memory for sums if all ranks have mapped it; then nobody else can. A rank that is killed leaves
        none of it behind.
        """
        shared: SharedSums | None = None
        with suppress(OSError):
            if self.rank == 0 and can_share():
                SharedSums.create(file, self.size)
        self.broadcast(self._buffer)  # the others look for the file when it is there
        with suppress(OSError):
            shared = SharedSums(file, self.rank, self.size, self._check) if can_share() else None
        have_it = torch.tensor(shared is not None).int()
        with self._name_fault():
            dist.all_reduce(have_it, dist.ReduceOp.MIN)
        if self.rank == 0:
            file.unlink(missing_ok=True)
        return shared if have_it else None

    def _check(self) -> None:
        if self.lost is not None:
            raise RankLost(self.lost)

    def send(self, command: Command, numbers: Sequence[int] = ()) -> None:
        """From the first rank: tell the others what to do. It is one broadcast if the numbers fit into the buffer."""
        message = torch.tensor([command, len(numbers), *numbers], dtype=torch.int64)
        self._buffer[: min(BUFFER, len(message))] = message[:BUFFER]
        self.broadcast(self._buffer)
        if len(message) > BUFFER:
            self.broadcast(message[BUFFER:].to(self.device))

    def receive(self) -> tuple[Command, list[int]]:
        """On the others: wait for what to do."""
        self.broadcast(self._buffer)
        command, count, *numbers = self._buffer.tolist()
        if count + 2 > BUFFER:
            rest = torch.empty(count + 2 - BUFFER, dtype=torch.int64, device=self.device)
            self.broadcast(rest)
            numbers += rest.tolist()
        return Command(command), numbers[:count]

    def broadcast(self, tensor: Tensor) -> None:
        """Give all ranks the first one's tensor."""
        with self._name_fault():
            dist.broadcast(tensor, 0)

    def start_sum(self, tensor: Tensor) -> Work:
        """Begin to replace a contiguous tensor by its sum over all ranks."""
        self._check()
        work = None if self._shared is None else self._shared.start(tensor)
        if work is not None:
            return work
        with self._name_fault():
            found: Work = dist.all_reduce(tensor, async_op=True)
        return found

    def finish(self, work: Work) -> None:
        """Wait for a sum."""
        with self._name_fault():
            work.wait()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have one shape, on the first rank; nothing on the others."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if self.rank == 0 else None
        with self._name_fault():
            dist.gather(tensor, parts, 0)
        return parts or []

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _name_fault(self) -> Iterator[None]:
        self._check()
        try:
            yield
        except RuntimeError as error:  # DistBackendError is one
            raise self.give_up("a rank of this model is gone; start the service anew") from error

    def give_up(self, why: str) -> RankLost:
        """Have every later call fail; return what it raises, which says why the first time."""
        self.lost = self.lost or why
        return RankLost(self.lost)
