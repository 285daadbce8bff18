"""Times work on a card: CUDA events around replays of a graph, so that neither launches nor the host are counted."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Call = Callable[[], object]

SECONDS = 0.3
"""How long one thing is measured."""

LEAST_RUNS = 20


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds of one call, once for each run. graphed: replayed from a graph; else launches are counted, too."""

    seconds: tuple[float, ...]
    graphed: bool = True

    @property
    def median_s(self) -> float:
        """Half of the runs were quicker."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The middle four fifths of the runs, as a share of the median: smaller differences are noise."""
        if len(self.seconds) < 2:
            return 0.0
        tenths = statistics.quantiles(self.seconds, n=10, method="inclusive")
        return (tenths[-1] - tenths[0]) / self.median_s


class Timer(Protocol):
    """Tells how long a call takes."""

    def time(self, calls: Sequence[Call]) -> Timing:
        """Run calls that do the same to different inputs, in turns; the seconds are those of one call."""
        ...


class CudaTimer:
    """The timer of a card."""

    def time(self, calls: Sequence[Call]) -> Timing:
        """As in `Timer`. What cannot be captured in a graph (it waits for the host) is run as it is."""
        for call in calls:  # compiles kernels, makes handles, touches memory
            call()
        torch.cuda.synchronize()
        graph = _captured(calls)
        run = graph.replay if graph is not None else lambda: [call() for call in calls]
        run()
        num_runs = max(LEAST_RUNS, min(1000, int(SECONDS / max(_seconds(run, 3), 1e-6))))
        seconds = [_seconds(run, 1) / len(calls) for _ in range(num_runs)]
        return Timing(tuple(seconds), graph is not None)


def _seconds(run: Callable[[], object], repeats: int) -> float:
    """Of one run, by events of the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def _captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph | None:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph
