"""Callers of a worker, in threads and in event loops, who know what they are to get."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.types import GenerationResult
from engine.worker import AsyncStream, Stream, Worker
from tests.engine.fake_core import PATIENCE_SECONDS, FakeCore


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
