"""Times variants on a CUDA device, or with planted times."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels import parity
from kernels.op import Inputs, Shape, Variant
from kernels.tuner.search import Budget, Check, Search, variant_key
from kernels.tuner.space import CardFailed, DoesNotLaunch, Target, valid
from kernels.tuner.store import Store, Versions, card_of, source_hash

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


class PlantedTimer:
    """Draws samples around `cost(variant)`, the seconds of each shape, as a card would measure them.

    A sample is longer by up to `noise` of itself, now and then by ten times that; all of them drift by `drift` of
    themselves with every sample taken.
    """

    def __init__(
        self,
        cost: Callable[[Variant], tuple[float, ...]],
        *,
        noise: float = 0.0,
        drift: float = 0.0,
        launches: Callable[[Variant], bool] = lambda variant: True,
        seed: int = 0,
    ) -> None:
        self._cost, self._noise, self._drift, self._launches = cost, noise, drift, launches
        self._random = Random(seed)
        self.prepared: set[str] = set()
        self.num_samples: Counter[str] = Counter()

    def prepare(self, variant: Variant) -> None:
        if not self._launches(variant):
            raise DoesNotLaunch("planted")
        self.prepared.add(variant_key(variant))

    def seconds(self, variant: Variant) -> tuple[float, ...]:
        key = variant_key(variant)
        if key not in self.prepared:
            raise AssertionError(f"{key} is timed, and was not prepared")
        drifted = 1 + self._drift * self.num_samples.total()
        self.num_samples[key] += 1
        return tuple(each * drifted * (1 + self._noise * self._outlier()) for each in self._cost(variant))

    def release(self, variant: Variant) -> None:
        self.prepared.remove(variant_key(variant))

    def _outlier(self) -> float:
        return self._random.random() * (10 if self._random.random() < 0.05 else 1)


def search_on(device: torch.device, target: Target, folder: Path, budget: Budget, say: Callable[[str], None]) -> Search:
    """The search for a target's winner on this device, kept in this folder."""
    card, seed = card_of(device), parity.run_seed()
    return Search(
        target=target,
        variants=valid(target, card.shared_bytes),
        check=check_on(device, target, seed),
        bound=parity.BOUNDS[target.dtype],
        timer=CudaTimer(target, device, card.l2_bytes, seed),
        store=Store(folder, card.name),
        versions=Versions.of(card, source_hash(target.op.name)),
        budget=budget,
        seed=seed,
        say=say,
    )


def check_on(device: torch.device, target: Target, seed: int) -> Check:
    """`kernels.parity.check`, with a card's faults told apart."""

    def check(variant: Variant, shape: Shape) -> float:
        with launching():
            return parity.check(target.op, shape, target.dtype, device, variant, seed)

    return check
