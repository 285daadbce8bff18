"""The engine as its callers see it: requests from any thread or event loop, run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_cache import PoolStats
from engine.reuse.idle_runner import IdleStats
from engine.reuse.span_entry import SpanStats
from engine.scheduler import SchedulerStats
from engine.types import GenerationRequest, GenerationResult, Proposer, SourceUsage
from engine.worker import AsyncStream, Stream, Worker


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One look at an engine: `scheduler` counts requests, `kv` pages and cached tokens.

    `num_passes` are those since the start, whoever took part. `by_source` counts the draft tokens of requests that are
    over, by where they were copied from. `spans` counts what is stored of earlier prompts for those that may take it
    over, None where nothing is. `idle` is what is done while nobody waits.
    """

    scheduler: SchedulerStats
    kv: PoolStats
    num_passes: int
    by_source: Mapping[str, SourceUsage]
    idle: IdleStats
    spans: SpanStats | None


class Engine:
    """Continues the requests of any number of callers together, on one KV pool whose exact prefixes they share.

    `token_bytes[i]` is what token i stands for; it is needed for stop strings and output bytes. A thread of its own
    runs the model; it stops with `close`, at the end of a `with`, or when nobody refers to the engine or to a stream of
    it any more.
    """

    def __init__(self, model: Decoder, token_bytes: Sequence[bytes], config: EngineConfig | int) -> None:
        """A number stands for `EngineConfig(max_seq_len=number)`.

        Raises EngineError where there is no memory for the pool, ValueError where it would hold nothing.
        """
        core = EngineCore(model, token_bytes, EngineConfig(config) if isinstance(config, int) else config)
        self.model = model
        self.config = core.config
        self.max_seq_len = core.max_seq_len
        self._worker = Worker(core)

    def generate(self, request: GenerationRequest, proposer: Proposer | None = None) -> Stream:
        """Submit a request; it runs from now on. The stream gives what each pass adds, and then the result.

        Raises RequestError, DoesNotFit, QueueFull or EngineClosed at once. The stream raises a GenerationFailed;
        closing or dropping it takes the request back.
        """
        return Stream(self._worker, request, proposer)

    def run(self, request: GenerationRequest, proposer: Proposer | None = None) -> GenerationResult:
        """`generate` to its end."""
        steps = self.generate(request, proposer)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: GenerationResult = end.value
                return result

    async def agenerate(self, request: GenerationRequest, proposer: Proposer | None = None) -> AsyncStream:
        """`generate` for an event loop: awaiting it submits, iterating gives the steps, `result` stands behind them."""
        return await AsyncStream.open(self._worker, request, proposer)

    async def arun(self, request: GenerationRequest, proposer: Proposer | None = None) -> GenerationResult:
        """`agenerate` to its end."""
        async with await self.agenerate(request, proposer) as steps:
            async for _ in steps:
                pass
            assert steps.result is not None
            return steps.result

    def load_adapter(self, name: str, folder: Path) -> None:
        """Let requests name a LoRA adapter, a PEFT folder, that stays beside the model; raises WeightsError."""
        self._worker.call(lambda core: core.load_adapter(name, folder)).result()

    def unload_adapter(self, name: str) -> None:
        """Let no request name an adapter any more, and free it once those that do are over; raises RequestError."""
        self._worker.call(lambda core: core.unload_adapter(name)).result()

    def stats(self) -> EngineStats:
        """Requests and memory between two steps, every cancellation before this included; raises EngineClosed."""
        return self._worker.call(_stats).result()

    def forget_cached(self) -> None:
        """Drop all KV that is only kept for later requests; raises EngineClosed."""
        self._worker.call(lambda core: core.forget_cached()).result()

    def check_integrity(self) -> None:
        """The books of the engine add up, between two steps."""
        self._worker.call(EngineCore.check_integrity).result()

    def close(self) -> None:
        """End behind the step that runs; requests that are left fail with EngineClosed. Again does nothing."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _stats(core: EngineCore) -> EngineStats:
    by_source = {source: replace(usage) for source, usage in core.drafted.items()}
    spans = None if core.reuse is None else core.reuse.store.stats()
    return EngineStats(core.scheduler.stats(), core.pages.stats(), core.num_passes, by_source, core.idle_stats(), spans)
