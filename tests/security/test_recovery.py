"""A write that was broken off is finished or undone at the next start, and what others wrote since stays."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from agent_runtime.errors import BadFile, Stale
from agent_runtime.files import writer
from agent_runtime.files.confined import Confined
from agent_runtime.files.journal import Journal
from agent_runtime.files.recovery import recover
from agent_runtime.files.writer import Change, write_all
from agent_runtime.workspaces.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]


def killed_writer(folder: Path, *arguments: str) -> dict[str, int]:
    program = [sys.executable, "-m", "tests.security.killed_writer", str(folder), *arguments]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, int] = json.loads(done.stdout)
    return seen


def test_killed_at_random_moments_all_files_are_of_one_write(tmp_path: Path) -> None:
    seen = killed_writer(tmp_path, "random", "25")
    assert seen["finished"] + seen["undone"] == 26
    assert seen["broken off"]


@pytest.mark.long
def test_killed_before_any_call_all_files_are_of_one_write(tmp_path: Path) -> None:
    seen = killed_writer(tmp_path, "calls")
    assert seen["calls"] > 100
    assert min(seen["finished"], seen["undone"], seen["broken off"], seen["recoveries killed"]) > 10


@pytest.mark.e2e
def test_killed_five_hundred_times_all_files_are_of_one_write(tmp_path: Path) -> None:
    seen = killed_writer(tmp_path, "random", "500")
    assert seen["finished"] + seen["undone"] == 501
    assert min(seen["finished"], seen["undone"], seen["broken off"]) > 50


class Killed(BaseException):
    """Ends a write where it stands: nothing is undone."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for name in "abc":
        (root / name).write_text(f"old {name}")
    return root


def changes() -> list[Change]:
    def digest(name: str) -> str:
        return sha256(f"old {name}".encode()).hexdigest()

    return [
        Change("a", b"new a", digest("a")),
        Change("b", None, digest("b")),
        Change("c", b"new c", digest("c")),
        Change("made/d", b"new d", ""),
    ]


def break_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_done: int, wanted: list[Change] | None = None
) -> Journal:
    """A write that is killed after so many of its files."""
    journal = Journal(folder.parent / "journals", folder)
    do, done = writer.do, 0

    def killed(*arguments: object) -> None:
        nonlocal done
        if done == num_done:
            raise Killed
        done += 1
        do(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(writer, "do", killed)
        patch.setattr(writer, "undo", lambda *_: [])
        patch.setattr(Journal, "forget", lambda *_: None)
        with pytest.raises(Killed):
            write_all(Confined(folder), wanted or changes(), journal)
    assert journal.has_left()
    return journal


def recovered(folder: Path, journal: Journal) -> dict[str, str]:
    """The files after the next start, all that is there but links."""
    recover(Confined(folder), journal)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


OLD = {"a": "old a", "b": "old b", "c": "old c"}
NEW = {"a": "new a", "c": "new c", "made/d": "new d"}


@pytest.mark.parametrize(("num_done", "expected"), [(0, OLD), (1, NEW), (2, NEW), (3, NEW)])
def test_what_was_begun_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_done: int, expected: dict[str, str]
) -> None:
    journal = break_off(folder, monkeypatch, num_done)
    assert recovered(folder, journal) == expected
    assert not journal.has_left()
    assert (folder / "made").exists() == (expected is NEW)


