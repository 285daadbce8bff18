"""Runs requests on the engine, follows the text of their answers, and translates the engine's errors."""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

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
from agent_runtime.request_context import Piece, ProgressListener, RequestContext
from agent_runtime.types import AnswerTrace, ForwardTrace, Origin, OutputRun, PromptKind, PromptRun, SourceUsage, Usage
from engine import errors as engine_errors
from engine.engine import Engine
from engine.types import GenerationRequest, GenerationResult, GenerationStep, GenerationUsage, Proposer
from engine.worker import Stream

_Decoder = getincrementaldecoder("utf-8")


@dataclass(slots=True)
class _TextRun:
    """Consecutive tokens that one pass confirmed. Their text is added when it is complete."""

    origin: Origin
    pass_number: int
    num_tokens: int = 0
    texts: list[str] = field(default_factory=list)


class AnswerText:
    """Decodes one answer step by step, and reports its text to a listener.

    The engine returns bytes only when no stop string can begin in them. A token's text is reported when all of its
    bytes were returned; the text of tokens that end the answer never is.
    """

    def __init__(
        self,
        progress: ProgressListener,
        token_bytes: Sequence[bytes],
        path: str,
        request: GenerationRequest,
        region: int,
    ) -> None:
        self._progress = progress
        self._token_bytes = token_bytes
        self._request = request
        self._path = path
        self._region = region
        self._decoder = _Decoder("replace")
        self._forwards: list[ForwardTrace] = []
        self._runs: list[_TextRun] = []
        self._waiting: deque[tuple[bytes, _TextRun]] = deque()
        self._num_bytes = 0
        """Number of bytes that the engine has returned of the waiting tokens."""

    def add_step(self, step: GenerationStep) -> None:
        """Add the next step of the answer, and report the text that it completes."""
        for place, token_id in enumerate(step.token_ids):
            run = self._find_run("copied" if place < step.num_accepted else "generated")
            run.num_tokens += 1
            self._waiting.append((self._token_bytes[token_id], run))
        self._forwards.append(ForwardTrace(len(step.token_ids), step.num_drafted, step.num_accepted))
        self._num_bytes += len(step.text)
        self._report(list(self._pop_certain()))

    def finish(self, result: GenerationResult) -> None:
        """Report the rest of the text, and then the trace of the answer."""
        if self._runs:
            rest, run = self._waiting[0] if self._waiting else (b"", self._runs[-1])
            text = self._decoder.decode(rest[: self._num_bytes], True)
            self._report([(text, run)] if text else [])
        self._progress.on_answer(
            AnswerTrace(
                path=self._path,
                region=self._region,
                purpose="score" if self._request.forced_ids else "write",
                prompt=split_prompt(self._request.prompt_ids, result.usage, self._token_bytes),
                output=tuple(
                    OutputRun("".join(run.texts), run.origin, run.pass_number, run.num_tokens) for run in self._runs
                ),
                forwards=tuple(self._forwards),
            )
        )

    def _find_run(self, origin: Origin) -> _TextRun:
        """Return the run of the next token, which may be a new one."""
        origin = "scored" if self._request.forced_ids else origin
        last = self._runs[-1] if self._runs else None
        if last is None or (last.origin, last.pass_number) != (origin, len(self._forwards)):
            self._runs.append(_TextRun(origin, len(self._forwards)))
        return self._runs[-1]

    def _pop_certain(self) -> Iterator[tuple[str, _TextRun]]:
        """Yield the text and the run of each token whose bytes are complete."""
        while self._waiting and len(self._waiting[0][0]) <= self._num_bytes:
            data, run = self._waiting.popleft()
            self._num_bytes -= len(data)
            if text := self._decoder.decode(data):
                yield text, run

    def _report(self, texts: list[tuple[str, _TextRun]]) -> None:
        for text, run in texts:
            run.texts.append(text)
        pieces = [Piece(text, run.origin) for text, run in texts if run.origin != "scored"]
        if pieces:
            self._progress.on_pieces(self._region, pieces)


Follow = Callable[[GenerationRequest, int], AnswerText]
"""Makes an `AnswerText` for a request about a region."""


def make_follower(progress: ProgressListener, token_bytes: Sequence[bytes], path: str) -> Follow | None:
    """Return a function that makes an `AnswerText` for each request; None if the listener does not want text."""
    return partial(AnswerText, progress, token_bytes, path) if progress.wants_text else None


def split_prompt(
    token_ids: Sequence[int], usage: GenerationUsage, token_bytes: Sequence[bytes]
) -> tuple[PromptRun, ...]:
    """Split a prompt into runs of tokens of the same kind, in order; they cover all of it."""
    decoder = _Decoder("replace")
    runs = []
    for first, end, kind in _list_ranges(len(token_ids), usage):
        data = b"".join(token_bytes[token_id] for token_id in token_ids[first:end])
        runs.append(PromptRun(decoder.decode(data, end == len(token_ids)), kind, end - first))
    return tuple(runs)


