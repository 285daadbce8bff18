"""What a module leaves behind in memory, for tests that nothing is kept."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from types import ModuleType


def bytes_kept(module: ModuleType, work: Callable[[], object], times: int) -> int:
    """Return how many bytes of those that a module's own lines took are still held after some rounds of work."""
    work()  # what is made once is no leak
    tracemalloc.start()
    try:
        for _ in range(times):
            work()
        gc.collect()
        held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, str(module.__file__))])
    finally:
        tracemalloc.stop()
    return sum(trace.size for trace in held.traces)
