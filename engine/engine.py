"""The engine as its callers see it: requests from any thread or event loop, run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_cache import PoolStats
from engine.precision import Precision
from engine.prefix_tier import TierStats
from engine.reuse.idle_runner import IdleStats
from engine.reuse.span_entry import SpanStats
from engine.scheduler import SchedulerStats
from engine.speculation.step_times import StepTimes
from engine.types import GenerationRequest, GenerationResult, Proposer, SourceUsage
from engine.worker import AsyncStream, Stream, Worker


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of an engine at one moment: `scheduler` counts requests, `kv` pages and cached tokens.

    `num_passes` counts forward passes since the start. `by_source` counts the draft tokens of finished requests by
    their source. `spans` counts what is stored of earlier prompts for reuse; None if nothing is stored. `idle` counts
    idle work. `tier` counts the chunks of shared prefixes; None without a shared tier. `step_times` are the seconds of
    a pass by its rows, as drafts are chosen by them, `draft_times` those of the draft model, if there is one.
    """

    precision: Precision
    scheduler: SchedulerStats
    kv: PoolStats
    num_passes: int
    by_source: Mapping[str, SourceUsage]
    idle: IdleStats
    spans: SpanStats | None
    tier: TierStats | None = None
    step_times: StepTimes = field(default_factory=StepTimes)
    draft_times: StepTimes | None = None


class Engine:
    """Continues the requests of many callers together on one KV pool; requests share the KV of equal prefixes.

    `token_bytes[i]` are the bytes of token i, needed for stop strings and the output's bytes. A thread of its own runs
    the model. It stops with `close`, at the end of a `with`, or when neither the engine nor a stream of it is
    referenced.
    """

    def __init__(
        self,
        model: Decoder,
        token_bytes: Sequence[bytes],
        config: EngineConfig | int,
        draft_model: Decoder | None = None,
    ) -> None:
        """An integer `config` stands for `EngineConfig(max_seq_len=config)`. draft_model: a smaller model with the same
        tokenizer, on the same device, which drafts where there is nothing to copy.

        Raises EngineError if there is no memory for the pool, ValueError if it would hold no page.
        """
        config = EngineConfig(config) if isinstance(config, int) else config
        core = EngineCore(model, token_bytes, config, draft_model=draft_model)
        self.model = model
        self.config = core.config
        self.max_seq_len = core.max_seq_len
        self._worker = Worker(core)

    def generate(self, request: GenerationRequest, proposer: Proposer | None = None) -> Stream:
        """Submit a request, which runs from now on. The stream yields what each pass adds and returns the result.

        Raises RequestError, DoesNotFit, QueueFull or EngineClosed at once. The stream raises a GenerationFailed;
        closing or dropping it cancels the request.
        """
        return Stream(self._worker, request, proposer)

    def run(self, request: GenerationRequest, proposer: Proposer | None = None) -> GenerationResult:
        """Run a request to its end and return the result."""
        steps = self.generate(request, proposer)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: GenerationResult = end.value
                return result

    async def agenerate(self, request: GenerationRequest, proposer: Proposer | None = None) -> AsyncStream:
        """Submit a request from an event loop; the stream is an asynchronous iterator, and has `result` at its end."""
        return await AsyncStream.open(self._worker, request, proposer)

    async def arun(self, request: GenerationRequest, proposer: Proposer | None = None) -> GenerationResult:
        """Run a request to its end in an event loop and return the result."""
        async with await self.agenerate(request, proposer) as steps:
            async for _ in steps:
                pass
            assert steps.result is not None
            return steps.result

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter, a PEFT folder, under a name that requests may use; raises WeightsError."""
        self._worker.call(lambda core: core.load_adapter(name, folder)).result()

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter, and free it once no request runs with it; raises RequestError."""
        self._worker.call(lambda core: core.unload_adapter(name)).result()

    def stats(self) -> EngineStats:
        """Return counts of requests and memory between two steps, after all earlier cancellations; raises
        EngineClosed.
        """
        return self._worker.call(_stats).result()

    @property
    def fault(self) -> Exception | None:
        """What broke the engine for good, such as DeviceLost; None while it runs and after `close`."""
        return self._worker.fault or self.model.fault

    def forget_cached(self) -> None:
        """Drop all KV that is only kept for later requests; raises EngineClosed."""
        self._worker.call(lambda core: core.forget_cached()).result()

    def check_integrity(self) -> None:
        """Assert that the engine's books add up, between two steps."""
        self._worker.call(EngineCore.check_integrity).result()

    def close(self) -> None:
        """Stop after the step that is running; pending requests fail with EngineClosed. A second call does nothing."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _stats(core: EngineCore) -> EngineStats:
    by_source = {source: replace(usage) for source, usage in core.drafted.items()}
    spans = None if core.reuse is None else core.reuse.store.stats()
    return EngineStats(
        precision=core.model.precision,
        scheduler=core.scheduler.stats(),
        kv=core.pages.stats(),
        num_passes=core.num_passes,
        by_source=by_source,
        idle=core.idle_stats(),
        spans=spans,
        tier=None if core.shared is None else core.shared.stats(),
        step_times=core.times,
        draft_times=core.draft_times,
    )
