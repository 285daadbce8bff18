"""Snapshots: after any changes a refreshed one equals one made from scratch; their map of paths is a dict."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from repo_cache.cache import RepoCache
from repo_cache.snapshot import NUM_BUCKETS, PathMap, Snapshot
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens
from tests.models import real_model

# The map of paths: its copies share what did not change.


numbered_paths = st.sampled_from([f"{folder}/{name}.py" for folder in ("a", "b/c", "d") for name in range(40)])
map_changes = st.lists(
    st.tuples(st.dictionaries(numbered_paths, st.integers()), st.frozensets(numbered_paths)), max_size=6
)


@given(map_changes)
def test_it_is_a_dict_and_the_older_ones_stay_as_they_were(
    changes: list[tuple[dict[str, int], frozenset[str]]],
) -> None:
    expected: list[dict[str, int]] = [{}]
    made: list[PathMap[int]] = [PathMap()]
    for entries, removed in changes:
        kept = {path: value for path, value in expected[-1].items() if path not in removed}
        expected.append(kept | entries)
        made.append(made[-1].copy_with(entries, removed))
    for one, plain in zip(made, expected, strict=True):
        assert one == plain
        assert list(one) == sorted(plain)
        assert len(one) == len(plain)
        assert all(path in one and one[path] == plain[path] for path in plain)


@given(map_changes, map_changes)
def test_the_different_paths_are_those_of_a_whole_comparison(
    first: list[tuple[dict[str, int], frozenset[str]]], second: list[tuple[dict[str, int], frozenset[str]]]
) -> None:
    old: PathMap[int] = PathMap()
    for entries, removed in first:
        old = old.copy_with(entries, removed)
    new = old
    for entries, removed in second:
        new = new.copy_with(entries, removed)
    differ = [path for path in sorted({*old, *new}) if old.get(path) is not new.get(path)]
    assert new.find_different_paths(old) == old.find_different_paths(new) == differ


def test_a_copy_shares_the_buckets_that_did_not_change() -> None:
    old = PathMap({f"{number}.py": number for number in range(10_000)})
    new = old.copy_with({"7.py": -1}, frozenset({"8.py"}))
    changed = sum(mine is not yours for mine, yours in zip(new._buckets, old._buckets, strict=True))
    assert 1 <= changed <= 2 < NUM_BUCKETS
    assert new.copy_with({"7.py": new["7.py"]}, frozenset({"no.py"}))._buckets == new._buckets


# Random changes to a folder.


MAX_FILE_BYTES = 3000
NAMES = ["a.py", "b.py", "c.md", "d.txt", "e.js", "süß.py"]
FOLDERS = ["", "src/", "src/deep/", "src/deep/er/", "lib/"]
paths = st.builds(str.__add__, st.sampled_from(FOLDERS), st.sampled_from(NAMES))
folders = st.sampled_from([folder[:-1] for folder in FOLDERS[1:]])
JOINED = "é\u200d\U0001f469\u200d\U0001f467 12 345\n"
LINES = ["def f(x):\n", "    return x\n", "\n", "class A:\n", JOINED, "\t\t  don't\r\n", "x = '<|im_end|>'", "# 日本\n"]
AWKWARD = [b"", b"\0\1", b"\xff\xfe", b"\x06", b"x" * MAX_FILE_BYTES, b"x" * (MAX_FILE_BYTES + 1)]
lines = st.sampled_from(LINES)
texts = st.lists(lines, max_size=30).map(lambda parts: "".join(parts).encode())
data = st.one_of(texts, texts, st.sampled_from(AWKWARD))
ignores = st.sampled_from([b"", b"*.md\n", b"deep/\n", b"/a.py\n!b.py\n", b"*\n!*.py\n!*/\n"])


class CacheMachine(RuleBasedStateMachine):
    """Changes a folder in every way that a user's programs do; looks at some paths, or at all, and compares."""

    tokenizer: BPETokenizer

    def __init__(self) -> None:
        super().__init__()
        self.outside = Path(tempfile.mkdtemp(prefix="hunk-cache-"))
        self.root = self.outside / "root"
        self.root.mkdir()
        (self.outside / "a.py").write_text("outside = 1\n")
        self.touched: set[str] = set()
        self.cache = self.fresh()
        self.seen = self.cache.snapshot()

    def fresh(self) -> RepoCache:
        return RepoCache.open(self.root, self.tokenizer, watch=False, max_file_bytes=MAX_FILE_BYTES, hot_bytes=50_000)

    def teardown(self) -> None:
        self.cache.close()
        assert (self.outside / "a.py").read_text() == "outside = 1\n"
        shutil.rmtree(self.outside)

    def made(self, path: str) -> Path | None:
        """The path, with folders above it, and no link at it; None where a file or a folder stands in the way."""
        file = self.root / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        self.touched.add(path)
        if file.is_symlink():
            file.unlink()
        return None if file.is_dir() else file

    @rule(path=paths, content=data)
    def write(self, path: str, content: bytes) -> None:
        if (file := self.made(path)) is not None:
            file.write_bytes(content)

    @rule(path=paths, content=data)
    def write_beside_and_rename(self, path: str, content: bytes) -> None:
        if (file := self.made(path)) is not None:
            (beside := file.with_name(".new")).write_bytes(content)
            beside.replace(file)

    @rule(path=paths, line=lines, place=st.floats(0, 1), length=st.integers(0, 40))
    def edit(self, path: str, line: str, place: float, length: int) -> None:
        file = self.root / path
        if file.is_file() and not file.is_symlink():
            old = file.read_bytes()
            start = int(place * len(old))
            file.write_bytes(old[:start] + line.encode() + old[start + length :])
            self.touched.add(path)

    @rule(path=paths)
    def same_length_and_same_times(self, path: str) -> None:
        file = self.root / path
        if file.is_file() and not file.is_symlink():
            before = file.stat()
            file.write_bytes(file.read_bytes().swapcase())
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            self.touched.add(path)

    @rule(path=paths)
    def remove(self, path: str) -> None:
        file = self.root / path
        if file.is_file() or file.is_symlink():
            file.unlink()
            self.touched.add(path)

    @rule(path=paths, to=paths)
    def rename(self, path: str, to: str) -> None:
        if (self.root / path).is_file() and path != to and (target := self.made(to)) is not None:
            (self.root / path).replace(target)
            self.touched.add(path)

    @rule(folder=folders, to=st.sampled_from(["moved", "src/moved", "lib"]))
    def rename_folder(self, folder: str, to: str) -> None:
        source, target = self.root / folder, self.root / to
        if source.is_dir() and not target.exists() and target.parent.is_dir() and source not in target.parents:
            source.rename(target)
            self.touched |= {folder, to}

    @rule(folder=folders)
    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)
        self.touched.add(folder)

    @rule(folder=st.sampled_from(FOLDERS), content=ignores)
    def ignore(self, folder: str, content: bytes) -> None:
        if (file := self.made(f"{folder}.gitignore")) is not None:
            file.write_bytes(content)

    @rule(path=paths, to=st.sampled_from([*NAMES, "../a.py", "deep/b.py", "../../a.py", "src"]))
    def link(self, path: str, to: str) -> None:
        if (file := self.made(path)) is not None and not file.exists():
            file.symlink_to(to)

    @rule()
    def look_at_what_was_touched(self) -> None:
        if not self.has_links():
            self.compare(self.cache.refresh(self.touched))

    @rule()
    def look_at_everything(self) -> None:
        self.compare(self.cache.refresh())

    @rule()
    def start_again(self) -> None:
        self.cache.close()
        self.cache = self.fresh()
        self.compare(self.cache.snapshot())

    @invariant()
    def parts_fit(self) -> None:
        self.cache.check_integrity()

    def has_links(self) -> bool:
        """A link to a folder or a chain of links has more names than those that were touched."""
        return any(path.is_symlink() for path in self.root.rglob("*"))

    def compare(self, snapshot: Snapshot) -> None:
        with self.fresh() as scratch:
            assert dict(snapshot.skipped) == dict(scratch.snapshot().skipped)
            assert list(snapshot) == list(scratch.snapshot())
            assert snapshot == scratch.snapshot()
        assert replayed(self.seen, snapshot) == dict(snapshot)
        self.seen = snapshot
        self.touched.clear()


def replayed(old: Snapshot, new: Snapshot) -> dict[str, FileTokens]:
    """The old files with the changes made to them."""
    files = dict(old)
    for change in new.changes(old):
        if change.kind == "removed":
            assert files.pop(change.path) is change.before
        elif change.kind == "renamed":
            assert change.old_path is not None
            assert old[change.old_path] is change.before
            files.pop(change.old_path, None)
        elif change.kind == "added":
            assert change.path not in old
    for change in new.changes(old):
        if change.after is not None:
            files[change.path] = change.after
    return files


class SmallMachine(CacheMachine):
    """With SmolLM2's tokenizer, which lacks some bytes."""

    def __init__(self) -> None:
        type(self).tokenizer = real_model("smollm2-135m").tokenizer
        super().__init__()


class ManyStates(SmallMachine):
    """For longer."""


TestCacheStates = SmallMachine.TestCase
TestCacheStates.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)

TestManyCacheStates = pytest.mark.long(ManyStates.TestCase)
TestManyCacheStates.settings = settings(max_examples=1000, stateful_step_count=50, deadline=None)
