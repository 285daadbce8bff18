"""After a power cut or a kill at any moment of a write, the next start finds all files of one write."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_runtime.workspace.journal import Journal
from agent_runtime.workspace.sandbox import ConfinedFolder
from agent_runtime.workspace.workspace import FileChange, Workspace, write_files
from tests.models import RealModel

# The power of a simulated disk is cut at every call.
#
# The disk promises no more than file systems do. What a file holds is there once it was synced. The names of a folder
# come in their order, but those since its last sync may be missing, in each folder another number of them.


NUM_CUTS = 4
"""At each moment: none of the names that were not synced are there, or all, or some."""

Names = dict[str, object]
"""Of a folder: which file, or the path of a folder; None: nothing any more."""


class Disk:
    """Notes what is done to names and files, and makes what a power cut leaves of it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._numbers: dict[int, int] = {}
        self._num_files = 0
        self.done: list[Callable[[_State], None]] = []
        kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self._first = _State(folder, kept)
        for name in ("open", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir"):
            patch.setattr(os, name, self._noting(name, getattr(os, name)))

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **more: Any) -> Any:
            makes = name == "open" and given[1] & os.O_CREAT
            is_new = makes and not _path(given[0], more.get("dir_fd")).exists()
            found = call(*given, **more)
            if name != "open" or is_new:
                self._note(name, found, given, more)
            return found

        return noted

    def _note(self, name: str, found: Any, given: tuple[Any, ...], more: dict[str, Any]) -> None:
        if name == "fsync":
            path, state = Path(f"/proc/self/fd/{given[0]}").readlink(), os.fstat(given[0])
            if stat.S_ISDIR(state.st_mode):
                self.done.append(lambda disk: disk.sync_folder(path))
            else:
                number, content = self._numbers[state.st_ino], path.read_bytes()
                self.done.append(lambda disk: disk.contents.__setitem__(number, content))
            return
        first = _path(given[0], more.get("dir_fd", more.get("src_dir_fd")))
        if name == "open":
            self._num_files += 1
            number = self._numbers[os.fstat(found).st_ino] = self._num_files
            self.done.append(lambda disk: disk.change({first: number}))
        elif name == "mkdir":
            self.done.append(lambda disk: disk.change({first: first}))
        elif name in ("unlink", "rmdir"):
            self.done.append(lambda disk: disk.change({first: None}))
        else:
            second = _path(given[1], more.get("dst_dir_fd"))
            is_link = name == "link"
            self.done.append(lambda disk: disk.move(first, second, keeps=is_link))

    def cut(self, num_done: int, share: Callable[[], float]) -> None:
        """Have the folder as it is after so many calls; `share` of the names that were not synced are there."""
        state = deepcopy(self._first)
        for each in self.done[:num_done]:
            each(state)
        state.flush(share)
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        state.build(self._folder)


class _State:
    """What is on the disk for certain, and which changes of names are not yet."""

    def __init__(self, folder: Path, kept: dict[Path, bytes]) -> None:
        self.contents: dict[object, bytes] = dict(kept.items())
        self._synced: dict[Path, Names] = defaultdict(dict)
        self._now: dict[Path, Names] = defaultdict(dict)
        self._waiting: dict[Path, list[Names]] = defaultdict(list)
        for path in folder.rglob("*"):
            self._synced[path.parent][path.name] = self._now[path.parent][path.name] = path

    def change(self, changes: dict[Path, object]) -> None:
        """All in one folder, at once."""
        (folder,) = {path.parent for path in changes}
        names = {path.name: entry for path, entry in changes.items()}
        self._now[folder].update(names)
        self._waiting[folder].append(names)

    def move(self, first: Path, second: Path, *, keeps: bool) -> None:
        """Give what has one name another."""
        self.change({second: self._now[first.parent][first.name]} | ({} if keeps else {first: None}))

    def sync_folder(self, folder: Path) -> None:
        """Its names are there for certain."""
        for names in self._waiting.pop(folder, []):
            self._synced[folder].update(names)

    def flush(self, share: Callable[[], float]) -> None:
        """The power is cut."""
        for folder, waiting in self._waiting.items():
            for names in waiting[: round(share() * len(waiting))]:
                self._synced[folder].update(names)

    def build(self, folder: Path) -> None:
        """Make it."""
        for name, entry in self._synced[folder].items():
            path = folder / name
            if isinstance(entry, Path) and entry not in self.contents:
                path.mkdir()
                self.build(path)
            elif entry is not None:
                path.write_bytes(self.contents.get(entry, b""))
                if name.endswith(".record.hunk") and path.stat().st_size:  # it names its inode
                    head, _, rest = path.read_text().partition('"inode": ')
                    path.write_text(f'{head}"inode": {path.stat().st_ino}{rest[rest.index(",") :]}')


