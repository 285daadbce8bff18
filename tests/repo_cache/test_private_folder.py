"""What a cache holds is its owner's alone, also where others had made it readable before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repo_cache.database import Database
from repo_cache.files import make_private, make_private_file


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_folders_are_made_for_their_owner_and_closed_where_they_are_open(tmp_path: Path) -> None:
    make_private(tmp_path / "cache" / "tokens")
    assert mode_of(tmp_path / "cache") == mode_of(tmp_path / "cache" / "tokens") == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    make_private(tmp_path / "open")
    assert mode_of(tmp_path / "open") == 0o700


def test_what_belongs_to_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        make_private(tmp_path)
    with pytest.raises(PermissionError, match="another user"):
        make_private_file(tmp_path / "file")


def test_a_private_file_is_no_link_and_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"symbolic|regular"):
            make_private_file(tmp_path / name)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("was_open", [False, True])
def test_the_token_store_is_its_owners_alone(tmp_path: Path, was_open: bool) -> None:
    path = tmp_path / "tokens" / "tokens.sqlite3"
    if was_open:
        path.parent.mkdir(mode=0o755)
        path.touch(mode=0o644)
    before = os.umask(0)
    try:
        database = Database(path, print)
        assert {mode_of(each) for each in path.parent.iterdir()} == {0o600}
        assert len(list(path.parent.iterdir())) == 3
        assert mode_of(path.parent) == 0o700
        database.close()
    finally:
        os.umask(before)


def test_a_store_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    said: list[str] = []
    assert not Database(tmp_path / "tokens" / "tokens.sqlite3", said.append).is_usable
    assert "another user" in said[0]
