"""Runs requests on the engine, and translates the engine's errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from agent_runtime.errors import (
    BadRequest,
    Busy,
    Cancelled,
    DeadlinePassed,
    HunkError,
    ModelFailed,
    ModelUnavailable,
    TooLarge,
)
from agent_runtime.llm.answer_text import AnswerText
from agent_runtime.progress import ProgressListener
from agent_runtime.request_context import RequestContext
from agent_runtime.types import SourceUsage, Usage
from engine import errors as engine_errors
from engine.engine import Engine
from engine.types import GenerationRequest, GenerationResult, GenerationUsage, Proposer
from engine.worker import Stream

FAULTS: dict[type[engine_errors.EngineError], tuple[type[HunkError], str]] = {
    engine_errors.DoesNotFit: (TooLarge, "start with a larger --kv-gib, or send less"),
    engine_errors.RequestError: (BadRequest, "change the request"),
    engine_errors.QueueFull: (Busy, "try again in a moment"),
    engine_errors.DeadlineExceeded: (DeadlinePassed, "send less, or start with a larger --deadline"),
    engine_errors.Cancelled: (Cancelled, "send it again if it is still wanted"),
    engine_errors.EngineClosed: (ModelUnavailable, "the service is ending, or has to be started anew"),
    engine_errors.EngineError: (ModelFailed, "try again; if it fails again, report it"),
}
"""Errors of the service for errors of the engine, with advice; the first class that fits counts."""


def fault_of(error: engine_errors.EngineError, model: str) -> HunkError:
    """An error of the engine as one of ours, with what to do about it."""
    fault, advice = next(what for kind, what in FAULTS.items() if isinstance(error, kind))
    return fault(f"model {model}: {error}; {advice}")


@dataclass(slots=True)
class Run:
    """The engine's results for some requests.

    `first_step` is when the first tokens of any were confirmed; then begins `phase_behind`, if it has a name.
    """

    results: list[GenerationResult] = field(default_factory=list)
    first_step: float = 0.0
    phase_behind: str = ""
    num_written: int = 0


def run_together(
    engine: Engine,
    requests: Sequence[tuple[GenerationRequest, Proposer | None]],
    context: RequestContext,
    progress: ProgressListener,
    run: Run,
    texts: Sequence[AnswerText] = (),
) -> None:
    """Run all to their ends and add them to `run`; if one fails or is taken back, so are all.

    Releases the request's CPU slot first: a request that waits for the model must not hold one. `texts` follow the
    answers, if the listener wants their text. Raises what the engine raises.
    """
    context.release_slot()
    with ExitStack() as taken_back:
        streams: list[Stream] = []
        for request, proposer in requests:
            streams.append(engine.generate(replace(request, priority=context.priority), proposer))
            taken_back.callback(streams[-1].close)

        def stop() -> None:
            for stream in streams:
                stream.cancel()

        progress.on_start()
        context.cancel.add_callback(stop)
        followers: Sequence[AnswerText | None] = texts or [None] * len(streams)
        run.results += [_drain(*each, progress, run) for each in zip(streams, followers, strict=True)]


def _drain(stream: Stream, text: AnswerText | None, progress: ProgressListener, run: Run) -> GenerationResult:
    while True:
        try:
            step = next(stream)
        except StopIteration as end:
            result: GenerationResult = end.value
            if text is not None:
                text.end(result)
            return result
        run.num_written += len(step.token_ids)
        if step.token_ids and not run.first_step:
            run.first_step = time.perf_counter()
            if run.phase_behind:
                progress.on_phase(run.phase_behind)
        progress.on_tokens(run.num_written)
        if text is not None:
            text.take(step)


def usage_of(counted: GenerationUsage) -> Usage:
    """The engine's counts in the shape of the answer."""
    return Usage(
        prompt=counted.prompt,
        cached=counted.cached,
        reused_approximate=counted.reused_approximate,
        recomputed=counted.prompt - counted.cached - counted.reused_approximate,
        recomputed_by=dict(counted.recomputed_by.items()),
        completion=counted.completion,
        drafted=counted.drafted,
        accepted=counted.accepted,
        rejected=counted.drafted - counted.accepted,
        forwards=counted.forwards,
        prefill_forwards=counted.prefill_forwards,
        near_ties=counted.near_ties,
        by_source={
            source: SourceUsage(each.drafted, each.accepted, each.num_rejected)
            for source, each in counted.by_source.items()
        },
        prefix_hit_rate=counted.cached / counted.prompt,
    )
