"""An interrupted write is finished or undone at the next start, and later writes of others stay."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.errors import BadFile, Stale
from agent_runtime.workspace import journal as journal_module
from agent_runtime.workspace import workspace as writer
from agent_runtime.workspace.journal import Journal
from agent_runtime.workspace.recovery import recover
from agent_runtime.workspace.sandbox import ConfinedFolder
from agent_runtime.workspace.workspace import FileChange, Workspace, write_files
from repo_cache.files import open_below

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


def changes() -> list[FileChange]:
    def digest(name: str) -> str:
        return sha256(f"old {name}".encode()).hexdigest()

    return [
        FileChange("a", b"new a", digest("a")),
        FileChange("b", None, digest("b")),
        FileChange("c", b"new c", digest("c")),
        FileChange("made/d", b"new d", ""),
    ]


def break_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_done: int, wanted: list[FileChange] | None = None
) -> Journal:
    """A write that is killed after so many of its files."""
    journal = Journal(folder.parent / "journals", folder)
    do, done = writer.commit_entry, 0

    def killed(*arguments: object) -> None:
        nonlocal done
        if done == num_done:
            raise Killed
        done += 1
        do(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(writer, "commit_entry", killed)
        patch.setattr(writer, "undo", lambda *_: [])
        patch.setattr(writer, "_remove_record", lambda *_: None)
        with pytest.raises(Killed):
            write_files(ConfinedFolder(folder), wanted or changes(), journal)
    assert journal.has_records()
    return journal


def recovered(folder: Path, journal: Journal) -> dict[str, str]:
    """The files after the next start, all that is there but links."""
    recover(ConfinedFolder(folder), journal)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


OLD = {"a": "old a", "b": "old b", "c": "old c"}
NEW = {"a": "new a", "c": "new c", "made/d": "new d"}


@pytest.mark.parametrize(("num_done", "expected"), [(0, OLD), (1, NEW), (2, NEW), (3, NEW)])
def test_what_was_begun_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_done: int, expected: dict[str, str]
) -> None:
    journal = break_off(folder, monkeypatch, num_done)
    assert recovered(folder, journal) == expected
    assert not journal.has_records()
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
    assert not journal.has_records()


def test_it_is_undone_where_what_was_to_come_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = break_off(folder, monkeypatch, 2)
    (staged,) = (path for path in folder.glob(".*.hunk") if path.read_text() == "new c")
    staged.write_text("damaged")
    assert recovered(folder, journal) == OLD


def test_the_next_write_sees_to_it_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = break_off(folder, monkeypatch, 1)
    write_files(ConfinedFolder(folder), [FileChange("a", b"newer a", sha256(b"new a").hexdigest())], journal)
    assert recovered(folder, journal) == NEW | {"a": "newer a"}


def test_the_next_start_sees_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_off(folder, monkeypatch, 1)
    Workspace(folder)  # without journals, and without a search
    assert (folder / "c").read_text() == "old c"
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
    wanted = [FileChange("sub/a", b"new a", sha256(b"old a").hexdigest()), changes()[2]]
    journal = break_off(folder, monkeypatch, 1, wanted)
    (folder / "sub").rename(folder.parent / "outside" / "sub")
    (folder / "sub").symlink_to(folder.parent / "outside" / "sub")
    before = {path: path.read_bytes() for path in (folder.parent / "outside").rglob("*") if path.is_file()}
    recover(ConfinedFolder(folder), journal)
    assert {path: path.read_bytes() for path in (folder.parent / "outside").rglob("*") if path.is_file()} == before
    assert (folder / "c").read_text() == "old c"


def test_a_damaged_record_is_said_and_stops_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = break_off(folder, monkeypatch, 1)
    (record,) = (folder.parent / "journals").rglob("*.json")
    whole = record.read_bytes()
    for damage in (
        b"",
        b"[]",
        b'{"version": null}',
        b"[" * 200_000,
        whole.replace(b'"real": "a"', b'"real": 1'),
        whole.replace(b'"real": "a"', b'"real": "a\\u0000"'),
        whole.replace(b'"real": "a"', b'"real": "/etc/passwd"'),
        whole.replace(b'"folders": ["made"]', b'"folders": [[]]'),
        whole.replace(b'"committing": true', b'"committing": "no"'),
        whole.replace(b'"staged": ".', b'"staged": "a.'),
    ):
        assert damage != whole
        record.write_bytes(damage)
        caplog.clear()
        with caplog.at_level(logging.ERROR, "hunk.journal"):
            Workspace(folder, folder.parent / "journals")
        assert "cannot be read" in caplog.text
        assert not journal.has_records()


def test_a_record_of_another_version_is_left_to_that(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_off(folder, monkeypatch, 1)
    (record,) = (folder.parent / "journals").rglob("*.json")
    record.write_bytes(record.read_bytes().replace(b'"version": 2', b'"version": 9'))
    with caplog.at_level(logging.ERROR, "hunk.journal"):
        Workspace(folder, folder.parent / "journals")
    assert "of another version" in caplog.text
    assert record.exists()


def test_a_note_that_was_broken_off_does_not_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = break_off(folder, monkeypatch, 1)
    (record,) = (folder.parent / "journals").rglob("*.json")
    record.with_suffix(".new").write_bytes(b"{")
    recover(ConfinedFolder(folder), journal)
    assert list(record.parent.iterdir()) == []


def test_records_and_their_copies_are_their_owners_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journals = folder.parent / "journals"
    journals.mkdir(mode=0o755)
    break_off(folder, monkeypatch, 1)
    (copy,) = folder.glob(".*.record.hunk")
    (record,) = journals.rglob("*.json")
    modes = {path: path.stat().st_mode & 0o777 for path in (journals, record.parent, record, copy)}
    assert modes == {journals: 0o700, record.parent: 0o700, record: 0o600, copy: 0o600}


def test_a_journal_that_cannot_be_kept_stops_the_write(folder: Path) -> None:
    (folder.parent / "journals").write_text("a file")
    with pytest.raises(BadFile, match="cannot write the journal"):
        write_files(ConfinedFolder(folder), changes(), Journal(folder.parent / "journals", folder))
    assert {path.name: path.read_text() for path in folder.iterdir()} == OLD


def test_one_file_does_without_a_journal(folder: Path) -> None:
    (folder.parent / "journals").write_text("a file")
    write_files(ConfinedFolder(folder), changes()[:1], Journal(folder.parent / "journals", folder))
    assert (folder / "a").read_text() == "new a"


def test_one_file_is_written_where_the_journal_cannot_be_written_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    journal = Journal(folder.parent / "journals", folder)
    monkeypatch.setattr(Journal, "write", fail)
    monkeypatch.setattr(Journal, "remove", fail)
    write_files(ConfinedFolder(folder), changes()[:1], journal)
    assert (folder / "a").read_text() == "new a"
    with pytest.raises(BadFile, match="Read-only"):
        write_files(ConfinedFolder(folder), changes()[1:], journal)
    assert {path.name: path.read_text() for path in folder.iterdir()} == OLD | {"a": "new a"}


@pytest.fixture
def sub(folder: Path) -> Path:
    """A folder in the root, with the same files."""
    sub = folder / "sub"
    sub.mkdir()
    for name in "abc":
        (sub / name).write_text(f"old {name}")
    return sub


def files_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("start", ["around", "around, other cache", "other cache"])
def test_another_start_sees_to_it(folder: Path, sub: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    """Of a folder around the one that was written, or with another cache folder."""
    break_off(sub, monkeypatch, 1)
    shutil.move(folder / "journals", folder.parent / "journals")
    journals = folder.parent / ("journals" if start == "around" else "others")
    Workspace(sub if start == "other cache" else folder, journals, search=start != "around")
    assert files_of(sub) == NEW


def test_a_start_within_a_broken_write_sees_to_all_of_it(
    folder: Path, sub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(folder, monkeypatch, 1, across())
    Workspace(sub, folder.parent / "journals")
    assert files_of(folder) == OLD | {"a": "new a", "sub/a": "new a", "sub/b": "old b", "sub/c": "old c"}


def across() -> list[FileChange]:
    """Of two files, one of them in a folder."""
    old = sha256(b"old a").hexdigest()
    return [FileChange("a", b"new a", old), FileChange("sub/a", b"new a", old)]


@pytest.mark.parametrize("root", ["around", "the same", "journal-less"])
def test_the_next_write_with_another_journal_sees_to_it_first(
    folder: Path, sub: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    break_off(sub, monkeypatch, 1)
    newer = sha256(b"new a").hexdigest()
    if root == "journal-less":
        writer.replace_file(sub / "a", b"newer a", expected_sha256=newer)
    else:
        root, path = (folder, "sub/a") if root == "around" else (sub, "a")
        write_files(
            ConfinedFolder(root), [FileChange(path, b"newer a", newer)], Journal(folder.parent / "others", root)
        )
    assert files_of(sub) == NEW | {"a": "newer a"}


def test_a_write_that_reaches_above_the_root_is_not_seen_to_from_there(
    folder: Path, sub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But by whoever may name all its files."""
    break_off(folder, monkeypatch, 1, across())
    before = files_of(folder)
    edit = FileChange("a", b"newer a", sha256(b"old a").hexdigest())
    others = Workspace(sub, folder.parent / "others", search=True)
    with pytest.raises(BadFile, match="broken off"):
        write_files(ConfinedFolder(sub), [edit], others._journal)
    assert files_of(folder) == before
    write_files(ConfinedFolder(sub), [FileChange("c", b"newer c", sha256(b"old c").hexdigest())], others._journal)
    writer.replace_file(sub / "b", b"newer b", expected_sha256=sha256(b"old b").hexdigest())
    with pytest.raises(Stale):
        writer.replace_file(sub / "a", edit.data or b"", expected_sha256=edit.expected_sha256)
    found = files_of(folder)
    assert (found["a"], found["sub/a"], found["sub/b"], found["sub/c"]) == ("new a", "new a", "newer b", "newer c")
    assert not [name for name in found if name.endswith(".hunk")]


