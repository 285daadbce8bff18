"""RepoCache on real folders: it knows what is there, also for threads, coroutines and slow readers."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from repo_cache import indexer
from repo_cache.cache import RepoCache
from repo_cache.errors import CacheClosed, ForeignSnapshot, NotCached, RepoCacheError, RootError
from repo_cache.indexer import IndexProgress
from repo_cache.subscriptions import Update
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import Batch, Notice, NoticeKind
from tests.models import RealModel
from tests.repo_cache.test_tokenizer import tiny_vocabulary

CODE = "".join(
    f"def function_{number}(argument):\n    value = argument + {number}\n    return value * 2\n\n\n"
    for number in range(40)
)
WAIT_SECONDS = 30
"""Until a test that waits for something gives up."""


@pytest.fixture
def tokenizer(smollm2: RealModel) -> BPETokenizer:
    return smollm2.tokenizer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    write(folder, "src/a.py", CODE)
    write(folder, "src/deep/b.py", "x = 1\n")
    write(folder, "README.md", "# Title\n\nText.\n")
    write(folder, "empty.txt", "")
    return folder


@pytest.fixture
def opened(root: Path, tokenizer: BPETokenizer) -> Iterator[Callable[..., RepoCache]]:
    caches = []

    def open_cache(**options: Any) -> RepoCache:
        caches.append(RepoCache.open(root, tokenizer, **({"watch": False} | options)))
        return caches[-1]

    yield open_cache
    for cache in caches:
        if not cache.is_closed:
            cache.check_integrity()
        cache.close()


Opened = Callable[..., RepoCache]


def write(root: Path, path: str, text: str | bytes) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)


def eventually(condition: Callable[[], object]) -> None:
    """Wait for it; fails after a long while."""
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def kinds(cache: RepoCache, since: Any) -> list[tuple[str, str]]:
    return [(change.path, change.kind) for change in cache.changes(since).files]


def test_it_holds_the_tokens_of_every_text_file(opened: Opened, root: Path, tokenizer: BPETokenizer) -> None:
    snapshot = opened().snapshot()
    assert list(snapshot) == ["README.md", "empty.txt", "src/a.py", "src/deep/b.py"]
    for path, tokens in snapshot.items():
        data = (root / path).read_bytes()
        assert tokens.token_ids.tolist() == tokenizer.encode(data.decode())
        assert tokens.content_hash == sha256(data).hexdigest()
        assert not tokens.token_ids.flags.writeable
        tokens.spans.check_integrity(len(tokens))
    assert snapshot.num_tokens == sum(len(tokens) for tokens in snapshot.values())
    assert snapshot.fingerprint == tokenizer.fingerprint


def test_an_edit_costs_what_it_changed_and_equals_a_fresh_look(opened: Opened, root: Path) -> None:
    cache = opened()
    first = cache.snapshot()
    with cache.subscribe() as updates:
        for number in range(5):
            write(root, "src/a.py", CODE.replace("function_20", f"function_20_{'x' * number}"))
            cache.refresh(["src/a.py"])
            update = updates.get(0)
            assert update is not None
            assert 0 < update.num_encoded < len(cache.tokens("src/a.py")) // 4
            assert update.encoded.keys() == {"src/a.py"}
            (change,) = update.changes
            assert (change.path, change.kind) == ("src/a.py", "modified")
            assert change.before is not None
            assert change.spans.num_kept >= len(change.before.spans) - 3 > 5
            assert 1 <= len(change.spans.changed) + len(change.spans.new) <= 4
    last = cache.snapshot()
    assert last == opened().snapshot()
    assert last["src/deep/b.py"] is first["src/deep/b.py"]
    assert last.version == first.version + 5
    assert [change.path for change in last.changes(first)] == ["src/a.py"]


def test_a_snapshot_stays_as_it_was(opened: Opened, root: Path) -> None:
    cache = opened()
    old = cache.snapshot()
    ids = {path: tokens.token_ids.tolist() for path, tokens in old.items()}
    write(root, "src/a.py", "other\n")
    (root / "README.md").unlink()
    write(root, "new.py", "new\n")
    cache.refresh()
    assert {path: tokens.token_ids.tolist() for path, tokens in old.items()} == ids
    assert kinds(cache, old) == [("README.md", "removed"), ("new.py", "added"), ("src/a.py", "modified")]


def test_nothing_changed_is_the_same_snapshot(opened: Opened, root: Path) -> None:
    cache = opened()
    before = cache.snapshot()
    os.utime(root / "src/a.py")
    assert cache.refresh() is before
    assert cache.refresh(["src/a.py", "no/such.py"]) is before
    assert not cache.changes(before)


def test_spans_cut_when_asked_for_equal_those_cut_with_the_edit(opened: Opened, root: Path) -> None:
    cache = opened()
    write(root, "src/a.py", CODE.replace("value", "result", 3))
    eager = cache.refresh(["src/a.py"])["src/a.py"]
    assert eager._spans is not None
    lazy = opened().snapshot()["src/a.py"]
    assert lazy._spans is None
    assert lazy.spans == eager.spans


@pytest.mark.parametrize("few", [0, 100], ids=["in bulk", "one by one"])
def test_equal_contents_share_their_tokens(
    opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(indexer, "FEW_FILES", few)
    for number in range(5):
        write(root, f"copy{number}.py", CODE)
    cache = opened()
    snapshot = cache.snapshot()
    assert len({id(snapshot[f"copy{number}.py"]) for number in range(5)} | {id(snapshot["src/a.py"])}) == 1
    write(root, "again.py", CODE)
    with cache.subscribe() as updates:
        assert cache.refresh(["again.py"])["again.py"] is snapshot["src/a.py"]
        update = updates.get(0)
    assert update is not None
    assert update.num_encoded == 0


def test_renames_are_seen_by_content_and_by_what_most_of_it_is(opened: Opened, root: Path) -> None:
    cache = opened()
    before = cache.snapshot()
    (root / "src/deep/b.py").rename(root / "c.py")
    (root / "src/a.py").unlink()
    write(root, "src/z.py", CODE + "more = 1\n")
    write(root, "unrelated.py", "import nothing\n")
    cache.refresh()
    changes = {change.path: change for change in cache.changes(before)}
    assert {path: (change.kind, change.old_path) for path, change in changes.items()} == {
        "c.py": ("renamed", "src/deep/b.py"),
        "src/z.py": ("renamed", "src/a.py"),
        "unrelated.py": ("added", None),
    }
    assert changes["src/z.py"].spans.num_kept >= len(before["src/a.py"].spans) - 1 > 5
    back = before.changes(cache.snapshot())
    assert {change.path: change.kind for change in back} == {
        "src/deep/b.py": "renamed",
        "src/a.py": "renamed",
        "unrelated.py": "removed",
    }


def test_many_renames_are_compared_by_content_only(opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repo_cache.snapshot.MAX_COMPARED", 0)
    cache = opened()
    before = cache.snapshot()
    (root / "src/a.py").unlink()
    (root / "README.md").unlink()
    write(root, "z.py", CODE + "1\n")
    write(root, "y.md", "# Title\n\nText.\n")
    cache.refresh()
    assert kinds(cache, before) == [("src/a.py", "removed"), ("y.md", "renamed"), ("z.py", "added")]


def test_a_snapshot_of_another_folder_or_tokenizer_is_refused(
    opened: Opened, tmp_path: Path, tokenizer: BPETokenizer, root: Path
) -> None:
    cache = opened()
    small = BPETokenizer.from_gguf(tiny_vocabulary())
    (tmp_path / "other").mkdir()
    for folder, other in ((tmp_path / "other", tokenizer), (root, small)):
        with RepoCache.open(folder, other, watch=False) as foreign, pytest.raises(ForeignSnapshot, match="another"):
            cache.changes(foreign.snapshot())


def test_a_snapshot_of_an_earlier_cache_of_the_same_folder_is_compared_by_content(opened: Opened, root: Path) -> None:
    before = opened().snapshot()
    write(root, "src/a.py", "changed\n")
    assert kinds(opened(), before) == [("src/a.py", "modified")]


@pytest.mark.parametrize(
    ("path", "data", "said"),
    [
        ("a.bin", b"\0\1\2", "binary"),
        ("latin.py", "é".encode("latin-1"), "UTF-8"),
        ("bell.py", b"\x06", "no token for the byte 0x06"),
        ("large.py", b"x" * 5000, "large"),
        ("absent.py", None, "not in the workspace"),
    ],
)
def test_a_file_without_tokens_says_why(opened: Opened, root: Path, path: str, data: bytes | None, said: str) -> None:
    if data is not None:
        write(root, path, data)
    cache = opened(max_file_bytes=4999)
    with pytest.raises(NotCached, match=said) as caught:
        cache.tokens(path)
    assert caught.value.path == path
    assert (path in cache.snapshot().skipped) == (data is not None)
    write(root, path, "text\n")
    assert len(cache.refresh([path])[path]) > 0
    assert path not in cache.snapshot().skipped
    assert cache.tokens(path) is cache.snapshot()[path]


def test_one_file_that_cannot_be_encoded_costs_the_others_nothing(
    opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "FEW_FILES", 0)
    for number in range(10):
        write(root, f"{number}.py", "x\x06" if number == 4 else f"x = {number}\n")
    snapshot = opened().snapshot()
    assert list(snapshot.skipped) == ["4.py"]
    assert len(snapshot) == 13


def test_a_file_that_becomes_binary_is_a_removal_and_the_reason_is_kept(opened: Opened, root: Path) -> None:
    cache = opened()
    before = cache.snapshot()
    write(root, "src/a.py", b"\0")
    cache.refresh()
    assert kinds(cache, before) == [("src/a.py", "removed")]
    assert cache.snapshot().skipped["src/a.py"] == "binary"
    after = cache.snapshot()
    assert cache.refresh() is after


def test_include_exclude_and_gitignore(opened: Opened, root: Path) -> None:
    write(root, ".gitignore", "deep/\n")
    assert "src/deep/b.py" not in opened().snapshot()
    assert "src/deep/b.py" in opened(use_git=False).snapshot()
    assert list(opened(include=["*.md"]).snapshot()) == ["README.md"]
    assert "README.md" not in opened(exclude=["*.md"]).snapshot()


@pytest.mark.parametrize("how", [[".gitignore"], None], ids=["that file", "all"])
def test_a_changed_gitignore_changes_what_is_in(opened: Opened, root: Path, how: list[str] | None) -> None:
    cache = opened()
    write(root, ".gitignore", "src/\n")
    assert sorted(cache.refresh(how)) == [".gitignore", "README.md", "empty.txt"]
    write(root, ".gitignore", "")
    assert "src/deep/b.py" in cache.refresh(how)


def test_folders_may_be_asked_for(opened: Opened, root: Path) -> None:
    cache = opened()
    (root / "src").rename(root / "lib")
    assert sorted(cache.refresh(["src", "lib"])) == ["README.md", "empty.txt", "lib/a.py", "lib/deep/b.py"]
    assert cache.snapshot() == opened().snapshot()


def test_a_link_follows_what_it_stands_for(opened: Opened, root: Path) -> None:
    (root / "link.py").symlink_to("src/deep/b.py")
    cache = opened()
    before = cache.snapshot()
    assert before["link.py"] is before["src/deep/b.py"]
    write(root, "src/deep/b.py", "x = 2\n")
    after = cache.refresh(["src/deep/b.py"])
    assert after["link.py"] is after["src/deep/b.py"]
    assert kinds(cache, before) == [("link.py", "modified"), ("src/deep/b.py", "modified")]


def test_a_link_is_looked_at_again_when_what_it_names_comes_or_goes(opened: Opened, root: Path) -> None:
    """Nothing happens to the link itself, and what it led to before tells nothing."""
    (root / "later.py").symlink_to("src/new.py")
    (root / "chain.py").symlink_to("later.py")
    (root / "through.py").symlink_to("folder/b.py")
    cache = opened()
    write(root, "src/new.py", "new = 1\n")
    after = cache.refresh(["src/new.py"])
    assert after["later.py"] is after["chain.py"] is after["src/new.py"]
    (root / "folder").symlink_to("src/deep")
    assert "through.py" in cache.refresh(["folder"])
    (root / "later.py").unlink()
    (root / "later.py").symlink_to("src/deep/b.py")
    after = cache.refresh(["later.py"])
    assert after["chain.py"] is after["src/deep/b.py"]
    (root / "src/new.py").unlink()
    assert cache.refresh(["src/new.py"]) == opened().snapshot()


def test_a_write_that_the_stat_does_not_show_is_seen_by_the_next_look(opened: Opened, root: Path) -> None:
    path = root / "src/deep/b.py"
    cache = opened()
    for number in range(20):
        before = path.stat()
        write(root, "src/deep/b.py", f"x = {number % 10}\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        cache.refresh()
        assert cache.tokens("src/deep/b.py").content_hash == sha256(path.read_bytes()).hexdigest()


def test_a_warm_start_reads_no_file_and_is_the_same(
    opened: Opened, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "bin", b"\0")
    for path in root.rglob("*"):
        os.utime(path, (1e9, 1e9))
    first = opened(store=tmp_path / "store")
    monkeypatch.setattr("repo_cache.files.is_settled", lambda *_: True)
    monkeypatch.setattr(indexer, "is_settled", lambda *_: True)
    first.refresh()
    expected = first.snapshot()
    first.close()
    read: list[str] = []
    monkeypatch.setattr(indexer, "read_file", lambda _, path, **__: read.append(path))
    again = opened(store=tmp_path / "store")
    assert read == []
    assert again.snapshot() == expected
    assert again.notices == ()


def test_a_warm_start_after_changes_is_what_is_there(opened: Opened, root: Path, tmp_path: Path) -> None:
    with opened(store=tmp_path / "store") as first:
        first.refresh()
    write(root, "src/a.py", CODE + "\n")
    (root / "README.md").unlink()
    write(root, "new.py", CODE)
    assert opened(store=tmp_path / "store").snapshot() == opened().snapshot()


def test_a_store_that_cannot_be_had_is_a_notice(opened: Opened, root: Path) -> None:
    cache = opened(store=root / "README.md" / "store")
    assert len(cache.snapshot()) == 4
    assert [notice.kind for notice in cache.notices] == [NoticeKind.STORE]


def test_indexing_tells_how_far_it_is(opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "FEW_FILES", 0)
    monkeypatch.setattr(indexer, "CHUNK_BYTES", 100)
    told: list[IndexProgress] = []
    opened(progress=told.append)
    assert len(told) > 1
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert told[-1] == IndexProgress(4, 4, size, size)


@pytest.mark.parametrize("name", ["absent", "workspace/README.md", "loop"])
def test_what_is_no_folder_is_refused(tmp_path: Path, root: Path, tokenizer: BPETokenizer, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RootError, match=Path(name).name):
        RepoCache.open(tmp_path / name, tokenizer)
    assert root.is_dir()


def test_a_folder_that_cannot_be_read_is_refused(
    root: Path, tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(RootError, match="cannot be read: Permission denied"):
        RepoCache.open(root, tokenizer)


def test_after_closing_the_snapshot_remains_and_the_rest_says_so(opened: Opened) -> None:
    cache = opened(watch=True)
    subscription = cache.subscribe()
    cache.close()
    cache.close()
    assert len(cache.snapshot()) == 4
    assert subscription.is_closed
    assert subscription.get() is None
    for use in (cache.refresh, lambda: cache.refresh(["a"]), cache.subscribe):
        with pytest.raises(CacheClosed):
            use()
    assert issubclass(CacheClosed, RepoCacheError)


def test_closing_ends_the_threads(opened: Opened) -> None:
    before = set(threading.enumerate())
    cache = opened(watch=True, store=None)
    cache.subscribe(lambda _: None)
    assert set(threading.enumerate()) > before
    cache.close()
    eventually(lambda: set(threading.enumerate()) <= before)


def test_what_is_written_is_seen_without_asking(opened: Opened, root: Path) -> None:
    cache = opened(watch=True)
    with cache.subscribe() as updates:
        write(root, "src/a.py", CODE + "# end\n")
        update = updates.get(WAIT_SECONDS)
        assert update is not None
        assert [change.path for change in update.changes] == ["src/a.py"]
    eventually(lambda: cache.snapshot() == opened().snapshot())


def test_lost_events_are_made_good_by_the_look_at_everything(opened: Opened, root: Path) -> None:
    cache = opened(watch=True, rescan_seconds=0.1)
    assert cache._watcher is not None
    cache._watcher.stop()
    write(root, "src/new.py", "unseen = 1\n")
    eventually(lambda: "src/new.py" in cache.snapshot())


def test_the_look_at_everything_comes_however_much_is_told_of(opened: Opened, root: Path) -> None:
    cache = opened(watch=True, rescan_seconds=0.2)
    assert cache._watcher is not None
    cache._watcher.stop()
    write(root, "src/new.py", "unseen = 1\n")

    def told_of_another() -> bool:
        cache._on_batch(Batch(frozenset({"src/a.py"})))
        return "src/new.py" in cache.snapshot()

    eventually(told_of_another)


def test_a_fault_between_reading_and_the_snapshot_loses_nothing(
    opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened()

    def fail(*_: Any) -> Any:
        raise MemoryError("of the test")

    monkeypatch.setattr("repo_cache.files.is_settled", lambda *_: True)
    write(root, "src/a.py", "x = 7\n")
    with monkeypatch.context() as patch:
        patch.setattr(indexer, "make_next_snapshot", fail)
        with pytest.raises(MemoryError):
            cache.refresh()
    cache.refresh()
    assert cache.tokens("src/a.py").content_hash == sha256(b"x = 7\n").hexdigest()


def test_a_rescan_that_the_watcher_asks_for_is_made(opened: Opened, root: Path) -> None:
    cache = opened(watch=True)
    assert cache._watcher is not None
    cache._watcher.stop()
    write(root, "src/new.py", "unseen = 1\n")
    notice = Notice(NoticeKind.OVERFLOW, "events were lost")
    with cache.subscribe() as updates:
        cache._on_batch(Batch(rescan=True, notices=(notice,)))
        eventually(lambda: "src/new.py" in cache.snapshot())
        update = updates.get(0)
    assert update is not None
    assert update.notices == cache.notices == (notice,)


def test_too_many_paths_at_once_are_a_look_at_everything(
    opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repo_cache.cache.MAX_PATHS", 3)
    cache = opened(watch=True)
    assert cache._watcher is not None
    cache._watcher.stop()
    write(root, "other.py", "not named\n")
    cache._on_batch(Batch(frozenset("abcd")))
    eventually(lambda: "other.py" in cache.snapshot())


def test_a_fault_in_looking_is_told_and_does_not_end_the_watching(
    opened: Opened, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repo_cache.cache.RETRY_SECONDS", 0.05)
    cache = opened(watch=True)
    real, failed = indexer.scan_paths, threading.Event()

    def fail(*arguments: Any, **options: Any) -> Any:
        if failed.is_set():
            return real(*arguments, **options)
        failed.set()
        raise MemoryError("of the test")

    monkeypatch.setattr(indexer, "scan_paths", fail)
    write(root, "src/a.py", "after the fault\n")
    eventually(lambda: cache.tokens("src/a.py").content_hash == sha256(b"after the fault\n").hexdigest())
    assert failed.is_set()
    assert [notice.kind for notice in cache.notices] == [NoticeKind.FAILED]


def test_a_slow_subscriber_gets_everything_in_one_and_holds_nobody_up(opened: Opened, root: Path) -> None:
    cache = opened()
    first = cache.snapshot()
    got: list[Update] = []
    entered, go_on = threading.Event(), threading.Event()

    def slow(update: Update) -> None:
        got.append(update)
        entered.set()
        assert go_on.wait(WAIT_SECONDS)

    cache.subscribe(slow)
    write(root, "0.py", "x = 0\n")
    cache.refresh()
    assert entered.wait(WAIT_SECONDS)
    for number in range(1, 20):
        write(root, f"{number}.py", f"y = {number}\n")
        cache.refresh()
    go_on.set()
    eventually(lambda: len(got) == 2)
    assert [len(update.changes) for update in got] == [1, 19]
    assert got[0].since is first
    assert got[1].since is got[0].snapshot
    assert got[1].snapshot is cache.snapshot()
    assert got[1].num_encoded == sum(len(change.after) for change in got[1].changes if change.after)


def test_a_subscriber_that_fails_is_logged_and_called_again(
    opened: Opened, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = opened()
    calls: list[int] = []

    def fail(update: Update) -> None:
        calls.append(update.snapshot.version)
        raise ValueError("of the test")

    cache.subscribe(fail)
    for number in range(2):
        write(root, "a.py", f"{number}\n")
        cache.refresh()
        eventually(lambda number=number: len(calls) == number + 1)
    eventually(lambda: caplog.text.count("of the test") >= 2)


def test_coroutines_read_updates_and_the_loop_goes_on(root: Path, tokenizer: BPETokenizer) -> None:
    async def watch() -> list[str]:
        seen: list[str] = []
        async with await RepoCache.open_async(root, tokenizer, watch=False) as cache:
            updates = cache.subscribe()
            for number in range(3):
                write(root, f"{number}.py", f"x = {number}\n")
                await asyncio.to_thread(cache.refresh, [f"{number}.py"])
            async for update in updates:
                seen += [change.path for change in update.changes]
                if len(seen) < 6:
                    write(root, f"{len(seen)}.py", "y = 1\n")
                    await asyncio.to_thread(cache.refresh)
                else:
                    await asyncio.to_thread(cache.close)
        return seen

    assert asyncio.run(asyncio.wait_for(watch(), WAIT_SECONDS)) == [f"{number}.py" for number in range(6)]


def test_a_coroutine_that_waits_ends_when_the_cache_closes(root: Path, tokenizer: BPETokenizer) -> None:
    async def watch() -> int:
        cache = await RepoCache.open_async(root, tokenizer, watch=False)

        async def count() -> int:
            return len([update async for update in cache.subscribe()])

        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        await asyncio.to_thread(cache.close)
        return await counting

    assert asyncio.run(asyncio.wait_for(watch(), WAIT_SECONDS)) == 0


def test_threads_that_write_read_and_refresh_at_once(opened: Opened, root: Path) -> None:
    cache = opened(watch=True, debounce_seconds=0.01, rescan_seconds=0.05)
    stop = threading.Event()

    def writer(name: str) -> None:
        for number in range(40):
            path = f"{name}/{number % 5}.py"
            write(root, path, CODE[: 40 * number])
            gone = number % 7 == 3
            if gone:
                (root / path).unlink()
            assert (path in cache.refresh([path])) != gone, "one's own writes are seen"

    def reader() -> None:
        seen = cache.snapshot()
        while not stop.is_set():
            snapshot = cache.snapshot()
            assert snapshot.version >= seen.version
            for change in snapshot.changes(seen):
                assert change.before is seen.get(change.old_path or change.path)
                assert change.after is snapshot.get(change.path)
                assert change.after is None or change.after.spans.num_tokens == len(change.after)
            seen = snapshot

    def follower() -> None:
        with cache.subscribe() as updates:
            while not stop.is_set():
                updates.get(0.01)

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(work) for work in (reader, reader, follower)]
        writers = [pool.submit(writer, name) for name in ("u", "v", "w")]
        try:
            for future in writers:
                future.result()
        finally:
            stop.set()
        for future in readers:
            future.result()
    assert cache.refresh() == opened().snapshot()
