"""Writing in place: wholly or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from agent_runtime.errors import BadFile, FileMissing, OutsideRoot, Stale
from agent_runtime.workspace import recovery
from agent_runtime.workspace.journal import Journal
from agent_runtime.workspace.sandbox import ConfinedFolder
from agent_runtime.workspace.workspace import FileChange, replace_file, write_files

OLD, NEW = b"old\n", b"new\n"
OLD_HASH = sha256(OLD).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.py"
    path.write_bytes(OLD)
    path.chmod(0o750)
    return path


def test_the_new_bytes_stand_there_with_the_old_mode_and_nothing_else_is_left(file: Path) -> None:
    replace_file(file, NEW, expected_sha256=OLD_HASH)
    assert file.read_bytes() == NEW
    assert file.stat().st_mode & 0o777 == 0o750
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_changed_meanwhile_is_left_alone(file: Path) -> None:
    file.write_bytes(b"somebody else's\n")
    with pytest.raises(Stale) as stale:
        replace_file(file, NEW, expected_sha256=OLD_HASH)
    assert stale.value.current_sha256 == sha256(b"somebody else's\n").hexdigest()
    assert file.read_bytes() == b"somebody else's\n"


def test_a_symbolic_link_stays_one_and_its_target_is_written(file: Path) -> None:
    link = file.with_name("link.py")
    link.symlink_to(file.name)
    replace_file(link, NEW, expected_sha256=OLD_HASH)
    assert link.is_symlink()
    assert file.read_bytes() == NEW


def test_a_fault_before_the_rename_leaves_the_old_bytes_and_no_litter(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BadFile, match="No space left"):
        replace_file(file, NEW, expected_sha256=OLD_HASH)
    assert file.read_bytes() == OLD
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("journaled", [False, True])
def test_of_writes_at_once_of_the_same_bytes_one_is_done_and_the_others_are_told(
    file: Path, tmp_path_factory: pytest.TempPathFactory, journaled: bool
) -> None:
    journals = tmp_path_factory.mktemp("journals")
    for number in range(20):
        file.write_bytes(OLD)
        together, done = threading.Barrier(4), []

        def write(data: bytes, together: threading.Barrier = together, done: list[bytes] = done) -> None:
            root = ConfinedFolder(file.parent)
            journal = Journal(journals, root.root) if journaled else None
            together.wait()
            with contextlib.suppress(Stale):
                write_files(root, [FileChange(file.name, data, OLD_HASH)], journal)
                done.append(data)

        threads = [threading.Thread(target=write, args=(b"%d of %d\n" % (each, number),)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == [file.read_bytes()]


def test_a_file_that_is_gone_is_not_made_anew(file: Path) -> None:
    file.unlink()
    with pytest.raises(FileMissing, match="there is no file"):
        replace_file(file, NEW, expected_sha256=OLD_HASH)
    assert not file.exists()


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "c").chmod(0o740)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changes() -> list[FileChange]:
    """Update a, delete b, move c into a new folder."""
    return [
        FileChange("a", NEW, digest(b"a")),
        FileChange("b", None, digest(b"b")),
        FileChange("c", None, digest(b"c")),
        FileChange("sub/deep/c", NEW, "", mode_of="c"),
    ]


def write(folder: Path, *wanted: FileChange) -> None:
    write_files(ConfinedFolder(folder), wanted)


def test_several_changes_are_made_together(folder: Path) -> None:
    write(folder, *changes())
    assert contents(folder) == {"a": NEW, "sub/deep/c": NEW}
    assert (folder / "sub" / "deep" / "c").stat().st_mode & 0o777 == 0o740


def test_a_new_file_gets_the_mode_that_the_umask_leaves(folder: Path) -> None:
    before = os.umask(0o027)
    try:
        write(folder, FileChange("new", NEW, ""))
    finally:
        os.umask(before)
    assert (folder / "new").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["a", "b", "c", "sub/deep/c"])
def test_all_hashes_are_looked_at_before_anything_is_written(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"somebody else's")
    before = contents(folder)
    with pytest.raises(Stale) as stale:
        write(folder, *changes())
    assert stale.value.current_sha256 == digest(b"somebody else's")
    assert contents(folder) == before


class FailingRenames:
    """The system calls that change names, of which those with these numbers fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
        self.num_calls = 0
        self._fails = fails
        for name in ("rename", "link", "unlink"):
            monkeypatch.setattr(recovery.os, name, partial(self._call, getattr(os, name)))

    def _call(self, function: Callable[..., None], *arguments: object, **options: object) -> None:
        self.num_calls += 1
        if self._fails(self.num_calls):
            raise OSError(5, "Input/output error")
        function(*arguments, **options)


