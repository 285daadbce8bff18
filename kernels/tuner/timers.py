"""Times variants on a CUDA device, by events around replays of a captured graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from kernels.op import Inputs, Shape, Variant
from kernels.tuning.space import Target
from kernels.tuning.timer import CardFailed, DoesNotLaunch

FEWEST_SETS, MOST_SETS = 2, 32
CACHES = 3
"""The input sets are together this many times the L2 cache, so that none is still in it when its turn comes."""


class CudaTimer:
    """Runs one target's op over rotating sets of random inputs.

    All sets' runs are captured in one graph for each variant and shape: what Python and the driver take for a launch is
    the same for all variants, and longer than the smaller kernels. An op that cannot be captured (it waits for the
    device) is run by Python instead.
    """

    def __init__(self, target: Target, device: torch.device, l2_bytes: int, seed: int) -> None:
        self._op = target.op
        self._sets = [_input_sets(target, shape, device, l2_bytes, seed) for shape in target.shapes]
        self._memory = torch.cuda.graph_pool_handle()
        self._replays: dict[frozenset[tuple[str, int]], list[Callable[[], object]]] = {}
        self._captures = True

    def prepare(self, variant: Variant) -> None:
        with launching():
            for sets in self._sets:
                for inputs in sets:  # what an op copies to the device for inputs that it sees first cannot be captured
                    self._op.run(inputs, variant)
            torch.cuda.synchronize()
        self._replays[frozenset(variant.items())] = [self._replay(sets, variant) for sets in self._sets]

    def seconds(self, variant: Variant) -> tuple[float, ...]:
        replays = self._replays[frozenset(variant.items())]
        return tuple(_timed(replay) / len(sets) for replay, sets in zip(replays, self._sets, strict=True))

    def release(self, variant: Variant) -> None:
        del self._replays[frozenset(variant.items())]

    def _replay(self, sets: Sequence[Inputs], variant: Variant) -> Callable[[], object]:
        def run() -> None:
            for inputs in sets:
                self._op.run(inputs, variant)

        if self._captures:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self._memory):
                    run()
            except RuntimeError:
                torch.cuda.synchronize()
                self._captures = False
            else:
                return graph.replay
        return run


@contextmanager
def launching() -> Iterator[None]:
    """Says of a variant that failed whether it is the variant's fault or the card is lost to this process."""
    from triton.errors import TritonError

    try:
        yield
    except (TritonError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise MemoryError(str(error)) from error
        try:
            torch.cuda.synchronize()
        except RuntimeError as fault:
            raise CardFailed(str(error).splitlines()[0]) from fault
        raise DoesNotLaunch(str(error)) from error


def _timed(replay: Callable[[], object]) -> float:
    start, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
    start.record()
    replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _input_sets(target: Target, shape: Shape, device: torch.device, l2_bytes: int, seed: int) -> list[Inputs]:
    """Enough sets to leave the cache behind, as far as a half of the free memory holds them."""
    gc.collect()
    torch.cuda.empty_cache()  # what an earlier target held
    generator = torch.Generator(device).manual_seed(seed)
    sets = [target.op.inputs(shape, target.dtype, device, generator)]
    set_bytes = max(1, _num_bytes(sets[0]))
    free_bytes, _ = torch.cuda.mem_get_info(device)
    fitting = free_bytes // (2 * len(target.shapes) * set_bytes)
    wanted = min(ceil(CACHES * l2_bytes / set_bytes), fitting, MOST_SETS)
    while len(sets) < max(FEWEST_SETS, wanted):
        sets.append(target.op.inputs(shape, target.dtype, device, generator))
    return sets


def _num_bytes(value: Any) -> int:
    """Of all tensors among an op's inputs."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(map(_num_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_num_bytes, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_num_bytes(getattr(value, field.name)) for field in fields(value))
    return 0