@pytest.mark.parametrize("name", ["c", "made/d"])
def test_it_is_undone_where_somebody_wrote_a_file_that_was_still_old(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    journal = break_off(folder, monkeypatch, 2)
    (folder / name).write_text("theirs")
    assert recovered(folder, journal) == OLD | {name: "theirs"}


@pytest.mark.parametrize("name", ["a", "b"])
def test_it_is_finished_where_somebody_wrote_a_file_that_was_new(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    journal = break_off(folder, monkeypatch, 2)
    (folder / name).write_text("theirs")
    assert recovered(folder, journal) == NEW | {name: "theirs"}


def test_it_is_left_and_said_where_somebody_wrote_both_kinds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = break_off(folder, monkeypatch, 2)
    (folder / "a").write_text("theirs")
    (folder / "c").write_text("theirs, too")
    with caplog.at_level(logging.WARNING, "hunk.journal"):
        found = recovered(folder, journal)
    assert {name: found[name] for name in ("a", "c")} == {"a": "theirs", "c": "theirs, too"}
    assert "b" not in found
    kept = sorted(text for name, text in found.items() if name.endswith(".hunk"))
    assert kept == ["new c", "new d", "old a", "old b"]
    assert "a, b had been written, c, made/d had not" in caplog.text
    assert not journal.has_left()


def test_it_is_undone_where_what_was_to_come_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = break_off(folder, monkeypatch, 2)
    (staged,) = (path for path in folder.glob(".*.hunk") if path.read_text() == "new c")
    staged.write_text("damaged")
    assert recovered(folder, journal) == OLD


def test_the_next_write_sees_to_it_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = break_off(folder, monkeypatch, 1)
    write_all(Confined(folder), [Change("a", b"newer a", sha256(b"new a").hexdigest())], journal)
    assert recovered(folder, journal) == NEW | {"a": "newer a"}


def test_the_next_start_sees_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_off(folder, monkeypatch, 1)
    Workspace(folder)  # without journals nobody knows
    assert (folder / "b").exists()
    Workspace(folder, folder.parent / "journals")
    assert not (folder / "b").exists()


def test_of_a_single_file_only_what_was_staged_is_left_to_remove(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = break_off(folder, monkeypatch, 0, changes()[:1])
    assert len(list(folder.glob(".*.hunk"))) == 1
    assert recovered(folder, journal) == OLD


def test_a_record_never_reaches_outside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where a folder of it has become a link since."""
    (folder / "sub").mkdir()
    (folder / "sub" / "a").write_text("old a")
    (folder.parent / "outside").mkdir()
    wanted = [Change("sub/a", b"new a", sha256(b"old a").hexdigest()), changes()[2]]
    journal = break_off(folder, monkeypatch, 1, wanted)
    (folder / "sub").rename(folder.parent / "outside" / "sub")
    (folder / "sub").symlink_to(folder.parent / "outside" / "sub")
    before = {path: path.read_bytes() for path in (folder.parent / "outside").rglob("*") if path.is_file()}
    recover(Confined(folder), journal)
    assert {path: path.read_bytes() for path in (folder.parent / "outside").rglob("*") if path.is_file()} == before
    assert (folder / "c").read_text() == "old c"


def test_a_damaged_record_is_said_and_stops_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = break_off(folder, monkeypatch, 1)
    (record,) = (folder.parent / "journals").rglob("*.json")
    for damage in (b"", b"[]", b'{"version": 1}', record.read_bytes().replace(b'"version": 1', b'"version": 9')):
        record.write_bytes(damage)
        with caplog.at_level(logging.ERROR, "hunk.journal"):
            recover(Confined(folder), journal)
        assert "cannot be read" in caplog.text
        assert not journal.has_left()


def test_a_journal_that_cannot_be_kept_stops_the_write(folder: Path) -> None:
    (folder.parent / "journals").write_text("a file")
    with pytest.raises(BadFile, match="cannot write the journal"):
        write_all(Confined(folder), changes(), Journal(folder.parent / "journals", folder))
    assert {path.name: path.read_text() for path in folder.iterdir()} == OLD


def test_one_file_does_without_a_journal(folder: Path) -> None:
    (folder.parent / "journals").write_text("a file")
    write_all(Confined(folder), changes()[:1], Journal(folder.parent / "journals", folder))
    assert (folder / "a").read_text() == "new a"


def test_writers_of_one_root_take_turns(folder: Path) -> None:
    """Each adds one to a number in both files, and takes what it read for what stands there."""
    for name in "ab":
        (folder / name).write_text("0")
    workspaces = [Workspace(folder, folder.parent / "journals") for _ in range(4)]

    def count(workspace: Workspace) -> None:
        for _ in range(5):
            journal = workspace._journal
            assert journal is not None
            while True:
                read = (folder / "a").read_bytes()
                both = [Change(name, b"%d" % (int(read) + 1), sha256(read).hexdigest()) for name in "ab"]
                try:
                    write_all(Confined(folder), both, journal)
                    break
                except Stale:
                    continue

    threads = [threading.Thread(target=count, args=(workspace,)) for workspace in workspaces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(folder / name).read_text() for name in "ab"} == {"20"}
    assert {path.name for path in folder.iterdir()} == {"a", "b", "c"}
