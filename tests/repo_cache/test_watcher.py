"""Real file events: saves of editors, moves and branch switches all end in the right batches."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from repo_cache import inotify
from repo_cache import watcher as watching
from repo_cache.debouncer import Debouncer
from repo_cache.fallback_watchers import ObserverSource, PollingSource
from repo_cache.files import FileContent, read_file
from repo_cache.ignore import IgnoreRules
from repo_cache.inotify import InotifySource, WatchError
from repo_cache.scan import scan, scan_paths
from repo_cache.types import Batch, NoticeKind
from repo_cache.watcher import Watcher

DEADLINE_S = 30
MARK = "mark-of-the-test"

pytestmark = pytest.mark.skipif(not Path("/proc/sys/fs/inotify").exists(), reason="there is no inotify here")


def is_polling(watcher: Watcher) -> bool:
    """Whether changes are found by walking the workspace."""
    return isinstance(watcher._sources[-1], PollingSource)


class Receiver:
    """Keeps what a watcher calls back with, and a copy of the workspace that is brought up to date by batches alone."""

    def __init__(self, root: Path) -> None:
        self.root, self.rules = root, IgnoreRules(root)
        self.batches: list[Batch] = []
        self.files: dict[str, bytes] = {}
        self._came = threading.Condition()
        self._num_marks = 0

    def __call__(self, batch: Batch) -> None:
        with self._came:
            self.batches.append(batch)
            self._take(batch)
            self._came.notify_all()

    def _take(self, batch: Batch) -> None:
        below = tuple(folder + "/" for folder in batch.folders)
        for path in list(self.files):
            if batch.rescan or path in batch.paths or path.startswith(below):
                del self.files[path]
        scans = [scan(self.root, self.rules)] if batch.rescan else []
        scans += [scan(self.root, self.rules, below=folder) for folder in batch.folders]
        scans += [scan_paths(self.root, self.rules, batch.paths)]
        for path in {path for found in scans for path in found.files}:
            content = read_file(self.root, path)
            if isinstance(content, FileContent):
                self.files[path] = content.data

    def wait(self, until: Callable[[], bool]) -> None:
        with self._came:
            assert self._came.wait_for(until, DEADLINE_S), self.batches[-5:]

    def settle(self) -> None:
        """Wait until all that was done before this call has been told.

        Each mark has a name of its own: late events of the last one must not have a batch read this one.
        """
        (self.root / f"{MARK}-{self._num_marks}").unlink(missing_ok=True)
        self._num_marks += 1
        name = f"{MARK}-{self._num_marks}"
        (self.root / name).write_text(name)
        self.wait(lambda: self.files.get(name) == name.encode())

    def told(self, act: Callable[[], object]) -> Batch:
        """Every batch that comes of an act, as one."""
        self.settle()
        with self._came:
            num_before = len(self.batches)
        act()
        self.settle()
        with self._came:
            new = self.batches[num_before:]
        paths = {path for batch in new for path in batch.paths if not path.startswith(MARK)}
        folders = {folder for batch in new for folder in batch.folders}
        notices = tuple(notice for batch in new for notice in batch.notices)
        return Batch(frozenset(paths), frozenset(folders), any(batch.rescan for batch in new), notices)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def receiver(root: Path) -> Iterator[Receiver]:
    """A receiver under a running watcher."""
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01):
        yield receiver


def paths(*expected: str) -> Batch:
    return Batch(paths=frozenset(expected))


def contents(root: Path) -> dict[str, bytes]:
    found = {path: read_file(root, path) for path in scan(root, IgnoreRules(root)).files}
    return {path: content.data for path, content in found.items() if isinstance(content, FileContent)}


def test_files_that_are_created_written_touched_moved_and_deleted_are_told(receiver: Receiver, root: Path) -> None:
    assert receiver.told(lambda: (root / "a").write_text("1")) == paths("a")
    assert receiver.told(lambda: (root / "a").write_text("2")) == paths("a")
    assert receiver.told(lambda: (root / "a").chmod(0o600)) == paths("a")
    assert receiver.told(lambda: (root / "a").rename(root / "b")) == paths("a", "b")
    assert receiver.told(lambda: (root / "b").unlink()) == paths("b")
    assert receiver.told(lambda: (root / "link").symlink_to("b")) == paths("link")


def test_reading_is_not_told(receiver: Receiver, root: Path) -> None:
    (root / "a").write_text("1")
    assert receiver.told(lambda: (root / "a").read_text()) == paths()


def test_a_write_that_stays_open_is_told(receiver: Receiver, root: Path) -> None:
    with (root / "log").open("w") as file:
        assert receiver.told(lambda: (file.write("line\n"), file.flush())) == paths("log")


def save_in_place(file: Path) -> None:
    file.write_text("in place")


def save_by_rename(file: Path) -> None:
    """As Visual Studio Code's atomic saves, and most tools."""
    temporary = file.with_name(".x.py.tmp-123")
    temporary.write_text("by rename")
    temporary.replace(file)


