"""The files that say which services are running: who may read them, and which are believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runtime.local_services import announce, find_service, get_folder, list_services, read_start


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "hunk"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "repo" / "src").mkdir(parents=True)
    return tmp_path / "repo"


def test_a_service_is_found_while_it_runs_by_files_below_its_folders(folder: Path, root: Path) -> None:
    with announce("http://127.0.0.1:1", "qwen", [root], "secret"):
        found = find_service(root / "src" / "a.py")
        assert found is not None
        assert (found.url, found.pid, found.token) == ("http://127.0.0.1:1", os.getpid(), "secret")
        assert find_service(root / "a.py", "qwen") == found
        assert find_service(root / "a.py", "other") is None
        assert find_service(root.parent / "a.py") is None
        assert find_service(root / "src" / ".." / ".." / "a.py") is None
        (file,) = folder.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list_services() == []
    assert not list(folder.iterdir())


def test_a_link_out_of_the_folder_is_not_below_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("x")
    (root / "a.py").symlink_to(tmp_path / "secret.py")
    with announce("http://127.0.0.1:1", "qwen", [root]):
        assert find_service(root / "a.py") is None


def test_the_file_of_a_killed_service_is_not_believed_and_goes(folder: Path, root: Path) -> None:
    code = (
        "import os, pathlib, sys; from agent_runtime.local_services import announce\n"
        "with announce('http://127.0.0.1:1', 'qwen', [pathlib.Path(sys.argv[1])]): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, root], check=False, env=os.environ)
    assert len(list(folder.iterdir())) == 1
    assert find_service(root / "a.py") is None
    assert not list(folder.iterdir())


def test_a_process_with_the_same_number_that_began_later_is_another_one(folder: Path, root: Path) -> None:
    with announce("http://127.0.0.1:1", "qwen", [root]):
        (file,) = folder.iterdir()
        fields = json.loads(file.read_bytes())
        file.write_text(json.dumps(fields | {"started": str(int(fields["started"]) - 1)}))
        assert find_service(root / "a.py") is None


def test_a_file_or_folder_that_others_may_write_is_not_believed(folder: Path, root: Path) -> None:
    with announce("http://127.0.0.1:1", "qwen", [root]):
        (file,) = folder.iterdir()
        file.chmod(0o644)
        assert list_services() == []
        file.chmod(0o600)
        assert len(list_services()) == 1
        folder.chmod(0o777)
        assert list_services() == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": "x"}', b'{"roots": 1}'])
def test_a_damaged_file_is_left_out(folder: Path, content: bytes) -> None:
    folder.mkdir(mode=0o700)
    path = folder / "serve-1.json"
    path.write_bytes(content)
    path.chmod(0o600)
    assert list_services() == []


def test_a_folder_that_others_own_holds_no_file_of_ours(folder: Path, root: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    with announce("http://127.0.0.1:1", "qwen", [root], "secret"):
        assert not list(folder.iterdir())


def test_without_a_runtime_folder_it_is_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert get_folder().parts[-2:] == ("hunk", "run")


def test_no_process_has_no_start() -> None:
    assert read_start(os.getpid())
    assert read_start(2**22 + 1) == ""
