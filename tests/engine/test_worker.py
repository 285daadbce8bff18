"""The worker's thread over a core that counts: faults, closing, and many callers at once."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Cancelled, DeviceLost, EngineClosed, EngineFault
from engine.types import GenerationStep, Output
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


def test_a_fault_of_the_core_ends_what_runs_and_nothing_else() -> None:
    core = FakeCore()
    core.on_step = breaking
    worker = Worker(core)
    stream = Stream(worker, counting(0, 9))
    with pytest.raises(EngineFault, match="the engine failed: Broken: out of order") as caught:
        next(stream)
    assert isinstance(caught.value.__cause__, Broken)
    assert list(stream) == []
    core.on_step = lambda: None
    assert drained(Stream(worker, counting(3, 2))).token_ids == (3, 4)


def test_each_of_several_gets_a_fault_of_its_own_with_one_cause() -> None:
    core = FakeCore(gate := threading.Semaphore(0))
    worker = Worker(core)
    first = Stream(worker, counting(0, 9))
    assert core.stepping.wait(PATIENCE_SECONDS)
    errors: list[EngineFault] = []

    def submit() -> None:
        stream = Stream(worker, counting(0, 9))
        with pytest.raises(EngineFault) as caught:
            drained(stream)
        errors.append(caught.value)

    others = [in_thread(submit) for _ in range(3)]
    while worker._loop._inbox.qsize() < len(others):
        threading.Event().wait(0.001)
    core.on_step = lambda: breaking() if len(core.batches) == 2 else None
    gate.release(2)
    with pytest.raises(EngineFault) as caught:
        drained(first)
    for join in others:
        join()
    errors.append(caught.value)
    assert len({id(error) for error in errors}) == 4
    assert len({id(error.__cause__) for error in errors}) == 1


def test_an_engine_that_cannot_be_mended_is_closed_and_says_why() -> None:
    core = FakeCore()
    core.on_step = core.on_reset = breaking
    worker = Worker(core)
    with pytest.raises(EngineFault, match="out of order"):
        drained(Stream(worker, counting(0, 9)))
    worker._thread.join(PATIENCE_SECONDS)
    with pytest.raises(EngineClosed, match="broke down and is closed: out of order") as caught:
        Stream(worker, counting(0, 9))
    assert isinstance(caught.value.__cause__, Broken)


def test_an_engine_whose_card_is_lost_is_closed_without_another_try() -> None:
    def lost() -> None:
        raise DeviceLost("the card cuda:0 is lost to this process")

    core = FakeCore()
    core.on_step = lost
    resets: list[None] = []
    core.on_reset = lambda: resets.append(None)
    worker = Worker(core)
    assert worker.fault is None
    with pytest.raises(EngineFault, match="cuda:0 is lost"):
        drained(Stream(worker, counting(0, 9)))
    worker._thread.join(PATIENCE_SECONDS)
    with pytest.raises(EngineClosed, match="cuda:0 is lost"):
        Stream(worker, counting(0, 9))
    assert isinstance(worker.fault, DeviceLost)
    assert not resets


def test_a_reset_that_leaves_work_is_none() -> None:
    core = FakeCore()
    core.on_step, core.on_reset = breaking, lambda: None
    worker = Worker(core)
    with pytest.raises(EngineFault, match="out of order"):
        drained(Stream(worker, counting(0, 9)))
    worker._thread.join(PATIENCE_SECONDS)
    with pytest.raises(EngineClosed, match="out of order"):
        Stream(worker, counting(0, 9))


def test_a_request_that_the_core_loses_fails_instead_of_hanging() -> None:
    core = FakeCore()
    core.on_step = core.running.clear
    worker = Worker(core)
    with pytest.raises(EngineFault, match="no work is left and 1 requests have no end"):
        drained(Stream(worker, counting(0, 9)))
    core.on_step = lambda: None
    assert drained(Stream(worker, counting(3, 2))).token_ids == (3, 4)


def test_an_output_of_a_request_that_is_gone_is_passed_over() -> None:
    """As where its event loop was closed between two outputs of one step."""
    core = FakeCore()
    step = core.step
    core.step = lambda: [Output(99, GenerationStep((1,), b"")), *step()]  # type: ignore[method-assign]
    assert drained(Stream(Worker(core), counting(3, 2))).token_ids == (3, 4)


def test_a_fault_while_a_request_is_taken_is_its_own_alone() -> None:
    core = FakeCore()
    worker = Worker(core)
    other = Stream(worker, counting(0, 10**9))
    core.on_add = breaking
    with pytest.raises(EngineFault, match="cannot take this request: Broken: out of order") as caught:
        Stream(worker, counting(1, 1))
    assert isinstance(caught.value.__cause__, Broken)
    assert next(other).token_ids == (0,)
    assert running(worker) == {0}


def test_a_fault_while_a_request_is_taken_back_ends_the_others_too() -> None:
    core = FakeCore()
    core.on_cancel = breaking
    worker = Worker(core)
    streams = [Stream(worker, counting(0, 10**9)) for _ in range(2)]
    streams[0].close()
    with pytest.raises(EngineFault, match="out of order"):
        drained(streams[1])
    assert running(worker) == set()


def test_a_drafter_that_waits_for_the_engine_fails_instead_of_hanging() -> None:
    core = FakeCore()
    worker = Worker(core)
    core.on_step = lambda: worker.call(FakeCore.has_pending_work).result(0)
    with pytest.raises(EngineFault, match="runs inside the engine"):
        drained(Stream(worker, counting(0, 9)))


def test_closing_ends_what_runs_and_what_comes() -> None:
    core = FakeCore(gate := threading.Semaphore(0))
    worker = Worker(core)
    stream = Stream(worker, counting(0, 10**9))
    assert core.stepping.wait(PATIENCE_SECONDS)
    behind = worker.call(lambda core: "it came before the end")
    worker.close(0.0)  # which does not wait for the step
    closers = [in_thread(lambda: worker.close(PATIENCE_SECONDS)) for _ in range(3)]
    with pytest.raises(EngineClosed, match="takes no more requests"):
        Stream(worker, counting(0, 1))
    gate.release()  # one step, and no more
    for join in closers:
        join()
    assert not worker._thread.is_alive()
    assert behind.result(0) == "it came before the end"
    assert next(stream).token_ids == (0,)
    with pytest.raises(EngineClosed, match="takes no more requests"):
        next(stream)
    with pytest.raises(EngineClosed):
        worker.call(FakeCore.has_pending_work)
    worker.close()


def test_a_call_that_the_end_overtakes_is_answered() -> None:
    """The end comes from a fault, so the gate of the inbox was still open for it."""
    core = FakeCore(gate := threading.Semaphore(0))
    core.on_step = core.on_reset = breaking
    worker = Worker(core)
    stream = Stream(worker, counting(0, 9))
    assert core.stepping.wait(PATIENCE_SECONDS)
    futures = [worker.call(lambda core: None) for _ in range(3)]
    futures[1].cancel()
    gate.release()
    with pytest.raises(EngineFault):
        drained(stream)
    for future in (futures[0], futures[2]):
        with pytest.raises(EngineClosed, match="out of order"):
            future.result(PATIENCE_SECONDS)


def test_an_idle_worker_sleeps() -> None:
    core = FakeCore()
    worker = Worker(core)
    drained(Stream(worker, counting(0, 5)))
    looks = [worker.call(lambda core: core.num_looks).result(PATIENCE_SECONDS) for _ in range(50)]
    assert max(after - before for before, after in pairwise(looks)) <= 4


def test_a_worker_that_nobody_holds_stops_and_is_freed() -> None:
    core = FakeCore()
    worker = Worker(core)
    thread, watched = worker._thread, weakref.ref(core)
    stream = Stream(worker, counting(0, 10**9))
    del worker, core
    next(stream)  # a stream needs its worker
    assert thread.is_alive()
    del stream
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert watched() is None


EXITING = """
import time
from engine.worker import Stream
from engine.worker import Worker
from tests.engine.fake_core import FakeCore, counting

class SlowToFree(FakeCore):
    def __del__(self):
        time.sleep(0.3)
        print("freed")

def main():
    stream = Stream(Worker(SlowToFree()), counting(0, 10**9))
    print(next(stream).token_ids)
    return stream
"""


@pytest.mark.parametrize("end", ["kept = main()", "main()"])
def test_the_interpreter_ends_while_a_request_runs_and_waits_for_the_thread(end: str) -> None:
    """A thread that frees tensors while the interpreter goes away aborts the process."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXITING + end], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    freed = "" if end.startswith("kept") else "freed\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "(0,)\n" + freed, "")


def test_the_interpreter_closes_what_is_open_before_it_ends() -> None:
    look = "import atexit; atexit.register(lambda: print(kept._worker._thread.is_alive()))\n"
    done = subprocess.run(
        [sys.executable, "-c", look + EXITING + "kept = main()"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout.splitlines()[:2] == ["(0,)", "False"]


Plan = tuple[int, str, int]


def plans(ways: list[str]) -> st.SearchStrategy[list[Plan]]:
    """Requests of one caller: how many tokens, how it deals with it, and after how many steps."""
    return st.lists(st.tuples(st.integers(1, 30), st.sampled_from(ways), st.integers(0, 12)), max_size=6)


def follow(worker: Worker[FakeCore], plan: Plan, first: int) -> None:
    num_tokens, way, num_read = plan
    stream = Stream(worker, counting(first, num_tokens))
    if way == "read":
        assert drained(stream).token_ids == tuple(range(first, first + num_tokens))
        return
    for _ in range(min(num_read, num_tokens)):
        next(stream)
    if way == "close":
        stream.close()
    elif way == "cancel":
        stream.cancel()
        with suppress(Cancelled):
            assert drained(stream).token_ids == tuple(range(first, first + num_tokens))


async def follow_async(worker: Worker[FakeCore], plan: Plan, first: int) -> None:
    num_tokens, way, num_read = plan
    stream = await AsyncStream.open(worker, counting(first, num_tokens))
    if way == "read":
        assert (await drained_async(stream)).token_ids == tuple(range(first, first + num_tokens))
        return
    for _ in range(min(num_read, num_tokens)):
        await anext(stream)
    if way == "close":
        await stream.aclose()
    elif way == "cancel":
        task = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


WAYS = ["read", "read", "close", "drop", "cancel"]


@settings(max_examples=25)
@given(
    st.lists(plans(WAYS), max_size=8),
    st.lists(plans(WAYS), max_size=8),
    st.one_of(st.none(), st.integers(1, 60)),
    st.integers(0, 99),
)
def test_any_number_of_callers_come_and_go(
    threads: list[list[Plan]], tasks: list[list[Plan]], fault_at: int | None, seed: int
) -> None:
    core = FakeCore()
    worker = Worker(core)
    shuffled = random.Random(seed)

    def step() -> None:
        if fault_at is not None and len(core.batches) % 60 == fault_at:
            raise Broken

    core.on_step = step

    def caller(own: list[Plan]) -> None:
        for number, plan in enumerate(own):
            try:
                follow(worker, plan, number * 100)
            except EngineFault:
                assert fault_at is not None

    async def task(own: list[Plan]) -> None:
        for number, plan in enumerate(own):
            try:
                await follow_async(worker, plan, number * 100)
            except EngineFault:
                assert fault_at is not None

    async def all_tasks() -> None:
        await asyncio.gather(*map(task, tasks))

    work: list[Any] = [lambda own=own: caller(own) for own in threads]
    work.append(lambda: asyncio.run(all_tasks()))
    shuffled.shuffle(work)
    for join in [in_thread(one) for one in work]:
        join()
    gc.collect()
    assert running(worker) == set()
    assert worker.call(lambda core: worker._loop._tickets).result(PATIENCE_SECONDS) == {}
    if fault_at is None:
        assert sorted(core.finished + core.cancelled) == core.added
    worker.close(PATIENCE_SECONDS)
    assert not worker._thread.is_alive()
