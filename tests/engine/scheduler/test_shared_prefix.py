"""Of many prompts that begin alike, one is computed and the others find it cached."""

from __future__ import annotations

import pytest

from engine.scheduler import SchedulerConfig, Status
from tests.engine.scheduler.loop import Loop

COMMON = list(range(100))


def loop_with(least_shared: int, page_size: int = 4, window: int | None = None) -> Loop:
    config = SchedulerConfig(
        max_batched_tokens=64, prefill_beside_decodes=32, max_num_seqs=8, max_overtaken=9, least_shared=least_shared
    )
    return Loop(config, 200, page_size, window)


def test_the_common_prefix_is_computed_once() -> None:
    loop = loop_with(least_shared=16)
    sequences = [loop.add([*COMMON, 1000 + place, 0], max_new_tokens=3) for place in range(5)]
    assert loop.step() == {sequences[0].id: 64}
    assert {each.status for each in sequences[1:]} == {Status.WAITING}
    loop.step()
    assert set(loop.step()) == {each.id for each in sequences}, "as soon as it is there"
    assert [each.num_cached_prompt for each in sequences] == [0, 100, 100, 100, 100]
    loop.drain()
    assert loop.num_run == 100 + 5 * (2 + 3 - 1)


def test_each_joins_where_it_departs() -> None:
    """It does not wait for the end of the other prompt, only for what both have."""
    loop = loop_with(least_shared=16)
    long = loop.add(COMMON * 5)
    loop.step()
    early = loop.add([*COMMON[:70], 1000, 0])
    loop.step()
    assert early.num_cached_prompt == 64, "6 more tokens are less than least_shared"
    assert long.num_pending > 300


@pytest.mark.parametrize(
    ("prompt", "root"),
    [
        ([*COMMON[:15], 1000, *COMMON], b""),  # 15 are not enough to wait for
        ([*COMMON, 1000], b"other"),
        (COMMON[:16], b""),  # its last token is run in any case
    ],
)
def test_others_do_not_wait(prompt: list[int], root: bytes) -> None:
    loop = loop_with(least_shared=16)
    loop.add(COMMON)
    other = loop.add(prompt, root=root)
    assert other.id in loop.step()


def test_a_prefix_of_one_token_more_is_waited_for() -> None:
    loop = loop_with(least_shared=16)
    first = loop.add(COMMON)
    other = loop.add(COMMON[:17])
    assert loop.step() == {first.id: 64}
    loop.step()
    assert other.num_cached_prompt == 16


def test_who_departs_from_what_is_computed_does_not_wait() -> None:
    """They begin alike, but how it goes on is cached from another one."""
    loop = loop_with(least_shared=16)
    loop.add(COMMON)
    loop.drain()
    loop.add([*COMMON[:16], *range(1000, 1500)])
    other = loop.add([*COMMON, *range(2000, 2040)])
    assert other.id in loop.step()
    assert other.num_cached_prompt == 100


def test_nobody_waits_for_a_page_that_the_other_has_computed_in_part() -> None:
    """What both have ends within a page, which is not shared while the other writes to it."""
    loop = loop_with(least_shared=16, page_size=128)
    long = loop.add(COMMON * 5)
    other = loop.add([*COMMON[:70], 1000])
    assert loop.step() == {long.id: 64}
    assert other.id in loop.step()


def test_who_waits_goes_on_when_the_other_is_removed() -> None:
    loop = loop_with(least_shared=16)
    first, second = loop.add(COMMON), loop.add([*COMMON, 1])
    loop.step()
    loop.remove(first.id)
    assert loop.step() == {second.id: 37}
    assert second.num_cached_prompt == 64
    loop.drain()


def test_behind_a_window_too() -> None:
    loop = loop_with(least_shared=16, window=20)
    first, second = loop.add(COMMON), loop.add([*COMMON, 1])
    assert loop.step() == {first.id: 64}
    loop.step()
    assert loop.step()[second.id] <= 5
    loop.drain()