def test_a_copy_of_a_record_that_was_checked_out_orders_nothing(
    folder: Path, sub: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_off(sub, monkeypatch, 1)
    shutil.copytree(sub, folder / "copied")
    before = files_of(folder / "copied")
    with caplog.at_level(logging.ERROR, "hunk.journal"):
        Workspace(folder / "copied", folder.parent / "others", search=True)
    assert "no record that Hunk wrote there" in caplog.text
    assert files_of(folder / "copied") == before


def test_a_copy_orders_nothing_in_a_folder_that_has_none(
    folder: Path, sub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write in one folder only has no file of another renamed."""
    break_off(folder, monkeypatch, 1, across())
    (copy,) = folder.glob(".*.record.hunk")
    copy.unlink()
    before = files_of(folder)
    Workspace(folder, folder.parent / "others", search=True)
    assert files_of(folder) == before
    Workspace(folder, folder.parent / "journals")  # its own journal is believed
    assert files_of(folder)["sub/a"] == "new a"


WRITERS = ["the root", "another cache", "a nested root", "no journal", "one file"]


@pytest.mark.parametrize("second", WRITERS)
@pytest.mark.parametrize("first", WRITERS)
def test_between_two_writers_of_a_file_no_edit_is_lost(
    folder: Path, sub: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    """The second comes between the first's last look and its rename, whatever root and journal each has."""
    old = sha256(b"old a").hexdigest()

    def write(writer_is: str, data: bytes) -> None:
        root, path = (sub, "a") if writer_is == "a nested root" else (folder, "sub/a")
        cache = folder.parent / ("others" if writer_is == "another cache" else "journals")
        if writer_is == "one file":
            writer.replace_file(sub / "a", data, expected_sha256=old)
        else:
            journal = None if writer_is == "no journal" else Journal(cache, root)
            write_files(ConfinedFolder(root), [FileChange(path, data, old)], journal)

    faults: list[Exception] = []

    def second_writes() -> None:
        try:
            write(second, b"second")
        except Stale as fault:
            faults.append(fault)

    thread, rename = threading.Thread(target=second_writes), os.rename

    def renamed(*arguments: Any, **options: Any) -> None:
        if arguments[1] == "a" and not thread.ident:
            thread.start()
            thread.join(0.05)  # it waits, or it is done by then
        rename(*arguments, **options)

    monkeypatch.setattr(os, "rename", renamed)
    write(first, b"first")
    thread.join()
    assert (sub / "a").read_text() == "first"
    assert len(faults) == 1


@pytest.mark.long
def test_no_edit_is_lost_to_a_process_of_the_command_line(folder: Path) -> None:
    """It finds what stood there when it looked, while others write as fast as they can."""
    file, num_done, ended = folder / "n.txt", 0, threading.Event()
    file.write_text("n = 0\nm = 0\n")
    (folder.parent / "edit").write_text('{"old_string": "m = 0", "new_string": "m = 1"}')

    def count() -> None:
        nonlocal num_done
        while not ended.is_set():
            read = file.read_bytes()
            number, rest = read.split(b"\n", 1)
            data = b"n = %d\n" % (int(number[4:]) + 1) + rest
            with contextlib.suppress(Stale):
                change = FileChange("n.txt", data, sha256(read).hexdigest())
                write_files(ConfinedFolder(folder), [change], Journal(folder.parent / "journals", folder))
                num_done += 1
            time.sleep(0.002)

    thread = threading.Thread(target=count)
    thread.start()
    hunk = [sys.executable, "-c", "from agent_runtime.cli.main import run; run()"]
    apply = ["apply", str(file), "--edit", str(folder.parent / "edit"), "--write", "--mode", "deterministic"]
    codes = [subprocess.run([*hunk, *apply], cwd=ROOT, capture_output=True, check=False).returncode for _ in range(5)]
    ended.set()
    thread.join()
    assert set(codes) <= {0, 3}
    assert file.read_text() == f"n = {num_done}\nm = {int(0 in codes)}\n"


def test_without_a_descriptor_left_a_write_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for caller in ("_open_folders", "find_copies"):

        def fail(*arguments: Any, caller: str = caller) -> int:
            if sys._getframe(1).f_code.co_name == caller:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return open_below(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "open_below", fail)
            with pytest.raises(BadFile, match="Too many open files"):
                write_files(ConfinedFolder(folder), changes(), Journal(folder.parent / "journals", folder))
    assert files_of(folder) == OLD


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
                both = [FileChange(name, b"%d" % (int(read) + 1), sha256(read).hexdigest()) for name in "ab"]
                try:
                    write_files(ConfinedFolder(folder), both, journal)
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
