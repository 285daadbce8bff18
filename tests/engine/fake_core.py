"""A core that counts instead of computing, obeys a gate, and breaks when told to."""

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
