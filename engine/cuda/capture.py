"""Work that is launched the same way again and again: a CUDA graph of it, or the work itself where there is no card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

WARM_UPS = 2
"""Runs before a capture: the first compiles kernels and takes memory, which a capture must not."""

Work = Callable[[], Tensor]
"""Reads memory that stays where it is, and what changes there from run to run; its launches do not depend on it."""


class Capture(Protocol):
    """Makes of some work what repeats it: whose result lies in the same memory each time, until the next one."""

    def __call__(self, work: Work) -> Work:
        """The work is run meanwhile, too."""
        ...


class CUDAGraphs:
    """Captures CUDA graphs, all of which take their passing memory from one pool: one of them runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None  # torch has no public name for its type

    def __call__(self, work: Work) -> Work:
        """As `Capture`; raises RuntimeError where memory is short."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            out = work()
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class Reruns:
    """What a graph does, done without one: the work anew, on what lies in its memory, into the first result's."""

    def __call__(self, work: Work) -> Work:
        """As `Capture`."""
        out = work()

        def rerun() -> Tensor:
            return out.copy_(work())

        return rerun