def save_as_vim(file: Path) -> None:
    """A probe named 4913, the old file moved to the backup, a new file, the backup deleted; a swap file all along."""
    swap, probe, backup = file.with_name(".x.py.swp"), file.with_name("4913"), file.with_name("x.py~")
    swap.write_text("swap")
    probe.touch()
    probe.unlink()
    file.rename(backup)
    file.write_text("as vim")
    backup.unlink()
    swap.unlink()


def save_as_emacs(file: Path) -> None:
    """A lock that is a dangling link, a backup by copy, and a write in place."""
    lock = file.with_name(".#x.py")
    lock.symlink_to("me@host.1:2")
    shutil.copy2(file, file.with_name("x.py~"))
    file.write_text("as emacs")
    lock.unlink()


def save_by_deleting(file: Path) -> None:
    file.unlink()
    file.write_text("half")
    file.unlink()
    file.write_text("by deleting")


@pytest.mark.parametrize(
    ("save", "beside"),
    [
        (save_in_place, set()),
        (save_by_rename, {".x.py.tmp-123"}),
        (save_as_vim, {".x.py.swp", "4913", "x.py~"}),
        (save_as_emacs, {".#x.py", "x.py~"}),
        (save_by_deleting, set()),
    ],
)
def test_each_way_in_which_editors_save_ends_in_the_new_text(
    receiver: Receiver, root: Path, save: Callable[[Path], None], beside: set[str]
) -> None:
    (root / "src").mkdir()
    file = root / "src/x.py"
    file.write_text("old")
    told = receiver.told(lambda: save(file))
    assert told == paths("src/x.py", *(f"src/{name}" for name in beside))
    assert receiver.files["src/x.py"] == file.read_bytes()
    assert {path for path in receiver.files if path.startswith("src/")} <= {"src/x.py", "src/x.py~"}


def test_a_save_is_one_batch(root: Path) -> None:
    receiver = Receiver(root)
    (root / "x.py").write_text("old")
    with Watcher(root, receiver.rules, receiver, debounce_s=0.5, max_delay_s=5):
        save_as_vim(root / "x.py")
        receiver.wait(lambda: "x.py" in receiver.files)
        assert receiver.batches == [paths("x.py", ".x.py.swp", "4913", "x.py~")]


def test_a_new_folder_is_told_with_what_is_already_in_it(receiver: Receiver, root: Path) -> None:
    def make() -> None:
        for number in range(30):
            (root / f"new/{number}/deep/er").mkdir(parents=True)
            (root / f"new/{number}/deep/er/x").write_text("x")

    assert "new" in receiver.told(make).folders
    assert len(contents(root)) > 30
    assert receiver.files == contents(root)
    assert receiver.told(lambda: (root / "new/29/deep/er/y").write_text("y")) == paths("new/29/deep/er/y")


def test_a_file_that_becomes_a_folder_at_once_is_told_and_watched(root: Path) -> None:
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01) as watcher:
        receiver.settle()
        with watcher._changes._changed:  # so that the reader finds all of it in one reading
            (root / "first").write_text("x")
            (root / "x").write_text("x")
            (root / "x").unlink()
            (root / "x").mkdir()
            (root / "x/y").write_text("y")
        receiver.settle()
        assert receiver.files == contents(root)
        assert receiver.told(lambda: (root / "x/y").write_text("z")) == paths("x/y")