def _list_ranges(num_tokens: int, usage: GenerationUsage) -> Iterator[tuple[int, int, PromptKind]]:
    """Yield half-open token ranges, ascending and without gaps, and their kind."""
    if usage.cached:
        yield 0, usage.cached, "cached"
    before = usage.cached
    for first, end in (*usage.reused_at, (num_tokens, num_tokens)):
        if before < first:
            yield before, first, "recomputed"
        if first < end:
            yield first, end, "reused"
        before = end


FAULTS: dict[type[engine_errors.EngineError], tuple[type[HunkError], str]] = {
    engine_errors.DoesNotFit: (TooLarge, "start with a larger --kv-gib, or send less"),
    engine_errors.RequestError: (BadRequest, "change the request"),
    engine_errors.QueueFull: (Busy, "try again in a moment"),
    engine_errors.DeadlineExceeded: (DeadlinePassed, "send less, or start with a larger --deadline"),
    engine_errors.Cancelled: (Cancelled, "send it again if it is still wanted"),
    engine_errors.EngineClosed: (ModelUnavailable, "the service is ending, or has to be started anew"),
    engine_errors.EngineError: (ModelFailed, "try again; if it fails again, report it"),
}
"""The service's error and advice for each error of the engine; the first class that matches counts."""


def translate_error(error: engine_errors.EngineError, model: str) -> HunkError:
    """Return the service's error for an error of the engine, with advice."""
    fault, advice = next(what for kind, what in FAULTS.items() if isinstance(error, kind))
    return fault(f"model {model}: {error}; {advice}")


@dataclass(slots=True)
class RunResults:
    """The engine's results for some requests.

    first_step: time of the first confirmed token of any request. next_phase: name of the phase that begins then, if
    any. num_written: tokens written so far. write_seconds: the most time from the first token (`began_writing`) to the
    last one of all requests; None: no limit.
    """

    results: list[GenerationResult] = field(default_factory=list)
    first_step: float = 0.0
    next_phase: str = ""
    num_written: int = 0
    write_seconds: float | None = None
    began_writing: float | None = None

    def check_time(self, *, writes: bool) -> None:
        """Raise DeadlinePassed if the requests have written for too long."""
        if self.write_seconds is None or not writes:
            return
        now = time.perf_counter()
        if self.began_writing is None:
            self.began_writing = now
        if now - self.began_writing > self.write_seconds:
            raise DeadlinePassed(
                f"the model wrote for more than {self.write_seconds:g} s; send a smaller edit, or a larger "
                "max_write_seconds (--max-write-seconds)"
            )


def run_requests(
    engine: Engine,
    requests: Sequence[tuple[GenerationRequest, Proposer | None]],
    context: RequestContext,
    progress: ProgressListener,
    run: RunResults,
    texts: Sequence[AnswerText] = (),
) -> None:
    """Run all requests to their end and add their results to `run`; if one fails or is cancelled, so are all.

    Releases the request's CPU slot first: a request that waits for the model must not hold one. `texts` decode the
    answers, if the listener wants text. Raises what the engine raises.
    """
    context.release_slot()
    with ExitStack() as streams_to_close:
        streams: list[Stream] = []
        for request, proposer in requests:
            streams.append(engine.generate(replace(request, priority=context.priority), proposer))
            streams_to_close.callback(streams[-1].close)

        def stop() -> None:
            for stream in streams:
                stream.cancel()

        progress.on_start()
        context.cancel.add_callback(stop)
        followers: Sequence[AnswerText | None] = texts or [None] * len(streams)
        run.results += [_drain(*each, progress, run) for each in zip(streams, followers, strict=True)]


def _drain(stream: Stream, text: AnswerText | None, progress: ProgressListener, run: RunResults) -> GenerationResult:
    while True:
        try:
            step = next(stream)
        except StopIteration as end:
            result: GenerationResult = end.value
            if text is not None:
                text.finish(result)
            return result
        run.num_written += len(step.token_ids)
        if step.token_ids and not run.first_step:
            run.first_step = time.perf_counter()
            if run.next_phase:
                progress.on_phase(run.next_phase)
        run.check_time(writes=bool(step.token_ids))
        progress.on_tokens(run.num_written)
        if text is not None:
            text.add_step(step)


def convert_usage(counted: GenerationUsage) -> Usage:
    """Convert the engine's counts to the `usage` of a result."""
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
            source: SourceUsage(each.drafted, each.accepted, each.num_rejected, each.forwards)
            for source, each in counted.by_source.items()
        },
        prefix_hit_rate=counted.cached / counted.prompt,
    )
