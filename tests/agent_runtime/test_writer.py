"""Writing in place: wholly or not at all."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from agent_runtime.errors import BadFile, Stale
from agent_runtime.writer import replace_file

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
