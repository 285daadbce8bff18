"""What a caller holds of a request that runs: its steps as they come, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from engine.errors import Cancelled
from engine.types import GenerationRequest, GenerationResult, GenerationStep, Output, Proposer
from engine.worker import Ticket, Worker

_NO_ID = -1
"""Of an output that the core does not know of."""


class _Stream:
    """A request that was submitted; whoever drops it takes the request back.

    `result` is None until the output has ended. The worker does not refer to a stream, only to its ticket.
    """

    def __init__(self, worker: Worker[Any], ticket: Ticket) -> None:
        self.result: GenerationResult | None = None
        self._worker = worker  # which goes on as long as a stream needs it
        self._ticket = ticket
        self._ended = False

    def __del__(self) -> None:
        self._give_up()

    def cancel(self) -> None:
        """Take the request back, from any thread: who waits for its next step gets Cancelled, at once."""
        self._worker.cancel(self._ticket)
        with suppress(RuntimeError):  # the event loop of whoever listened is closed
            self._ticket.deliver(Output(_NO_ID, error=Cancelled()))

    def _give_up(self) -> None:
        if not self._ended:
            self._ended = True
            self._worker.cancel(self._ticket)

    def _read(self, output: Output) -> GenerationStep | None:
        """The step in an output, if there is one; raises its error."""
        self._ended = output.result is not None or output.error is not None
        self.result = output.result
        if output.error is not None:
            raise type(output.error)(*output.error.args) from output.error.__cause__  # this one is ours alone
        return output.step


class Stream(_Stream, Generator[GenerationStep, None, GenerationResult]):
    """The steps of a request as a generator whose value is the whole result. For one thread.

    It runs from the start on, whether it is read or not. Closing it, dropping it or an exception while it waits
    (Ctrl-C) takes the request back; then, and behind its end, it is empty.
    """

    def __init__(self, worker: Worker[Any], request: GenerationRequest, proposer: Proposer | None = None) -> None:
        """Submit the request; raises RequestError, DoesNotFit, QueueFull or EngineClosed."""
        self._outputs: SimpleQueue[Output] = SimpleQueue()
        super().__init__(worker, Ticket(self._outputs.put))
        try:
            worker.submit(self._ticket, request, proposer).result()
        except BaseException:
            self._give_up()
            raise

    def send(self, value: None, /) -> GenerationStep:
        """The next step, waited for; StopIteration brings the result. Raises a GenerationFailed."""
        while not self._ended:
            try:
                output = self._outputs.get()
            except BaseException:
                self._give_up()
                raise
            if (step := self._read(output)) is not None:
                return step
        raise StopIteration(self.result)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> GenerationStep:
        """Take the request back and raise."""
        self._give_up()
        return super().throw(typ, val, tb)

    def close(self) -> None:
        """Take the request back, if it has not ended."""
        self._give_up()


class AsyncStream(_Stream):
    """The steps of a request as an asynchronous iterator, and its `result` behind them. For one task.

    Closing it, dropping it, leaving its `async with` or cancelling the task that waits takes the request back.
    """

    def __init__(self, worker: Worker[Any]) -> None:
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()
        loop, put = asyncio.get_running_loop(), self._outputs.put_nowait
        super().__init__(worker, Ticket(lambda output: loop.call_soon_threadsafe(put, output)))

    @classmethod
    async def open(
        cls, worker: Worker[Any], request: GenerationRequest, proposer: Proposer | None = None
    ) -> AsyncStream:
        """Submit the request; raises RequestError, DoesNotFit, QueueFull or EngineClosed."""
        stream = cls(worker)
        try:
            await asyncio.wrap_future(worker.submit(stream._ticket, request, proposer))
        except BaseException:
            stream._give_up()
            raise
        return stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerationStep:
        """The next step; raises a GenerationFailed."""
        while not self._ended:
            try:
                output = await self._outputs.get()
            except BaseException:
                self._give_up()
                raise
            if (step := self._read(output)) is not None:
                return step
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._give_up()

    async def aclose(self) -> None:
        """Take the request back, if it has not ended."""
        self._give_up()
