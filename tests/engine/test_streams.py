"""Streams over a core that counts: a reader that waits gets its items, and an abandoned request is cancelled."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from engine.errors import Cancelled, EngineClosed, EngineFault, NumericFault, QueueFull
from engine.types import Output
from engine.worker import AsyncStream, Stream, Worker
from tests.engine.fake_core import (
    PATIENCE_SECONDS,
    Broken,
    FakeCore,
    breaking,
    counting,
    drained,
    drained_async,
    in_thread,
    running,
)


@pytest.fixture
def gate() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def gated(gate: threading.Semaphore) -> Iterator[tuple[FakeCore, Worker[FakeCore]]]:
    """A core whose steps the test lets through one by one; all of them at the end."""
    core = FakeCore(gate)
    worker = Worker(core)
    yield core, worker
    gate.release(10**6)
    worker.close(PATIENCE_SECONDS)
    assert not worker._thread.is_alive()


@pytest.mark.parametrize("num_tokens", [1, 2, 30])
def test_a_stream_gives_each_step_and_then_the_result(num_tokens: int) -> None:
    worker = Worker(FakeCore())
    for _ in range(2):  # both ways in which the fake core ends an output
        stream = Stream(worker, counting(7, num_tokens))
        assert stream.result is None or num_tokens == 1
        assert [step.token_ids for step in stream] == [(7 + number,) for number in range(num_tokens)]
        assert stream.result is not None
        assert stream.result.token_ids == tuple(range(7, 7 + num_tokens))
        assert list(stream) == []


def test_requests_of_one_thread_run_side_by_side(
    gated: tuple[FakeCore, Worker[FakeCore]], gate: threading.Semaphore
) -> None:
    core, worker = gated
    first = Stream(worker, counting(0, 3))  # its first step waits at the gate, so the others come behind that step
    gate.release()
    next(first)
    futures = [in_thread(lambda: drained(Stream(worker, counting(10, 2)))) for _ in range(2)]
    gate.release(10**6)
    for join in futures:
        join()
    assert drained(first).token_ids == (0, 1, 2)
    assert max(core.batches) > 1


def test_a_submission_gets_in_between_the_steps_of_another() -> None:
    worker = Worker(FakeCore())
    endless = Stream(worker, counting(0, 10**9))
    for number in range(20):
        assert drained(Stream(worker, counting(number, 5))).token_ids == tuple(range(number, number + 5))
    endless.close()
    assert running(worker) == set()


def test_what_the_core_refuses_is_raised_where_it_is_submitted() -> None:
    worker = Worker(FakeCore(max_requests=1))
    held = Stream(worker, counting(0, 10**9))
    with pytest.raises(QueueFull, match="1 requests wait"):
        Stream(worker, counting(1, 1))

    async def submit() -> None:
        with pytest.raises(QueueFull, match="1 requests wait"):
            await AsyncStream.open(worker, counting(1, 1))

    asyncio.run(submit())
    held.close()
    assert drained(Stream(worker, counting(1, 2))).token_ids == (1, 2)


def _close(stream: Stream) -> None:
    stream.close()
    assert list(stream) == []
    assert stream.result is None


def _throw(stream: Stream) -> None:
    with pytest.raises(Broken):
        stream.throw(Broken)
    assert list(stream) == []


def _cancel(stream: Stream) -> None:
    stream.cancel()
    with pytest.raises(Cancelled, match="taken back"):
        drained(stream)
    assert list(stream) == []


@pytest.mark.parametrize("num_read", [0, 1, 5])
@pytest.mark.parametrize("give_up", [_close, _throw, _cancel, lambda stream: None], ids=lambda f: f.__name__)
def test_a_request_that_is_given_up_leaves_the_core_at_once(give_up: Callable[[Stream], None], num_read: int) -> None:
    core = FakeCore()
    worker = Worker(core)
    stream = Stream(worker, counting(0, 10**9))
    for _ in range(num_read):
        next(stream)
    give_up(stream)
    del stream
    assert running(worker) == set()
    assert core.cancelled == core.added == [0]


def test_a_finished_request_is_not_cancelled() -> None:
    core = FakeCore()
    worker = Worker(core)
    stream = Stream(worker, counting(0, 3))
    drained(stream)
    stream.close()
    stream.cancel()
    del stream
    assert running(worker) == set()
    assert core.cancelled == []


def test_one_who_waits_is_woken_when_another_thread_cancels(
    gated: tuple[FakeCore, Worker[FakeCore]], gate: threading.Semaphore
) -> None:
    core, worker = gated
    stream = Stream(worker, counting(0, 10**9))
    join = in_thread(lambda: drained(stream))
    assert core.stepping.wait(PATIENCE_SECONDS)
    stream.cancel()
    with pytest.raises(Cancelled, match="taken back"):
        join()  # while the step still runs: it may take seconds
    assert core.batches == []
    gate.release()
    assert running(worker) == set()


def test_a_task_that_waits_is_woken_when_another_thread_cancels(
    gated: tuple[FakeCore, Worker[FakeCore]], gate: threading.Semaphore
) -> None:
    core, worker = gated

    async def waiting() -> AsyncStream:
        stream = await AsyncStream.open(worker, counting(0, 10**9))
        next_step = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(core.stepping.wait, PATIENCE_SECONDS)
        await asyncio.to_thread(stream.cancel)
        with pytest.raises(Cancelled, match="taken back"):
            await next_step
        return stream

    stream = asyncio.run(waiting())
    assert core.batches == []
    stream.cancel()  # nobody listens any more
    gate.release()
    assert running(worker) == set()


def test_an_error_that_two_requests_share_is_raised_as_two() -> None:
    core = FakeCore(gate := threading.Semaphore(0))
    worker = Worker(core)
    first = Stream(worker, counting(0, 9))
    assert core.stepping.wait(PATIENCE_SECONDS)
    shared = NumericFault("no numbers")
    step = core.step

    def failing() -> list[Output]:
        step()
        numbers = list(core.running)
        core.running.clear()
        return [Output(number, error=shared) for number in numbers]

    streams = [first]
    joining = in_thread(lambda: streams.append(Stream(worker, counting(0, 9))))
    core.step = failing  # type: ignore[method-assign]
    gate.release(1)
    joining()
    gate.release(10**6)
    raised = []
    for stream in streams:
        with pytest.raises(NumericFault, match="no numbers") as caught:
            drained(stream)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert shared not in raised


def interrupting_once() -> Callable[[], None]:
    """Ctrl-C at the first call; the core steps on until it hears of it."""
    calls = iter([lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)])
    return lambda: next(calls, lambda: None)()


@pytest.mark.parametrize("where", ["on_step", "on_add"])
def test_ctrl_c_takes_the_request_back_and_leaves_the_engine_usable(where: str) -> None:
    core = FakeCore()
    worker = Worker(core)
    setattr(core, where, interrupting_once())
    with pytest.raises(KeyboardInterrupt):
        drained(Stream(worker, counting(0, 10**9)))
    setattr(core, where, lambda: None)
    assert running(worker) == set()
    assert core.cancelled == [0]
    assert drained(Stream(worker, counting(3, 2))).token_ids == (3, 4)


def test_ctrl_c_while_a_step_is_waited_for_takes_the_request_back() -> None:
    core = FakeCore()
    worker = Worker(core)
    waiting = threading.Event()
    interrupt = interrupting_once()
    core.on_step = lambda: interrupt() if waiting.wait(PATIENCE_SECONDS) else breaking()
    stream = Stream(worker, counting(0, 10**9))
    outputs = stream._outputs

    class Announced(SimpleQueue[Output]):
        def get(self, block: bool = True, timeout: float | None = None) -> Output:
            waiting.set()
            return outputs.get(block, timeout)

    stream._outputs = Announced()
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    core.on_step = lambda: None
    assert running(worker) == set()
    assert list(stream) == []


@pytest.mark.parametrize("num_loops", [1, 3])
def test_event_loops_share_a_worker(num_loops: int) -> None:
    worker = Worker(FakeCore())

    async def one(first: int) -> None:
        async with await AsyncStream.open(worker, counting(first, 20)) as stream:
            assert (await drained_async(stream)).token_ids == tuple(range(first, first + 20))
            assert [step async for step in stream] == []

    async def many() -> None:
        await asyncio.gather(*(one(first) for first in range(30)))

    joins = [in_thread(lambda: asyncio.run(many())) for _ in range(num_loops)]
    for join in joins:
        join()
    assert running(worker) == set()


def test_a_submission_does_not_hold_up_its_event_loop(
    gated: tuple[FakeCore, Worker[FakeCore]], gate: threading.Semaphore
) -> None:
    core, worker = gated
    endless = Stream(worker, counting(0, 10**9))
    assert core.stepping.wait(PATIENCE_SECONDS)  # and stays in this step

    async def submit() -> None:
        opening = asyncio.create_task(AsyncStream.open(worker, counting(5, 1)))
        await asyncio.sleep(0)
        assert not opening.done()
        gate.release(10**6)  # this runs although the submission waits
        assert (await drained_async(await opening)).token_ids == (5,)

    asyncio.run(asyncio.wait_for(submit(), PATIENCE_SECONDS))
    endless.close()


def test_a_cancelled_task_takes_its_request_back_wherever_it_waits(
    gated: tuple[FakeCore, Worker[FakeCore]], gate: threading.Semaphore
) -> None:
    core, worker = gated

    async def reading() -> None:
        async for _ in await AsyncStream.open(worker, counting(0, 10**9)):
            pass

    async def holding(opened: asyncio.Event) -> None:
        async with await AsyncStream.open(worker, counting(0, 10**9)):
            opened.set()
            await asyncio.Event().wait()

    async def cancelled(task: asyncio.Task[None]) -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def run() -> None:
        opened = asyncio.Event()
        task = asyncio.create_task(holding(opened))
        await opened.wait()
        await cancelled(task)  # inside its `async with`
        assert core.stepping.wait(PATIENCE_SECONDS)
        task = asyncio.create_task(reading())
        await asyncio.sleep(0)
        await cancelled(task)  # before the core has heard of it
        gate.release()
        assert await asyncio.wrap_future(worker.call(lambda core: core.added)) == [0]
        task = asyncio.create_task(reading())
        while not await asyncio.wrap_future(worker.call(lambda core: core.running)):
            await asyncio.sleep(0)
        gate.release(3)
        await cancelled(task)  # while it waits for a step
        gate.release(10**6)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))
    assert running(worker) == set()
    assert core.cancelled == core.added == [0, 1]


def test_an_asynchronous_stream_that_is_left_takes_its_request_back_before_it_is_dropped(
    gated: tuple[FakeCore, Worker[FakeCore]], gate: threading.Semaphore
) -> None:
    core, worker = gated

    async def left() -> list[int]:
        gate.release(1)
        return await asyncio.wrap_future(worker.call(lambda core: list(core.running)))

    async def run() -> None:
        streams = [await AsyncStream.open(worker, counting(0, 10**9))]
        async with streams[0]:
            pass
        assert await left() == []
        streams.append(await AsyncStream.open(worker, counting(0, 10**9)))
        await streams[1].aclose()
        assert await left() == []
        streams.append(await AsyncStream.open(worker, counting(0, 10**9)))
        waiting = asyncio.ensure_future(anext(streams[2]))
        await asyncio.sleep(0)  # now it waits for its first step, which the gate holds
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await left() == []
        for stream in streams:
            assert [step async for step in stream] == []

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))
    assert core.cancelled == [0, 1, 2]


def test_errors_reach_the_task_that_reads() -> None:
    core = FakeCore()
    core.on_step = breaking
    worker = Worker(core)

    async def run() -> None:
        stream = await AsyncStream.open(worker, counting(0, 9))
        with pytest.raises(EngineFault, match="out of order") as caught:
            await anext(stream)
        assert isinstance(caught.value.__cause__, Broken)
        assert [step async for step in stream] == []
        assert stream.result is None
        worker.close(PATIENCE_SECONDS)
        with pytest.raises(EngineClosed):
            await AsyncStream.open(worker, counting(0, 9))

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))


def test_a_request_whose_event_loop_was_closed_is_taken_back() -> None:
    core = FakeCore()
    worker = Worker(core)
    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(AsyncStream.open(worker, counting(0, 10**9)))
    loop.close()
    while running(worker):  # each look is behind another step
        pass
    assert core.cancelled == [0]
    del stream