@pytest.mark.parametrize("fails_at", [2, 3, 4, 6])
def test_an_error_in_the_middle_undoes_what_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    before = contents(folder)
    with monkeypatch.context() as patch:
        FailingRenames(patch, lambda number: number == fails_at)
        with pytest.raises(BadFile, match="Input/output error; nothing was changed"):
            write(folder, *changes())
    assert contents(folder) == before
    assert (folder / "c").stat().st_mode & 0o777 == 0o740
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("fails_at", [1, 5])
def test_where_a_file_can_have_no_second_name_it_is_copied_or_renamed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    with monkeypatch.context() as patch:
        FailingRenames(patch, lambda number: number == fails_at)
        write(folder, *changes())
    assert contents(folder) == {"a": NEW, "sub/deep/c": NEW}


def test_what_cannot_be_put_back_is_named_and_its_old_bytes_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renames = FailingRenames(monkeypatch, lambda number: number > 3)  # a is kept and replaced, b is kept
    two = [FileChange(name, NEW, digest(name.encode())) for name in ("a", "b")]
    with pytest.raises(
        BadFile, match=r"could not be put back: a; their old bytes lie beside them as \.\w+-\*\.old\.hunk$"
    ):
        write(folder, *two)
    assert renames.num_calls > 4
    assert (folder / "a").read_bytes() == NEW
    assert (folder / "b").read_bytes() == b"b"
    (kept,) = folder.glob(".*-0.old.hunk")
    assert kept.read_bytes() == b"a"


def test_two_names_of_one_file_are_not_both_written(folder: Path) -> None:
    (folder / "link").symlink_to("a")
    with pytest.raises(BadFile, match="same file"):
        write(folder, FileChange("a", NEW, digest(b"a")), FileChange("link", OLD, digest(b"a")))
    assert (folder / "a").read_bytes() == b"a"


def test_a_file_in_the_way_of_a_folder_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(BadFile, match="nothing was changed"):
        write(folder, FileChange("b", NEW, digest(b"b")), FileChange("a/new", NEW, ""))
    assert contents(folder) == before


def test_a_file_that_changes_after_all_were_looked_at_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_beside(*arguments: object) -> None:
        write_new(*arguments)
        (folder / "c").write_bytes(b"somebody else's")

    write_new = recovery.create_file
    monkeypatch.setattr("agent_runtime.workspace.workspace.create_file", write_beside)
    with pytest.raises(Stale) as stale:
        write(folder, *changes())
    assert stale.value.current_sha256 == digest(b"somebody else's")
    assert contents(folder) == {"a": b"a", "b": b"b", "c": b"somebody else's"}


def test_a_file_that_comes_up_at_the_last_moment_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link_beside(*arguments: object, **options: object) -> None:
        (folder / "new").write_bytes(b"somebody else's")
        link(*arguments, **options)  # type: ignore[arg-type]

    link = os.link
    monkeypatch.setattr(recovery.os, "link", link_beside)
    with pytest.raises(Stale) as stale:
        write(folder, FileChange("new", NEW, ""))
    assert stale.value.current_sha256 == digest(b"somebody else's")
    assert contents(folder)["new"] == b"somebody else's"


def test_another_hard_link_keeps_the_old_bytes(folder: Path) -> None:
    (folder / "other").hardlink_to(folder / "a")
    write(folder, FileChange("a", NEW, digest(b"a")))
    assert (folder / "a").read_bytes() == NEW
    assert (folder / "other").read_bytes() == b"a"


def test_the_bits_that_lend_an_owners_rights_go(folder: Path) -> None:
    (folder / "a").chmod(0o4755)
    write(folder, FileChange("a", NEW, digest(b"a")))
    assert (folder / "a").stat().st_mode & 0o7777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(folder: Path) -> None:
    os.chown(folder / "a", 1234, 4321)
    write(folder, FileChange("a", NEW, digest(b"a")))
    state = (folder / "a").stat()
    assert (state.st_uid, state.st_gid) == (1234, 4321)


def test_a_file_that_is_so_already_is_not_written(folder: Path) -> None:
    before = (folder / "a").stat()
    write(folder, FileChange("a", b"a", digest(b"a")), FileChange("b", NEW, digest(b"b")))
    after = (folder / "a").stat()  # reading changes its atime
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert (folder / "b").read_bytes() == NEW


@pytest.mark.parametrize("path", ["../out", "/tmp/out", "up/out", ".git/hooks/pre-commit", "sub/.GIT/config"])
def test_nothing_outside_is_written_or_made(folder: Path, path: str) -> None:
    root = folder / "root"
    root.mkdir()
    (root / "up").symlink_to("..")
    with pytest.raises(OutsideRoot):
        write(root, FileChange("in", NEW, ""), FileChange(path, NEW, ""))
    assert contents(folder) == {"a": b"a", "b": b"b", "c": b"c"}
    assert list(root.iterdir()) == [root / "up"]
