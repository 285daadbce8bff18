"""The thread that steps the engine's core, and the streams that its callers read."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from engine.errors import Cancelled, DeviceLost, EngineClosed, EngineError, EngineFault
from engine.types import GenerationRequest, GenerationResult, GenerationStep, Output, Proposer

EXIT_SECONDS = 10.0
"""How long the interpreter's exit waits for the step that is running: a thread inside torch would abort the process."""


class Core(Protocol):
    """A single-threaded engine; only its worker's thread calls it."""

    def add(self, request: GenerationRequest, proposer: Proposer | None, /) -> int:
        """Add a request and return its id; raises RequestError, DoesNotFit or QueueFull."""
        ...

    def cancel(self, request_id: int, /) -> None:
        """Remove a request in any state and free its memory."""
        ...

    def step(self) -> list[Output]:
        """Run one pass over what is scheduled. An exception is a fault of the core, not of one request."""
        ...

    def has_pending_work(self) -> bool:
        """Return whether a step would do anything."""
        ...

    def reset(self) -> None:
        """Forget every request, whatever state a fault has left; raises if that fails."""
        ...

    def close(self) -> None:
        """Write down what is to outlive the core. This is the last call."""
        ...


C = TypeVar("C", bound=Core)
E = TypeVar("E", bound=EngineError)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Ticket:
    """A submitted request: where its outputs go, and its id in the core once it is added.

    `deliver` is called in the worker's thread and must not block; it raises RuntimeError if nobody listens any more.
    """

    deliver: Callable[[Output], object]
    id: int | None = None


class Worker(Generic[C]):
    """Owns a core and the thread that runs it. There is one for each engine; any thread may use it.

    Only its futures and `close` wait for a step. A worker that is no longer referenced stops.
    """

    def __init__(self, core: C) -> None:
        self._loop = _Loop(core)
        self._thread = threading.Thread(target=self._loop.run, name="engine", daemon=True)
        _OPEN.add(self)
        _THREADS.add(self._thread)
        weakref.finalize(self, self._loop.post, self._loop.stop).atexit = False
        self._thread.start()

    @property
    def fault(self) -> Exception | None:
        """What ended the worker, if `close` did not."""
        return self._loop.fault

    def submit(self, ticket: Ticket, request: GenerationRequest, proposer: Proposer | None) -> Future[None]:
        """Have the core add a request before its next step; the future raises the core's error. Raises EngineClosed."""
        return self.call(partial(self._loop.admit, ticket, request, proposer))

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a request before the next step; its reader gets Cancelled. Never waits and never fails.

        Garbage collection may call this at any point of any thread, so it takes no lock of ours.
        """
        self._loop.post(partial(self._loop.cancel, ticket))

    def call(self, function: Callable[[C], T]) -> Future[T]:
        """Run a function of the core between two steps; raises EngineClosed."""
        assert threading.current_thread() is not self._thread, "a drafter runs inside the engine and cannot wait for it"
        return self._loop.call(function)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop after the step that is running and fail pending requests with EngineClosed; a second call
        does nothing.
        """
        self._loop.close()
        self._thread.join(timeout_s)


