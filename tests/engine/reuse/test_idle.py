"""The queue of idle work: the newest first, never too long, and nothing for a prompt that has gone on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.reuse.idle_queue import IdleCounts, IdleQueue, IdleTask
from engine.types import GenerationRequest


def task(*prompt: int, root: bytes = b"us") -> IdleTask:
    return IdleTask(GenerationRequest(list(prompt), 1), root)


def popped(queue: IdleQueue) -> list[Sequence[int]]:
    prompts = []
    while (each := queue.pop()) is not None:
        prompts.append(each.request.prompt_ids)
    return prompts


def test_the_newest_comes_first() -> None:
    queue = IdleQueue(IdleCounts())
    for prompt in ([1], [2], [3]):
        queue.push(task(*prompt))
    assert popped(queue) == [[3], [2], [1]]
    assert queue.pop() is None


def test_the_oldest_goes_where_there_are_too_many() -> None:
    counts = IdleCounts()
    queue = IdleQueue(counts, most=2)
    for prompt in ([1], [2], [3], [4]):
        queue.push(task(*prompt))
    assert len(queue) == 2
    assert counts.dropped == 2
    assert popped(queue) == [[4], [3]]


@pytest.mark.parametrize(
    ("newer", "goes"),
    [([1, 2, 3, 4], True), ([1, 2, 9, 9, 9], True), ([1, 9, 3, 4], False), ([1, 2], True), ([9, 2, 3, 4], False)],
)
def test_a_prompt_that_has_gone_on_is_left(newer: list[int], goes: bool) -> None:
    """Half of [1, 2, 3, 4] is what the newer one has to begin with."""
    counts = IdleCounts()
    queue = IdleQueue(counts)
    queue.push(task(1, 2, 3, 4))
    queue.push(task(*newer))
    assert popped(queue) == ([newer] if goes else [newer, [1, 2, 3, 4]])
    assert counts.superseded == goes


def test_another_tenant_supersedes_nothing() -> None:
    queue = IdleQueue(IdleCounts())
    queue.push(task(1, 2, root=b"us"))
    queue.push(task(1, 2, root=b"them"))
    assert len(queue) == 2