def test_a_moved_folder_is_told_at_both_ends_and_watched_at_its_new_place(receiver: Receiver, root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/x").write_text("x")
    assert receiver.told(lambda: (root / "a").rename(root / "c")) == Batch(folders=frozenset({"a", "c"}))
    assert receiver.files == contents(root)
    assert receiver.told(lambda: (root / "c/b/x").write_text("y")) == paths("c/b/x")


def test_folders_that_come_from_outside_and_go_there_are_told(receiver: Receiver, root: Path, tmp_path: Path) -> None:
    (tmp_path / "far/deep").mkdir(parents=True)
    (tmp_path / "far/deep/x").write_text("x")
    assert receiver.told(lambda: (tmp_path / "far").rename(root / "near")) == Batch(folders=frozenset({"near"}))
    assert receiver.files["near/deep/x"] == b"x"
    assert receiver.told(lambda: (root / "near/deep/x").write_text("y")) == paths("near/deep/x")
    assert receiver.told(lambda: (root / "near").rename(tmp_path / "far")) == Batch(folders=frozenset({"near"}))
    assert "near/deep/x" not in receiver.files
    assert receiver.told(lambda: (tmp_path / "far/deep/x").write_text("z")) == paths()


def test_ignored_paths_are_neither_told_nor_watched(root: Path) -> None:
    (root / "node_modules/deep").mkdir(parents=True)
    (root / ".git/objects").mkdir(parents=True)
    (root / ".gitignore").write_text("node_modules/\n*.log\n")
    changes = Debouncer(debounce_s=60, max_delay_s=60)
    source = InotifySource(root, IgnoreRules(root), changes, on_failed=lambda notice: None)
    source.start()
    source.stop()
    assert set(source._watches.folders.values()) == {""}
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01):

        def act() -> None:
            for path in ["node_modules/deep/x", "node_modules/y", ".git/HEAD", "a.log"]:
                (root / path).write_text("x")
            (root / "src/node_modules/x").mkdir(parents=True)

        assert receiver.told(act) == Batch(folders=frozenset({"src"}))


def test_a_changed_gitignore_changes_what_is_told(receiver: Receiver, root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/x").write_text("x")
    assert receiver.told(lambda: (root / "a/.gitignore").write_text("b/\n")).folders == {"a"}
    assert "a/b/x" not in receiver.files
    assert receiver.told(lambda: (root / "a/b/x").write_text("y")) == paths()
    assert receiver.told(lambda: (root / "a/.gitignore").unlink()).folders == {"a"}
    assert receiver.files["a/b/x"] == b"y"
    assert receiver.told(lambda: (root / "a/b/x").write_text("z")) == paths("a/b/x")


def test_a_changed_exclude_file_is_a_rescan(root: Path) -> None:
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / "x").write_text("x")
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01):
        assert receiver.told(lambda: (root / ".git/info/exclude").write_text("x\n")).rescan
        assert "x" not in receiver.files
        assert receiver.told(lambda: (root / ".git/HEAD").write_text("ref: refs/heads/x\n")) == paths()


def test_a_branch_switch_of_thousands_of_files_is_few_batches(root: Path) -> None:
    def git(*arguments: str) -> None:
        settings = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "gc.auto=0"]
        subprocess.run(["git", *settings, *arguments], cwd=root, check=True)

    def write(text: str) -> None:
        for number in range(2000):
            file = root / f"{number % 40}/{number}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{text} {number}")

    git("init", "-q", "-b", "main")
    for branch in ["main", "other"]:
        if branch == "other":
            git("checkout", "-q", "-b", "other")
        write(branch)
        git("add", ".")
        git("commit", "-q", "-m", branch)
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver):
        git("checkout", "-q", "main")
        receiver.settle()
        assert receiver.files == contents(root)
        assert len(receiver.batches) < 40
        assert receiver.files["39/1999.py"] == b"main 1999"


