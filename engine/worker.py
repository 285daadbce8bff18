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

from engine.errors import Cancelled, EngineClosed, EngineError, EngineFault
from engine.types import GenerationRequest, GenerationResult, GenerationStep, Output, Proposer

EXIT_SECONDS = 10.0
"""How long the interpreter's exit waits for the step that is running: a thread inside torch aborts the process."""


class Core(Protocol):
    """A single-threaded engine; its worker's thread is the only one that calls it."""

    def add(self, request: GenerationRequest, proposer: Proposer | None, /) -> int:
        """Take a request and return its id; raises RequestError, DoesNotFit or QueueFull."""
        ...

    def cancel(self, request_id: int, /) -> None:
        """Forget a request in any state; its memory is free at once."""
        ...

    def step(self) -> list[Output]:
        """One pass over what is scheduled. What it raises is a fault of its own, not of one request."""
        ...

    def has_pending_work(self) -> bool:
        """Whether a step would do something."""
        ...

    def reset(self) -> None:
        """Forget every request, whatever state a fault has left; raises where that cannot be done."""
        ...

    def close(self) -> None:
        """The last call: write down what is to outlive it."""
        ...


C = TypeVar("C", bound=Core)
E = TypeVar("E", bound=EngineError)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Ticket:
    """One request on its way: where its outputs go, and the core's id for it once it is taken.

    `deliver` is called in the worker's thread and must not block; a RuntimeError says that nobody listens any more.
    """

    deliver: Callable[[Output], object]
    id: int | None = None


class Worker(Generic[C]):
    """Owns a core and the thread that runs it; made once an engine, used from any thread.

    Only its futures and `close` wait for a step. A worker that nobody refers to any more stops.
    """

    def __init__(self, core: C) -> None:
        self._loop = _Loop(core)
        self._thread = threading.Thread(target=self._loop.run, name="engine", daemon=True)
        _OPEN.add(self)
        _THREADS.add(self._thread)
        weakref.finalize(self, self._loop.post, self._loop.stop).atexit = False
        self._thread.start()

    def submit(self, ticket: Ticket, request: GenerationRequest, proposer: Proposer | None) -> Future[None]:
        """Have the core take a request before its next step; the future raises what the core refuses it with.

        Raises EngineClosed.
        """
        return self.call(partial(self._loop.admit, ticket, request, proposer))

    def cancel(self, ticket: Ticket) -> None:
        """Take a request back before the next step; who still listens gets Cancelled. Never waits, in no state fails.

        Garbage collection may call this at any point of any thread, so it takes no lock of ours.
        """
        self._loop.post(partial(self._loop.cancel, ticket))

    def call(self, function: Callable[[C], T]) -> Future[T]:
        """Run a function of the core between two steps; raises EngineClosed."""
        assert threading.current_thread() is not self._thread, "a drafter runs inside the engine and cannot wait for it"
        return self._loop.call(function)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop behind the step that is running, failing what is left with EngineClosed; again does nothing more."""
        self._loop.close()
        self._thread.join(timeout_s)


class _Loop(Generic[C]):
    """The thread's side. It does not refer to its Worker, which can so be collected while the thread sleeps.

    `SimpleQueue` is the one queue of the standard library whose `put` may interrupt itself (in a finaliser).
    """

    def __init__(self, core: C) -> None:
        self._core = core
        self._inbox: SimpleQueue[tuple[Future[Any] | None, Callable[[], Any]]] = SimpleQueue()
        self._tickets: dict[int, Ticket] = {}
        self._gate = threading.Lock()  # no call gets into the inbox behind the last reading of it
        self._closed = False
        self._stopping = False
        self._fault: Exception | None = None

    def run(self) -> None:
        """Until it is stopped: answer calls, then step."""
        try:
            while not self._stopping:
                self._turn()
        except Exception as fault:  # noqa: BLE001 -- the outermost loop of this thread: later callers are told
            self._fault = fault
        finally:
            self._end()

    def _turn(self) -> None:
        try:
            self._answer_calls(wait=not self._core.has_pending_work())
            if self._core.has_pending_work() and not self._stopping:
                for output in self._core.step():
                    self._hand_over(output)
            left = len(self._tickets)
            assert self._core.has_pending_work() or not left, f"no work is left and {left} requests have no end"
        except Exception as fault:
            self._fail_all(partial(_fault_of, fault))
            self._core.reset()
            if self._core.has_pending_work():
                raise

    def _answer_calls(self, *, wait: bool) -> None:
        """Run what waits in the inbox now; what comes meanwhile is for the next turn, so that steps go on."""
        for _ in range(max(int(wait), self._inbox.qsize())):
            future, function = self._inbox.get()
            if future is None:
                function()
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:  # noqa: BLE001 -- it is raised in the caller
                    future.set_exception(error)

    def _hand_over(self, output: Output) -> None:
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
        """End every request, each with an exception of its own: what two threads raise must be two."""
        for number in list(self._tickets):
            self._hand_over(Output(number, error=error()))

    def _end(self) -> None:
        with self._gate:
            self._closed = True
        self._fail_all(self._closed_error)
        while not self._inbox.empty():
            future, _ = self._inbox.get()
            if future is not None and future.set_running_or_notify_cancel():
                future.set_exception(self._closed_error())
        with suppress(Exception):  # nobody is left to be told
            self._core.close()

    def _closed_error(self) -> EngineClosed:
        if self._fault is None:
            return EngineClosed("the engine is closed; it takes no more requests")
        return _caused(EngineClosed(f"the engine broke down and is closed: {self._fault}"), self._fault)

    def admit(self, ticket: Ticket, request: GenerationRequest, proposer: Proposer | None, core: C) -> None:
        """In the thread: have the core take the request."""
        try:
            ticket.id = core.add(request, proposer)
        except EngineError:
            raise
        except Exception as fault:
            raise EngineFault(f"the engine cannot take this request: {type(fault).__name__}: {fault}") from fault
        self._tickets[ticket.id] = ticket

    def cancel(self, ticket: Ticket) -> None:
        """In the thread: take the request back, if it was taken and is not finished."""
        if ticket.id is not None and self._tickets.get(ticket.id) is ticket:
            self._core.cancel(ticket.id)
            self._hand_over(Output(ticket.id, error=Cancelled()))

    def stop(self) -> None:
        """In the thread: let this turn be the last."""
        self._stopping = True

    def post(self, function: Callable[[], None]) -> None:
        """From any thread: have a function run before the next step, or never if the loop has ended."""
        self._inbox.put((None, function))

    def call(self, function: Callable[[C], T]) -> Future[T]:
        """From any thread: have a function of the core run before the next step; raises EngineClosed."""
        future: Future[T] = Future()
        with self._gate:
            if self._closed:
                raise self._closed_error()
            self._inbox.put((future, partial(function, self._core)))
        return future

    def close(self) -> None:
        """From any thread: let no more calls in, and stop behind those that are there."""
        with self._gate:
            self._closed = True
        self.post(self.stop)


def _fault_of(cause: Exception) -> EngineFault:
    return _caused(EngineFault(f"the engine failed: {type(cause).__name__}: {cause}"), cause)


def _caused(error: E, cause: Exception) -> E:
    error.__cause__ = cause
    return error


_OPEN: weakref.WeakSet[Worker[Any]] = weakref.WeakSet()
_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Those that run, also behind a worker that is gone: they free the core's tensors as their last act."""


@atexit.register
def _end_all() -> None:
    for worker in list(_OPEN):
        worker.close(0.0)
    for thread in list(_THREADS):
        thread.join(EXIT_SECONDS)


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
