"""What a service may read."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from agent_runtime.errors import BadFile, BadRequest, FileMissing, OutsideRoot, TooLarge
from agent_runtime.files import MAX_FILE_BYTES, read_file
from agent_runtime.types import Action, FileResult
from agent_runtime.workspace.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a = 1\n")
    (root / "inside").symlink_to("src/a.py")
    (root / "outside").symlink_to("../secret.txt")
    (root / "upwards").symlink_to("..")
    return root


@pytest.mark.parametrize("path", ["src/a.py", "./src/../src/a.py", "inside"])
def test_files_below_the_root_are_read(root: Path, path: str) -> None:
    assert Workspace(root).read(path) == b"a = 1\n"


@pytest.mark.parametrize(
    "path", ["../secret.txt", "src/../../secret.txt", "outside", "upwards/secret.txt", "/etc/passwd"]
)
def test_paths_out_of_the_root_are_refused(root: Path, path: str) -> None:
    with pytest.raises(OutsideRoot):
        Workspace(root).read(path)


def test_missing_empty_and_odd_paths_are_refused(root: Path) -> None:
    with pytest.raises(FileMissing):
        Workspace(root).read("src/b.py")
    with pytest.raises(BadFile, match="directory"):
        Workspace(root).read("src")
    for path in ("", "a\0b"):
        with pytest.raises(BadRequest):
            Workspace(root).read(path)


def test_a_root_that_is_no_folder_is_refused(root: Path) -> None:
    with pytest.raises(BadRequest, match="not a folder"):
        Workspace(root / "src" / "a.py")


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(TooLarge, match=r"limit is 8\.4 MB"):
        read_file(path)


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(BadFile, match="regular"):
        read_file(path)


def file_of(path: str, merged: str, action: Action = "update", move_to: str = "", before: str = "") -> FileResult:
    old = sha256(before.encode()).hexdigest() if before else ""
    return FileResult(
        path, "merged", merged, "", "deterministic", "exact", 1, "certain", (), old, "", action=action, move_to=move_to
    )


def test_merged_files_are_written_below_the_root(root: Path) -> None:
    (root / "old.sh").write_text("old\n")
    (root / "old.sh").chmod(0o755)
    Workspace(root).write(
        [
            file_of("src/a.py", "a = 2\n", before="a = 1\n"),
            file_of("old.sh", "old\n", "move", "bin/new.sh", "old\n"),
            file_of("docs/new.md", "# New\n", "create"),
        ]
    )
    assert (root / "src" / "a.py").read_text() == "a = 2\n"
    assert not (root / "old.sh").exists()
    assert (root / "bin" / "new.sh").stat().st_mode & 0o777 == 0o755
    assert (root / "docs" / "new.md").read_text() == "# New\n"


def test_two_files_change_places(root: Path) -> None:
    (root / "1").write_text("one")
    (root / "2").write_text("two")
    Workspace(root).write([file_of("1", "one", "move", "2", "one"), file_of("2", "two", "move", "1", "two")])
    assert ((root / "1").read_text(), (root / "2").read_text()) == ("two", "one")


def test_a_link_is_deleted_and_its_target_stays(root: Path) -> None:
    Workspace(root).write([file_of("inside", "", "delete", before="a = 1\n")])
    assert not (root / "inside").is_symlink()
    assert (root / "src" / "a.py").exists()


@pytest.mark.parametrize("path", ["../new.py", "upwards/new.py", "outside", "/tmp/new.py"])
def test_nothing_is_written_out_of_the_root(root: Path, path: str) -> None:
    with pytest.raises(OutsideRoot):
        Workspace(root).write([file_of("new.py", "x", "create"), file_of(path, "x", "create")])
    assert not (root / "new.py").exists()
    assert (root.parent / "secret.txt").read_text() == "secret"


def test_links_that_lead_in_a_circle_are_refused(root: Path) -> None:
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    with pytest.raises(BadFile):
        Workspace(root).read("x")