class _Loop(Generic[C]):
    """The thread's side. It does not refer to its Worker, so that a Worker can be collected while the thread sleeps.

    `SimpleQueue` is the only queue of the standard library whose `put` may interrupt itself (in a finaliser).
    """

    def __init__(self, core: C) -> None:
        self._core = core
        self._inbox: SimpleQueue[tuple[Future[Any] | None, Callable[[], Any]]] = SimpleQueue()
        self._tickets: dict[int, Ticket] = {}
        self._gate = threading.Lock()  # no call enters the inbox after it was last read
        self._closed = False
        self._stopping = False
        self.fault: Exception | None = None

    def run(self) -> None:
        """Run calls and steps until the loop is stopped."""
        try:
            while not self._stopping:
                self._run_once()
        except Exception as fault:  # noqa: BLE001 -- the outermost loop of this thread: later callers are told
            self.fault = fault
        finally:
            self._shut_down()

    def _run_once(self) -> None:
        try:
            self._run_calls(wait=not self._core.has_pending_work())
            if self._core.has_pending_work() and not self._stopping:
                for output in self._core.step():
                    self._deliver(output)
            left = len(self._tickets)
            assert self._core.has_pending_work() or not left, f"no work is left and {left} requests have no end"
        except Exception as fault:
            self._fail_all(partial(_make_fault, fault))
            if isinstance(fault, DeviceLost):
                raise
            self._core.reset()
            if self._core.has_pending_work():
                raise

    def _run_calls(self, *, wait: bool) -> None:
        """Run the calls that are in the inbox now. Later ones wait for the next turn, so that steps go on."""
        for _ in range(max(int(wait), self._inbox.qsize())):
            future, function = self._inbox.get()
            if future is None:
                function()
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:  # noqa: BLE001 -- it is raised in the caller
                    future.set_exception(error)

    def _deliver(self, output: Output) -> None:
        ticket = self._tickets.get(output.id)
        if ticket is None:  # taken back meanwhile
            return
        if output.result is not None or output.error is not None:
            del self._tickets[output.id]
        try:
            ticket.deliver(output)
        except RuntimeError:
            self.cancel(ticket)

    def _fail_all(self, error: Callable[[], EngineError]) -> None:
        """End every request, each with an exception of its own: two threads must not raise the same one."""
        for number in list(self._tickets):
            self._deliver(Output(number, error=error()))

    def _shut_down(self) -> None:
        with self._gate:
            self._closed = True
        self._fail_all(self._make_closed_error)
        while not self._inbox.empty():
            future, _ = self._inbox.get()
            if future is not None and future.set_running_or_notify_cancel():
                future.set_exception(self._make_closed_error())
        with suppress(Exception):  # nobody is left to be told
            self._core.close()

    def _make_closed_error(self) -> EngineClosed:
        if self.fault is None:
            return EngineClosed("the engine is closed; it takes no more requests")
        return _attach_cause(EngineClosed(f"the engine broke down and is closed: {self.fault}"), self.fault)

    def admit(self, ticket: Ticket, request: GenerationRequest, proposer: Proposer | None, core: C) -> None:
        """In the thread: have the core add the request."""
        try:
            ticket.id = core.add(request, proposer)
        except EngineError:
            raise
        except Exception as fault:
            raise EngineFault(f"the engine cannot take this request: {type(fault).__name__}: {fault}") from fault
        self._tickets[ticket.id] = ticket

    def cancel(self, ticket: Ticket) -> None:
        """In the thread: cancel the request, if it was added and is not finished."""
        if ticket.id is not None and self._tickets.get(ticket.id) is ticket:
            self._core.cancel(ticket.id)
            self._deliver(Output(ticket.id, error=Cancelled()))

    def stop(self) -> None:
        """In the thread: stop after this turn."""
        self._stopping = True

    def post(self, function: Callable[[], None]) -> None:
        """From any thread: run a function before the next step, or never if the loop has ended."""
        self._inbox.put((None, function))

    def call(self, function: Callable[[C], T]) -> Future[T]:
        """From any thread: run a function of the core before the next step; raises EngineClosed."""
        future: Future[T] = Future()
        with self._gate:
            if self._closed:
                raise self._make_closed_error()
            self._inbox.put((future, partial(function, self._core)))
        return future

    def close(self) -> None:
        """From any thread: accept no more calls, and stop after those that wait."""
        with self._gate:
            self._closed = True
        self.post(self.stop)


def _make_fault(cause: Exception) -> EngineFault:
    return _attach_cause(EngineFault(f"the engine failed: {type(cause).__name__}: {cause}"), cause)


def _attach_cause(error: E, cause: Exception) -> E:
    error.__cause__ = cause
    return error


_OPEN: weakref.WeakSet[Worker[Any]] = weakref.WeakSet()
_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that run, also those of a worker that is gone: they free the core's tensors last."""


@atexit.register
def _end_all() -> None:
    for worker in list(_OPEN):
        worker.close(0.0)
    for thread in list(_THREADS):
        thread.join(EXIT_SECONDS)


_NO_ID = -1
"""The id of an output that the core does not know."""


class _Stream:
    """A submitted request; dropping the stream cancels it.

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
        """Cancel the request from any thread; a reader that waits for its next step gets Cancelled at once."""
        self._worker.cancel(self._ticket)
        with suppress(RuntimeError):  # the event loop of whoever listened is closed
            self._ticket.deliver(Output(_NO_ID, error=Cancelled()))

    def _give_up(self) -> None:
        if not self._ended:
            self._ended = True
            self._worker.cancel(self._ticket)

    def _read(self, output: Output) -> GenerationStep | None:
        """Return the step of an output, if it has one; raise its error."""
        self._ended = output.result is not None or output.error is not None
        self.result = output.result
        if output.error is not None:
            raise type(output.error)(*output.error.args) from output.error.__cause__  # this one is ours alone
        return output.step


class Stream(_Stream, Generator[GenerationStep, None, GenerationResult]):
    """The steps of a request as a generator whose return value is the result. For one thread.

    The request runs from the start, whether the stream is read or not. Closing the stream, dropping it or an exception
    while it waits (Ctrl-C) cancels the request. A stream that has ended or is closed yields nothing.
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
        """Wait for the next step and return it; StopIteration carries the result. Raises a GenerationFailed."""
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
        """Cancel the request and raise."""
        self._give_up()
        return super().throw(typ, val, tb)

    def close(self) -> None:
        """Cancel the request, if it has not ended."""
        self._give_up()


class AsyncStream(_Stream):
    """The steps of a request as an asynchronous iterator, with its `result` at the end. For one task.

    Closing it, dropping it, leaving its `async with` or cancelling the task that waits cancels the request.
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
        """Return the next step; raises a GenerationFailed."""
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
        """Cancel the request, if it has not ended."""
        self._give_up()