def _path(path: Any, folder: int | None) -> Path:
    return (Path.cwd() if folder is None else Path(f"/proc/self/fd/{folder}").readlink()) / path


OLD = {"a": "old a", "b": "old b", "sub/c": "old c"}
NEW = {"a": "new a", "sub/c": "new c", "made/d": "new d"}


def changes(names: str) -> list[FileChange]:
    def digest(name: str) -> str:
        return sha256(f"old {name}".encode()).hexdigest()

    wanted = [
        FileChange("a", b"new a", digest("a")),
        FileChange("b", None, digest("b")),
        FileChange("sub/c", b"new c", digest("c")),
        FileChange("made/d", b"new d", ""),
    ]
    return [change for change in wanted if change.path[-1] in names]


def files_of(root: Path) -> dict[str, str]:
    found = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}
    return {name: text for name, text in found.items() if not name.endswith(".hunk")}


@pytest.mark.parametrize("start", ["with its journal", "with another cache folder"])
@pytest.mark.parametrize("names", ["abcd", "a"])
def test_after_a_power_cut_all_files_are_of_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, start: str
) -> None:
    disk_folder = tmp_path / "disk"
    root, journals = disk_folder / "root", disk_folder / "cache"
    (root / "sub").mkdir(parents=True)
    journals.mkdir()
    for name, text in OLD.items():
        (root / name).write_text(text)
    (journals / "kept").touch()
    with monkeypatch.context() as patch:
        disk = Disk(disk_folder, patch)
        write_files(ConfinedFolder(root), changes(names), Journal(journals, root))
    written = files_of(root)
    assert written == (NEW if names == "abcd" else OLD | {"a": "new a"})
    monkeypatch.setattr(os, "fsync", lambda _: None)  # those of the next start are not cut
    rng, seen = random.Random(0), set()
    shares: list[Callable[[], float]] = [lambda: 0.0, lambda: 1.0, *[rng.random] * (NUM_CUTS - 2)]
    for num_done in range(len(disk.done) + 1):
        for share in shares:
            disk.cut(num_done, share)
            if start == "with its journal":
                Workspace(root, journals)
            else:
                Workspace(root, tmp_path / "others", search=True)
            found = files_of(root)
            assert found in (OLD, written), f"after {num_done} of {len(disk.done)} calls"
            seen.add(found == written)
    assert found == written, "what was answered is there"
    assert seen == {True, False}


# A real service is killed while clients have it write several files.


HUNK = Path(sys.executable).with_name("hunk")
NUM_KILLS = 8
NUM_FILES = 6


@contextlib.contextmanager
def started(root: Path, cache: Path, model: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`hunk serve` in a process of its own, which is killed at the end, and its URL."""
    command = [HUNK, "serve", "--root", root, "--port", "0", "--no-watch", "--model", model]
    environ = os.environ | {"HUNK_CACHE": str(cache), "HUNK_CONFIG": ""}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        try:
            url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))
            drain = threading.Thread(target=process.stderr.read)
            drain.start()
            yield url, process
        finally:
            process.kill()
            drain.join()


def edit(number: int) -> str:
    """An edit of all files, from one number to the next."""
    parts = [f"*** Update File: {index}.py\n-number = {number}\n+number = {number + 1}\n" for index in range(NUM_FILES)]
    return f"*** Begin Patch\n{''.join(parts)}*** End Patch\n"


def numbers(root: Path) -> set[int]:
    """Of all files; fails where one is torn."""
    texts = [path.read_text() for path in sorted(root.glob("*.py"))]
    assert len(texts) == NUM_FILES
    found = [re.fullmatch(r"number = (\d+)\n", text) for text in texts]
    return {int(each[1]) for each in found if each} if all(found) else {-1}


@pytest.mark.e2e
def test_a_service_that_is_killed_leaves_nothing_half_done_behind_its_next_start(
    tmp_path: Path, smollm2: RealModel
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for index in range(NUM_FILES):
        (root / f"{index}.py").write_text("number = 0\n")
    num_written = 0
    for _ in range(NUM_KILLS + 1):
        with started(root, tmp_path / "cache", smollm2.path) as (url, process):
            (number,) = numbers(root)
            assert number >= num_written >= 0
            assert not list(root.glob(".*.hunk"))
            # Killed in the middle of a write that it is asked for, be the machine slow or fast.
            last = number + random.randint(1, 8)
            killer = threading.Timer(random.uniform(0, 0.02), process.kill)
            with contextlib.suppress(httpx.HTTPError), httpx.Client(timeout=30) as client:
                while True:
                    if number == last:
                        killer.start()
                    answer = client.post(f"{url}/apply", json={"edit": edit(number), "write": True})
                    assert answer.status_code == 200, answer.text
                    number += 1
                    num_written = number
            killer.join()
        assert -1 not in numbers(root)
        time.sleep(0.05)
    assert num_written > NUM_KILLS
