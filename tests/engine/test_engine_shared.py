"""Requests that run together give what each gives alone: drafted, sampled, cancelled, preempted, from any caller."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.engine import Engine
from engine.errors import Cancelled, DeadlineExceeded, DoesNotFit, EngineClosed, QueueFull
from engine.types import GenerationRequest, GenerationResult
from tests.engine.cores import PROMPT, Oracle, RandomDraft, requests
from tests.engine.fake_core import drained
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_decoder, tiny_engine, tiny_limits

LONG = GenerationRequest(prompt=PROMPT, max_new_tokens=200)


def small_pool(num_pages: int = 20) -> Engine:
    """Pages of 4 tokens for little more than one of the requests; small chunks, so that prompts mix with decodes."""
    limits = tiny_limits(80, max_batched_tokens=24, prefill_beside_decodes=5, max_num_seqs=6)
    decoder = tiny_decoder()
    one = 2 * decoder.config.num_layers * 4 * decoder.config.num_kv_heads * decoder.config.head_dim * 4
    return Engine(decoder, TOKEN_BYTES, replace(limits, kv_bytes=num_pages * one))


@settings(max_examples=25)
@given(st.lists(requests(), min_size=2, max_size=8))
def test_requests_side_by_side_give_what_each_gives_alone(
    queue: list[tuple[GenerationRequest, int | None, int]],
) -> None:
    alone = [tiny_engine().run(request) for request, _, _ in queue]
    with small_pool() as engine:
        streams = [
            engine.generate(request, RandomDraft(result.token_ids, VOCAB_SIZE, seed))
            for (request, _, seed), result in zip(queue, alone, strict=True)
        ]
        for stream, (_, num_steps, _) in zip(streams, queue, strict=True):
            if num_steps is not None:
                for _, _ in zip(range(num_steps), stream, strict=False):
                    pass
                stream.close()
        for stream, expected, (_, num_steps, _) in zip(streams, alone, queue, strict=True):
            if num_steps is None:
                assert drained(stream) == expected
        stats = engine.stats()
        assert (stats.scheduler.num_running, stats.scheduler.num_waiting, stats.kv.num_in_use) == (0, 0, 0)


def test_a_pool_too_small_for_all_preempts_and_changes_no_answer() -> None:
    queue = [GenerationRequest(prompt=[number, *PROMPT], max_new_tokens=50) for number in range(4)]
    alone = [tiny_engine().run(request) for request in queue]
    with small_pool() as engine:
        streams = [engine.generate(request) for request in queue]
        results = [drained(stream) for stream in streams]
        assert results == alone
        assert sum(result.usage.preempted for result in results) == engine.stats().scheduler.num_preempted > 0


def test_tasks_and_threads_together_get_their_own_answers() -> None:
    queue = [GenerationRequest(prompt=[number, *PROMPT], max_new_tokens=25) for number in range(8)]
    alone = [tiny_engine().run(request) for request in queue]
    engine = tiny_engine()
    results: list[GenerationResult] = []

    async def half() -> list[GenerationResult]:
        return await asyncio.gather(*(engine.arun(request, Oracle(alone[0].token_ids)) for request in queue[::2]))

    thread = threading.Thread(target=lambda: results.extend(asyncio.run(half())), daemon=True)
    thread.start()
    assert [engine.run(request) for request in queue[1::2]] == alone[1::2]
    thread.join(60)
    assert results == alone[::2]


def test_the_steps_of_an_asynchronous_stream_are_those_of_its_result() -> None:
    engine = tiny_engine()

    async def read() -> tuple[list[int], bytes, GenerationResult]:
        ids: list[int] = []
        text = b""
        async with await engine.agenerate(replace(LONG, max_new_tokens=30)) as steps:
            async for step in steps:
                ids += step.token_ids
                text += step.text
            assert steps.result is not None
            return ids, text, steps.result

    ids, text, result = asyncio.run(read())
    assert (tuple(ids), text) == (result.token_ids, result.text)
    assert result == engine.run(replace(LONG, max_new_tokens=30))


def test_what_is_taken_back_gives_its_pages_back() -> None:
    with tiny_engine() as engine:
        stream = engine.generate(LONG)
        next(stream)
        assert engine.stats().kv.num_in_use > 0
        stream.cancel()
        assert engine.stats().kv.num_in_use == 0
        with pytest.raises(Cancelled):
            drained(stream)


def test_a_queue_has_an_end() -> None:
    with Engine(tiny_decoder(), TOKEN_BYTES, tiny_limits(max_waiting=2, max_num_seqs=1)) as engine:
        held = []

        def submit(most: int) -> None:
            for _ in range(most):
                held.append(engine.generate(LONG))

        with pytest.raises(QueueFull, match="2"):
            submit(99)  # each waits for one step at most, and one request takes 200
        held[-1].close()
        submit(1)


def test_a_deadline_ends_a_request_and_not_its_neighbour() -> None:
    with tiny_engine() as engine:
        late = engine.generate(replace(LONG, deadline_s=1e-6))
        assert engine.run(LONG) == tiny_engine().run(LONG)
        with pytest.raises(DeadlineExceeded):
            drained(late)


def test_what_can_never_fit_is_refused_when_it_is_submitted() -> None:
    with small_pool(num_pages=5) as engine, pytest.raises(DoesNotFit, match="pages"):
        engine.generate(GenerationRequest(prompt=PROMPT, max_new_tokens=30))


def test_a_salt_keeps_the_cache_apart() -> None:
    with tiny_engine() as engine:
        request = GenerationRequest(prompt=PROMPT, max_new_tokens=5, salt="a")
        cached = [engine.run(each).usage.cached for each in (request, replace(request, salt="b"), request)]
        assert cached == [0, 0, len(PROMPT) - 1]
        assert engine.stats().kv.num_hits == len(PROMPT) - 1
        engine.forget_cached()
        assert engine.run(request).usage.cached == 0


def test_an_engine_that_is_left_is_closed() -> None:
    with tiny_engine() as engine:
        stream = engine.generate(LONG)
    with pytest.raises(EngineClosed):
        drained(stream)
    with pytest.raises(EngineClosed):
        engine.run(LONG)
    with pytest.raises(EngineClosed):
        engine.stats()
    engine.close()