def act_at_random(root: Path, draw: random.Random) -> None:
    """One step of somebody who works in the folder; what cannot be done is not."""
    names = ["a", "b", "c", "d.log", "e"]
    one, two = (root.joinpath(*draw.choices(names, k=draw.randint(1, 3))) for _ in range(2))
    rules = draw.choice(["*.log\n", "b/\n", "a/b\n!c\n", "*\n!*/\n!e\n", "!*.log\n!b/\n", ""])
    acts: list[Callable[[], object]] = [
        lambda: one.write_text(str(draw.random())),
        lambda: (one.parent.mkdir(parents=True, exist_ok=True), one.write_text(str(draw.random()))),
        lambda: one.mkdir(parents=True),
        lambda: one.rename(two),
        lambda: one.replace(two),
        lambda: one.unlink(),
        lambda: shutil.rmtree(one),
        lambda: save_by_rename(one),
        lambda: (one / ".gitignore").write_text(rules),  # never in the root, where the marks are
        lambda: one.rename(root.parent / "outside"),
        lambda: (root.parent / "outside").rename(two),
    ]
    with contextlib.suppress(OSError):
        draw.choices(acts, weights=[4, 8, 3, 4, 2, 2, 1, 3, 1, 1, 1])[0]()


def assert_batches_tell_the_whole_truth(root: Path, seed: int, num_steps: int, *, polling: bool) -> None:
    draw = random.Random(seed)
    (root / ".gitignore").write_text("*.log\n")
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.002, polling=polling, poll_interval_s=0.01) as watcher:
        receiver.files = contents(root)
        for _ in range(num_steps // 10):
            for _ in range(draw.choice([1, 2, 5, 32])):
                act_at_random(root, draw)
            if polling:  # a walk that sees the mark may have passed other files before they were written
                receiver.wait(lambda: receiver.files == contents(root))
            else:
                receiver.settle()
                assert receiver.files == contents(root)
        assert is_polling(watcher) == polling


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_kept_by_batches_is_the_workspace_after_random_work(root: Path, seed: int) -> None:
    assert_batches_tell_the_whole_truth(root, seed, num_steps=400, polling=False)


@pytest.mark.parametrize("seed", range(2))
def test_a_copy_kept_by_polling_is_the_workspace_after_random_work(root: Path, seed: int) -> None:
    assert_batches_tell_the_whole_truth(root, seed, num_steps=80, polling=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_a_copy_kept_by_batches_is_the_workspace_after_much_random_work(root: Path, seed: int) -> None:
    assert_batches_tell_the_whole_truth(root, seed, num_steps=4000, polling=False)


def test_a_queue_that_overflows_is_said_and_ends_in_a_rescan_and_right_watches(root: Path) -> None:
    """The reader stands still at the debouncer's lock while more happens than the kernel's queue holds."""
    num_moves = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 2 + 1000
    if num_moves > 100_000:
        pytest.skip("the queue is set so long that filling it takes too long")
    receiver = Receiver(root)
    (root / "a").write_text("a")
    (root / "folder").mkdir()
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01) as watcher:
        receiver.settle()
        with watcher._changes._changed:
            (root / "x").write_text("x")
            for _ in range(num_moves):
                os.rename(root / "a", root / "b")  # noqa: PTH104 -- thousands of times
                os.rename(root / "b", root / "a")  # noqa: PTH104
            (root / "folder").rename(root / "moved")
            (root / "moved/y").write_text("y")
        receiver.wait(lambda: any(batch.rescan for batch in receiver.batches))
        notice = next(notice for batch in receiver.batches for notice in batch.notices)
        assert notice.kind == NoticeKind.OVERFLOW
        assert "fs.inotify.max_queued_events" in notice.message
        receiver.settle()
        assert receiver.files == contents(root)
        assert receiver.told(lambda: (root / "moved/y").write_text("z")) == paths("moved/y")
        assert not is_polling(watcher)


def failing_after(num_calls: int, error: int, call: Callable[..., int]) -> Callable[..., int]:
    """What the C library does once a limit is reached."""
    calls = iter(range(num_calls))

    def limited(*arguments: object) -> int:
        if next(calls, None) is None:
            ctypes.set_errno(error)
            return -1
        return call(*arguments)

    return limited


@pytest.mark.parametrize("num_folders", [1, 6])  # reached while working, and at the start
def test_at_the_limit_of_watches_the_workspace_is_polled_and_the_way_out_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch, num_folders: int
) -> None:
    for number in range(num_folders):
        (root / str(number)).mkdir()
    monkeypatch.setattr(inotify, "inotify_add_watch", failing_after(5, errno.ENOSPC, inotify.inotify_add_watch))
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01, poll_interval_s=0.02) as watcher:
        for number in range(10):
            (root / f"more{number}/deep").mkdir(parents=True)
            (root / f"more{number}/deep/x").write_text("x")
        receiver.wait(lambda: any(batch.notices for batch in receiver.batches))
        receiver.wait(lambda: receiver.files == contents(root))
        assert is_polling(watcher)
        (root / "more9/deep/x").write_text("later")
        receiver.wait(lambda: receiver.files.get("more9/deep/x") == b"later")
    (notice,) = [notice for batch in receiver.batches for notice in batch.notices]
    assert notice.kind == NoticeKind.WATCH_LIMIT
    assert "sysctl fs.inotify.max_user_watches" in notice.message


