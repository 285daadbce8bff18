"""A batch comes when changes pause, or have gone on for long; it holds each thing once."""

from __future__ import annotations

import threading

import pytest

from repo_cache.debouncer import Debouncer
from repo_cache.types import Batch, Notice, NoticeKind

NOTICE = Notice(NoticeKind.OVERFLOW, "too much")


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def changes(clock: Clock) -> Debouncer:
    return Debouncer(debounce_s=0.05, max_delay_s=0.5, max_paths=4, clock=clock)


def test_nothing_is_due_while_nothing_changed(changes: Debouncer) -> None:
    assert changes.get_delay() is None
    changes.touch()
    assert changes.get_delay() is None


def test_a_batch_is_due_after_a_pause(changes: Debouncer, clock: Clock) -> None:
    changes.touch(["a"])
    clock.now += 0.04
    changes.touch(["b", "a"])
    clock.now += 0.04
    changes.touch()
    assert changes.get_delay() == pytest.approx(0.01)
    clock.now += 0.02
    assert changes.get_delay() == 0
    assert changes.take() == Batch(paths=frozenset({"a", "b"}))
    assert changes.get_delay() is None


def test_changes_without_a_pause_are_told_after_the_longest_delay(changes: Debouncer, clock: Clock) -> None:
    for _ in range(13):
        changes.touch(["a"])
        clock.now += 0.04
    assert changes.get_delay() == 0


def test_a_folder_stands_for_all_below_it_but_not_for_itself(changes: Debouncer) -> None:
    changes.touch(["a/b/c", "a"], ["a/b", "a"])
    assert changes.take() == Batch(paths=frozenset({"a"}), folders=frozenset({"a"}))
    changes.touch(["ab", "b/c"], ["a", "b/c/d"])
    assert changes.take() == Batch(frozenset({"ab", "b/c"}), frozenset({"a", "b/c/d"}))


def test_the_root_too_many_paths_and_lost_events_are_a_rescan(changes: Debouncer) -> None:
    changes.touch(["a"], [""])
    assert changes.take() == Batch(rescan=True)
    changes.touch(["a", "b", "c"], ["d", "e"])
    assert changes.take() == Batch(rescan=True)
    changes.touch(["a"])
    changes.request_rescan(NOTICE)
    changes.touch(["b"])
    assert changes.take() == Batch(rescan=True, notices=(NOTICE,))
    changes.touch(["a", "b", "c", "d"])
    assert not changes.take().rescan


def test_a_rescan_that_is_owed_comes_with_the_next_change(changes: Debouncer) -> None:
    changes.mark_rescan()
    assert changes.get_delay() is None
    changes.touch(["a"])
    assert changes.take() == Batch(rescan=True)


def test_a_notice_is_told_without_changes(changes: Debouncer) -> None:
    changes.add_notice(NOTICE)
    assert changes.take() == Batch(notices=(NOTICE,))


def test_who_waits_gets_the_batch_and_ends_with_closing() -> None:
    changes = Debouncer(debounce_s=0.001, max_delay_s=0.01)
    batches: list[Batch | None] = []
    taken = threading.Event()

    def wait() -> None:
        while batches[-1:] != [None]:
            batches.append(changes.wait())
            taken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    changes.touch(["a"])
    assert taken.wait(20)
    changes.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert batches == [Batch(paths=frozenset({"a"})), None]
