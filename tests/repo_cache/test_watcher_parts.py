"""Parts of the watcher that need no file events: batches of changes, and the list of mounts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from repo_cache.debouncer import Debouncer
from repo_cache.fallback_watchers import find_remote_file_system
from repo_cache.types import Batch, Notice, NoticeKind

# A batch is due when changes pause, or have gone on for long; it holds each path once.


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


# Network mounts are recognised by the kernel's list of mounts.


MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /home/me/far rw,relatime shared:9 master:2 - nfs4 server:/home rw,vers=4.2
31 30 0:31 / /home/me/far/near rw - tmpfs tmpfs rw
32 22 0:32 / /mnt/my\040files rw - fuse.sshfs me@host:/ rw
33 22 0:33 / /var/layers rw - fuse.fuse-overlayfs overlay rw
34 22 0:34 / /work/shared rw - 9p host rw
35 22 0:35 / /srv rw - nfs server:/srv rw
36 35 0:36 / /srv rw - ext4 /dev/vdb rw
""".strip()


@pytest.mark.parametrize(
    ("root", "kind"),
    [
        ("/home/me/project", None),
        ("/home/me/far/project", "nfs4"),
        ("/home/me/far", "nfs4"),
        ("/home/me/farther", None),
        ("/home/me/far/near/project", None),
        ("/mnt/my files/project", "fuse.sshfs"),
        ("/var/layers/project", None),
        ("/work", "9p"),
        ("/srv/project", None),
    ],
)
def test_the_mount_that_a_workspace_lies_on_or_holds_decides(tmp_path: Path, root: str, kind: str | None) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert find_remote_file_system(Path(root), tmp_path / "mountinfo") == kind


def test_a_system_without_such_a_list_has_no_network_mounts(tmp_path: Path) -> None:
    assert find_remote_file_system(Path("/"), tmp_path / "none") is None