def test_without_an_inotify_instance_the_workspace_is_polled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "inotify_init", failing_after(0, errno.EMFILE, inotify.inotify_init))
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01, poll_interval_s=0.02) as watcher:
        receiver.settle()
        assert is_polling(watcher)
    (notice,) = [notice for batch in receiver.batches for notice in batch.notices]
    assert notice.kind == NoticeKind.INSTANCE_LIMIT
    assert "sysctl fs.inotify.max_user_instances" in notice.message


def test_a_network_mount_is_polled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "find_remote_file_system", lambda place: "nfs4")
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01, poll_interval_s=0.02) as watcher:
        receiver.settle()
        assert is_polling(watcher)
    assert [notice.kind for batch in receiver.batches for notice in batch.notices] == [NoticeKind.NETWORK_MOUNT]


def test_a_folder_that_cannot_be_watched_is_named_once_and_the_rest_is_watched(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "open").mkdir()
    (root / "locked").mkdir()
    if os.geteuid() == 0:  # no folder is closed to root: the system's answer is played
        add = inotify.inotify_add_watch

        def refusing(descriptor: int, path: bytes, mask: int) -> int:
            if path.endswith(b"locked"):
                ctypes.set_errno(errno.EACCES)
                return -1
            return add(descriptor, path, mask)

        monkeypatch.setattr(inotify, "inotify_add_watch", refusing)
    (root / "locked").chmod(0)
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01):
        assert receiver.told(lambda: (root / "open/x").write_text("x")).paths == {"open/x"}
    (root / "locked").chmod(0o700)
    (notice,) = [notice for batch in receiver.batches for notice in batch.notices]
    assert notice.kind == NoticeKind.UNREADABLE
    assert notice.message.startswith("locked ")


def test_a_root_that_goes_is_said_and_found_again_when_it_comes_back(root: Path, tmp_path: Path) -> None:
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01, poll_interval_s=0.02):
        (root / "x").write_text("x")
        receiver.settle()
        root.rename(tmp_path / "away")
        receiver.wait(lambda: not receiver.files)
        (tmp_path / "away").rename(root)
        receiver.wait(lambda: receiver.files == contents(root) != {})
    assert [notice.kind for batch in receiver.batches for notice in batch.notices] == [NoticeKind.ROOT_GONE]


