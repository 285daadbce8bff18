"""A core that counts instead of computing, and callers of a worker in threads and event loops."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.errors import QueueFull
from engine.types import (
    GenerationRequest,
    GenerationResult,
    GenerationStep,
    GenerationUsage,
    Output,
    Proposer,
)
from engine.worker import AsyncStream, Stream, Worker

PATIENCE_SECONDS = 30.0
"""After which a test has failed; nothing here ever takes as long."""


def counting(first: int, num_tokens: int) -> GenerationRequest:
    """Answered by the ids first, first + 1, ..., one a step."""
    return GenerationRequest(prompt=[first], max_new_tokens=num_tokens)


class FakeCore:
    """`gate`, where there is one, is acquired once a step; `on_step` runs in each, and may raise."""

    def __init__(self, gate: threading.Semaphore | None = None, max_requests: int = 1000) -> None:
        self.running: dict[int, tuple[GenerationRequest, list[int]]] = {}
        self.added: list[int] = []
        self.cancelled: list[int] = []
        self.finished: list[int] = []
        self.batches: list[int] = []
        self.num_looks = 0
        self.closed = False
        self.on_add: Callable[[], object] = lambda: None
        self.on_cancel: Callable[[], object] = lambda: None
        self.on_step: Callable[[], object] = lambda: None
        self.on_reset: Callable[[], object] = self.running.clear
        self.stepping = threading.Event()
        self._gate = gate
        self._max_requests = max_requests
        self._thread: int | None = None

    def add(self, request: GenerationRequest, proposer: Proposer | None) -> int:
        self._alone()
        self.on_add()
        if len(self.running) >= self._max_requests:
            raise QueueFull(f"{len(self.running)} requests wait")
        number = len(self.added)
        self.added.append(number)
        self.running[number] = (request, [])
        return number

    def cancel(self, request_id: int) -> None:
        self._alone()
        del self.running[request_id]
        self.cancelled.append(request_id)
        self.on_cancel()

    def close(self) -> None:
        self.closed = True

    def step(self) -> list[Output]:
        self._alone()
        assert self.running, "a step without work"
        self.stepping.set()
        if self._gate is not None:
            assert self._gate.acquire(timeout=PATIENCE_SECONDS), "the test forgot this step"
        self.batches.append(len(self.running))
        self.on_step()
        return [output for number in list(self.running) for output in self._advance(number)]

    def has_pending_work(self) -> bool:
        self.num_looks += 1
        return bool(self.running)

    def reset(self) -> None:
        self._alone()
        self.on_reset()

    def _advance(self, number: int) -> list[Output]:
        request, written = self.running[number]
        written.append(request.prompt_ids[0] + len(written))
        step = GenerationStep((written[-1],), b"")
        if len(written) < request.max_new_tokens:
            return [Output(number, step)]
        del self.running[number]
        self.finished.append(number)
        result = GenerationResult(tuple(written), b"", "length", GenerationUsage())
        if number % 2:  # both ways of ending are allowed
            return [Output(number, step), Output(number, result=result)]
        return [Output(number, step, result)]

    def _alone(self) -> None:
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident(), "the core is called from two threads"


class Broken(Exception):
    """What a fault of the core raises here."""


def breaking() -> None:
    raise Broken("out of order")


def drained(stream: Stream) -> GenerationResult:
    """What is left of a stream, checked against its result."""
    ids: list[int] = []
    while True:
        try:
            ids += next(stream).token_ids
        except StopIteration as end:
            result: GenerationResult = end.value
            break
    assert result is stream.result
    assert tuple(ids) == result.token_ids[len(result.token_ids) - len(ids) :]
    return result


def in_thread(work: Callable[[], object]) -> Callable[[], None]:
    """Start; what is returned joins and raises what the work raised."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- it is raised again by the one who joins
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "a caller hangs"
        if errors:
            raise errors[0]

    return join


def running(worker: Worker[FakeCore]) -> set[int]:
    """The requests that the core has now; every cancellation before this is done."""
    return worker.call(lambda core: set(core.running)).result(PATIENCE_SECONDS)


async def drained_async(stream: AsyncStream) -> GenerationResult:
    ids = [step.token_ids[0] async for step in stream]
    assert stream.result is not None
    assert tuple(ids) == stream.result.token_ids
    return stream.result
