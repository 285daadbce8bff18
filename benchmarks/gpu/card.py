"""A CUDA card: timing of work on it, its copy rate and its GEMM rate."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from kernels.op import Cost, waits_for_card

Call = Callable[[], object]

SECONDS = 0.3
"""The time for one measurement."""

LEAST_RUNS = 20


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call in each run. graphed: replayed from a graph; otherwise launches are included."""

    seconds: tuple[float, ...]
    graphed: bool = True

    @property
    def median_s(self) -> float:
        """The median of the runs."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The width of the middle 80 % of the runs, as a share of the median."""
        if len(self.seconds) < 2:
            return 0.0
        tenths = statistics.quantiles(self.seconds, n=10, method="inclusive")
        return (tenths[-1] - tenths[0]) / self.median_s


class Timer(Protocol):
    """Measures the time of a call."""

    def time(self, calls: Sequence[Call]) -> Timing:
        """Time calls that do the same on different inputs, in turns; the seconds are those of one call."""
        ...


class CudaTimer:
    """The timer of a card."""

    def time(self, calls: Sequence[Call]) -> Timing:
        """As in `Timer`. Calls that cannot be captured in a graph, since they wait for the host, run without one."""
        for call in calls:  # compiles kernels, makes handles, touches memory
            call()
        torch.cuda.synchronize()
        graph = _capture(calls)
        run = graph.replay if graph is not None else lambda: [call() for call in calls]
        run()
        num_runs = max(LEAST_RUNS, min(1000, int(SECONDS / max(_time_runs(run, 3), 1e-6))))
        seconds = [_time_runs(run, 1) / len(calls) for _ in range(num_runs)]
        return Timing(tuple(seconds), graph is not None)


def _time_runs(run: Callable[[], object], repeats: int) -> float:
    """Return the seconds of one run, by events of the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def _capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph | None:
    def run() -> None:
        for call in calls:
            call()

    if waits_for_card(run):
        torch.cuda.synchronize()
        return None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


COPY_BYTES = 1 << 32
"""Far beyond any cache."""

GEMM_SIZE = 8192
GEMM_PAIRS = 3
"""Pairs of random matrices that are multiplied in turns."""


class NoCard(Exception):
    """There is no CUDA device; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """copy_bytes_s: bytes read plus bytes written a second, by a large copy. flops_s: of a large bfloat16 product."""

    name: str
    copy_bytes_s: float
    flops_s: float

    def floor_s(self, cost: Cost) -> float:
        """Return the least time for this work."""
        return cost.floor_s(self.copy_bytes_s, self.flops_s)

    def __str__(self) -> str:
        return f"{self.name}: copies {self.copy_bytes_s / 1e12:.2f} TB/s, multiplies {self.flops_s / 1e12:.0f} TFLOP/s"


STATED = Ceilings("one H200, leads and not measured here", 4.3e12, 788e12)
"""The rates behind the floors of docs/kernels.md."""


def cuda_device() -> torch.device:
    """Return the card to measure on; raises NoCard."""
    if not torch.cuda.is_available():
        raise NoCard(
            "there is no CUDA device, so nothing can be measured here; --count-only prints what is counted without one"
        )
    return torch.device("cuda", torch.cuda.current_device())


def measure_card(device: torch.device, timer: Timer) -> Ceilings:
    """Measure a card's copy rate and its GEMM rate, with random numbers, since zeros run faster."""
    return Ceilings(torch.cuda.get_device_name(device), _copy_bytes_s(device, timer), _flops_s(device, timer))


def _copy_bytes_s(device: torch.device, timer: Timer) -> float:
    source = torch.empty(COPY_BYTES // 2, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return COPY_BYTES / timer.time([partial(target.copy_, source)]).median_s


def _flops_s(device: torch.device, timer: Timer) -> float:
    pairs = [torch.randn(2, GEMM_SIZE, GEMM_SIZE, device=device).bfloat16() for _ in range(GEMM_PAIRS)]
    out = torch.empty(GEMM_SIZE, GEMM_SIZE, dtype=torch.bfloat16, device=device)
    return 2 * GEMM_SIZE**3 / timer.time([partial(torch.mm, *pair, out=out) for pair in pairs]).median_s
