"""Writing in place: wholly or not at all."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from agent_runtime.errors import BadFile, Stale
from agent_runtime.writer import Change, replace_file, write_all

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


def test_a_file_that_is_gone_is_not_made_anew(file: Path) -> None:
    file.unlink()
    with pytest.raises(BadFile, match="No such file"):
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


def changes(folder: Path) -> list[Change]:
    """Update a, delete b, move c into a new folder."""
    return [
        Change(folder / "a", NEW, digest(b"a")),
        Change(folder / "b", None, digest(b"b")),
        Change(folder / "c", None, digest(b"c")),
        Change(folder / "sub" / "deep" / "c", NEW, "", mode_of=folder / "c"),
    ]


def test_several_changes_are_made_together(folder: Path) -> None:
    write_all(changes(folder))
    assert contents(folder) == {"a": NEW, "sub/deep/c": NEW}
    assert (folder / "sub" / "deep" / "c").stat().st_mode & 0o777 == 0o740


def test_a_new_file_gets_the_mode_that_the_umask_leaves(folder: Path) -> None:
    before = os.umask(0o027)
    try:
        write_all([Change(folder / "new", NEW, "")])
    finally:
        os.umask(before)
    assert (folder / "new").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["a", "b", "c", "sub/deep/c"])
def test_all_hashes_are_looked_at_before_anything_is_written(folder: Path, name: str) -> None:
    planned = changes(folder)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"somebody else's")
    before = contents(folder)
    with pytest.raises(Stale) as stale:
        write_all(planned)
    assert stale.value.current_sha256 == digest(b"somebody else's")
    assert contents(folder) == before


@pytest.mark.parametrize("fails_at", [0, 1])
def test_an_error_in_the_middle_undoes_what_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    replaced = 0
    rename = Path.replace

    def fail_once(self: Path, target: Path) -> Path:
        nonlocal replaced
        replaced += 1
        if replaced - 1 == fails_at:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", fail_once)
    before = contents(folder)
    with pytest.raises(BadFile, match="Input/output error; nothing was changed"):
        write_all(changes(folder))
    assert contents(folder) == before
    assert (folder / "c").stat().st_mode & 0o777 == 0o740
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c"]


def test_what_cannot_be_put_back_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[Path] = []
    rename = Path.replace

    def fail_from_the_second_on(self: Path, target: Path) -> Path:
        replaced.append(target)
        if len(replaced) > 1:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", fail_from_the_second_on)
    with pytest.raises(BadFile, match=r"could not be put back: .*/a$"):
        write_all([Change(folder / "a", NEW, digest(b"a")), Change(folder / "b", NEW, digest(b"b"))])


def test_two_names_of_one_file_are_not_both_written(folder: Path) -> None:
    (folder / "link").symlink_to("a")
    with pytest.raises(BadFile, match="same file"):
        write_all([Change(folder / "a", NEW, digest(b"a")), Change(folder / "link", OLD, digest(b"a"))])
    assert (folder / "a").read_bytes() == b"a"


def test_a_file_in_the_way_of_a_folder_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(BadFile, match="nothing was changed"):
        write_all([Change(folder / "b", NEW, digest(b"b")), Change(folder / "a" / "new", NEW, "")])
    assert contents(folder) == before
