"""Whether memory stays flat: the process's, and the engine's objects."""

from __future__ import annotations

import gc
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from engine.request import RequestState
from engine.scheduler import ScheduledSequence
from engine.types import Output
from engine.worker import AsyncStream, Stream, Ticket

LEAST_SECONDS = 600.0
"""A shorter soak says nothing about the process's memory: it is still warming up."""

WARM_UP, BEFORE, AFTER = 0.2, 0.4, 0.8
"""Shares of the run: memory between the first two is compared with that behind the third."""

BOUND_BYTES, BOUND_SHARE = 24 << 20, 0.02
"""By which it may have grown, the larger of the two: allocators and Python's free lists go on filling for a while."""

OF_REQUESTS = (Stream, AsyncStream, Ticket, Output, RequestState, ScheduledSequence)
"""What the engine makes for a request; when all requests are over, there is none."""


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def growth(samples: Sequence[tuple[float, int]]) -> tuple[int, int] | None:
    """Bytes before and after, as medians, from (seconds since the start, bytes); None of a run too short to tell."""
    seconds = samples[-1][0] if samples else 0.0
    if seconds < LEAST_SECONDS:
        return None
    before = [size for at, size in samples if WARM_UP * seconds <= at < BEFORE * seconds]
    after = [size for at, size in samples if at >= AFTER * seconds]
    return int(statistics.median(before)), int(statistics.median(after))


def bound(before: int) -> int:
    """How many bytes it may have grown by."""
    return max(BOUND_BYTES, int(BOUND_SHARE * before))


def of_requests() -> Counter[str]:
    """Objects of requests that are alive, by type."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in OF_REQUESTS)
