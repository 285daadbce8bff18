"""What a service may read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_runtime.errors import BadFile, BadRequest, FileMissing, OutsideRoot, TooLarge
from agent_runtime.limits import MAX_FILE_BYTES, read_file
from agent_runtime.workspace import Workspace


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