def test_a_reader_that_fails_is_replaced_by_polling(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(watches: inotify.Watches) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(inotify.Watches, "read_events", broken)
    receiver = Receiver(root)
    with Watcher(root, receiver.rules, receiver, debounce_s=0.01, poll_interval_s=0.02) as watcher:
        receiver.settle()
        assert is_polling(watcher)
    assert [notice.kind for batch in receiver.batches for notice in batch.notices] == [NoticeKind.FAILED]


def test_an_error_of_the_receiver_is_logged_and_repaired_by_a_rescan(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver, failures = Receiver(root), [ValueError("no")]

    def receive(batch: Batch) -> None:
        if failures:
            raise failures.pop()
        receiver(batch)

    with Watcher(root, receiver.rules, receive, debounce_s=0.01):
        (root / "lost").write_text("x")
        _wait_until(lambda: not failures)
        receiver.settle()
        assert receiver.files == contents(root)
    assert receiver.batches[0].rescan
    assert "a batch of changes was not processed" in caplog.text


def _wait_until(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(DEADLINE_S * 100):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("the deadline passed")


def test_a_watcher_that_stopped_calls_no_more_and_leaves_no_threads_or_descriptors(root: Path) -> None:
    num_descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    threads = set(threading.enumerate())
    receiver = Receiver(root)
    watcher = Watcher(root, receiver.rules, receiver, debounce_s=0.01)
    watcher.stop()
    watcher = Watcher(root, receiver.rules, receiver, debounce_s=0.01)
    watcher.start()
    receiver.settle()
    with pytest.raises(RuntimeError, match="starts once"):
        watcher.start()
    watcher.stop()
    watcher.stop()
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == num_descriptors  # noqa: PTH208
    num_batches = len(receiver.batches)
    (root / "later").write_text("x")
    assert len(receiver.batches) == num_batches
    with pytest.raises(RuntimeError, match="starts once"):
        watcher.start()


def test_the_receiver_may_stop_the_watcher(root: Path) -> None:
    stopped = threading.Event()
    rules = IgnoreRules(root)

    def receive(batch: Batch) -> None:
        watcher.stop()
        stopped.set()

    watcher = Watcher(root, rules, receive, debounce_s=0.01)
    watcher.start()
    (root / "x").write_text("x")
    assert stopped.wait(DEADLINE_S)
    watcher._thread.join(DEADLINE_S)
    assert not watcher._thread.is_alive()


def test_the_observer_of_other_platforms_tells_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".gitignore").write_text("*.log\n")
    receiver = Receiver(root)
    changes = Debouncer(debounce_s=0.01, max_delay_s=0.5)
    source = ObserverSource(root, receiver.rules, changes)
    source.start()
    deliver = threading.Thread(target=lambda: [receiver(batch) for batch in iter(changes.wait, None)])
    deliver.start()
    try:
        assert receiver.told(lambda: (root / "a").write_text("1")) == paths("a")
        assert receiver.told(lambda: (root / "a").rename(root / "b")) == paths("a", "b")
        assert receiver.told(lambda: (root / "a.log").write_text("1")) == paths()
        assert "new" in receiver.told(lambda: (root / "new").mkdir()).folders
        assert receiver.told(lambda: (root / ".gitignore").write_text("b\n")).rescan
        assert "a.log" in receiver.files
        assert "b" not in receiver.files
    finally:
        source.stop()
        changes.close()
        deliver.join()


def test_a_second_write_that_leaves_the_stat_as_it_was_is_found_by_polling(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one step of the clock two versions of one length have one stat; the file is told again until it is old."""
    (root / "x").write_text("x")
    changes = Debouncer(debounce_s=60, max_delay_s=60)
    source = PollingSource(root, IgnoreRules(root), changes, interval_s=60)
    source.start()
    source._poll()
    assert changes.take().paths == {"x"}
    monkeypatch.setattr("repo_cache.files.SETTLE_NS", -(10**12))
    source._poll()
    assert changes.take().paths == set()
    source.stop()


def test_a_missing_root_is_polled(tmp_path: Path) -> None:
    rules = IgnoreRules(tmp_path / "none")
    with pytest.raises(WatchError):
        InotifySource(tmp_path / "none", rules, Debouncer(debounce_s=1, max_delay_s=1), lambda notice: None).start()
    receiver = Receiver(tmp_path / "none")
    with Watcher(tmp_path / "none", rules, receiver, debounce_s=0.01, poll_interval_s=0.02):
        (tmp_path / "none").mkdir()
        receiver.settle()
