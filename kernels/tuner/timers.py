"""Times variants on a CUDA device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels import parity
from kernels.op import Inputs, Shape, Variant
from kernels.tuner.search import (
    Budget,
    CardFailed,
    Check,
    LaunchFailed,
    Search,
    Target,
    list_valid_variants,
)
from kernels.tuner.store import Store, Versions, compute_source_hash, describe_card

MIN_SETS, MAX_SETS = 2, 32
CACHES = 3
"""The input sets together are this many times the L2 cache, so no set is still in it when it is used again."""


class CudaTimer:
    """Runs one target's op over rotating sets of random inputs.

    The runs over all sets are captured in one graph for each variant and shape, because Python and the driver take
    longer for a launch than the smaller kernels run. An op that cannot be captured (it waits for the device) is run by
    Python instead.
    """

    def __init__(self, target: Target, device: torch.device, l2_bytes: int, seed: int) -> None:
        self._op = target.op
        self._sets = [_make_input_sets(target, shape, device, l2_bytes, seed) for shape in target.shapes]
        self._memory = torch.cuda.graph_pool_handle()
        self._replays: dict[frozenset[tuple[str, int]], list[Callable[[], object]]] = {}
        self._captures = True

    def prepare(self, variant: Variant) -> None:
        with classify_faults():
            for sets in self._sets:
                for inputs in sets:  # copies for inputs that are new to an op cannot be captured
                    self._op.run(inputs, variant)
            torch.cuda.synchronize()
        self._replays[frozenset(variant.items())] = [self._make_replay(sets, variant) for sets in self._sets]

    def sample(self, variant: Variant) -> tuple[float, ...]:
        replays = self._replays[frozenset(variant.items())]
        return tuple(_time_replay(replay) / len(sets) for replay, sets in zip(replays, self._sets, strict=True))

    def release(self, variant: Variant) -> None:
        del self._replays[frozenset(variant.items())]

    def _make_replay(self, sets: Sequence[Inputs], variant: Variant) -> Callable[[], object]:
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
def classify_faults() -> Iterator[None]:
    """Translate faults of a variant: LaunchFailed if the card still works, otherwise CardFailed."""
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
        raise LaunchFailed(str(error)) from error


def _time_replay(replay: Callable[[], object]) -> float:
    start, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
    start.record()
    replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _make_input_sets(target: Target, shape: Shape, device: torch.device, l2_bytes: int, seed: int) -> list[Inputs]:
    """Make enough input sets to exceed the cache, within half of the free memory."""
    gc.collect()
    torch.cuda.empty_cache()  # memory of an earlier target
    generator = torch.Generator(device).manual_seed(seed)
    sets = [target.op.inputs(shape, target.dtype, device, generator)]
    set_bytes = max(1, _count_bytes(sets[0]))
    free_bytes, _ = torch.cuda.mem_get_info(device)
    fitting = free_bytes // (2 * len(target.shapes) * set_bytes)
    wanted = min(ceil(CACHES * l2_bytes / set_bytes), fitting, MAX_SETS)
    while len(sets) < max(MIN_SETS, wanted):
        sets.append(target.op.inputs(shape, target.dtype, device, generator))
    return sets


def _count_bytes(value: Any) -> int:
    """Count the bytes of all tensors within an op's inputs."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_count_bytes, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_count_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


def make_search(
    device: torch.device, target: Target, folder: Path, budget: Budget, say: Callable[[str], None]
) -> Search:
    """Make the search of a target's winner on this device, with its store in this folder."""
    card, seed = describe_card(device), parity.get_run_seed()
    return Search(
        target=target,
        variants=list_valid_variants(target, card.shared_bytes),
        check=make_check(device, target, seed),
        bound=parity.BOUNDS[target.dtype],
        timer=CudaTimer(target, device, card.l2_bytes, seed),
        store=Store(folder, card.name),
        versions=Versions.from_card(card, compute_source_hash(target.op.name)),
        budget=budget,
        seed=seed,
        say=say,
    )


def make_check(device: torch.device, target: Target, seed: int) -> Check:
    """Return `kernels.parity.measure_error` with a card's faults translated."""

    def check(variant: Variant, shape: Shape) -> float:
        with classify_faults():
            return parity.measure_error(target.op, shape, target.dtype, device, variant, seed)

    return check
