"""Other systems, as far as they can be had here: without flock and inotify, and without what Windows lacks.

The real Windows and macOS were never tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = "<<<<<<< SEARCH\nLIMIT = 10\n=======\nLIMIT = 20\n>>>>>>> REPLACE\n"

WITHOUT_FLOCK = """
import builtins, sys
ours = ("agent_runtime", "editor", "engine", "kernels", "repo_cache", "hunk")
real = builtins.__import__

def refuse(name, globals=None, locals=None, fromlist=(), level=0):
    who = (globals or {}).get("__name__", "").partition(".")[0]
    if who in ours and name.partition(".")[0] in ("fcntl", "resource", "uvloop"):
        raise ModuleNotFoundError(f"no {name} here", name=name)
    if who == "repo_cache" and name == "watchdog.observers.inotify_c":
        raise ImportError("no inotify here")
    return real(name, globals, locals, fromlist, level)

builtins.__import__ = refuse
"""

AS_WINDOWS = """
import os
for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_DIRECTORY", "O_PATH"):
    delattr(os, name)
del os.sched_getaffinity
os.supports_dir_fd = set()
"""

RUN = """
from hunk.__main__ import run
sys.argv = ["hunk", *sys.argv[1:]]
run()
"""


def hunk_on(system: str, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", system + RUN, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def edit(tmp_path: Path) -> Path:
    path = tmp_path / "edit"
    path.write_text(BLOCK)
    return path


@pytest.mark.parametrize("system", [WITHOUT_FLOCK, AS_WINDOWS + WITHOUT_FLOCK], ids=["no flock", "as Windows"])
def test_one_file_is_merged_and_written_with_its_line_endings(tmp_path: Path, edit: Path, system: str) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"import os\r\nLIMIT = 10\r\n")
    file.chmod(0o640)
    done = hunk_on(system, "apply", file, "--edit", edit, "--write")
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == b"import os\r\nLIMIT = 20\r\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.py", "edit"]


def test_several_files_are_written_without_flock(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    edit = tmp_path / "patch"
    edit.write_text(
        "*** Begin Patch\n*** Update File: a.py\n@@\n-a = 1\n+a = 2\n*** Add File: b.py\n+b = 1\n*** End Patch\n"
    )
    done = hunk_on(WITHOUT_FLOCK, "apply", "--edit", edit, "--root", tmp_path, "--write")
    assert done.returncode == 0, done.stderr
    assert ((tmp_path / "a.py").read_text(), (tmp_path / "b.py").read_text()) == ("a = 2\n", "b = 1\n")


def test_where_files_cannot_be_opened_below_a_folder_it_is_said(tmp_path: Path, edit: Path) -> None:
    done = hunk_on(AS_WINDOWS + WITHOUT_FLOCK, "apply", "--edit", edit, "--root", tmp_path, "--write")
    assert done.returncode == 2
    assert "`hunk apply FILE` edits files, one at a time" in done.stderr


def test_a_file_that_changed_meanwhile_is_stale_without_folder_handles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_runtime.errors import Stale
    from agent_runtime.workspace import workspace

    monkeypatch.setattr(workspace, "HAS_FOLDER_HANDLES", False)
    file = tmp_path / "a.py"
    file.write_text("a = 1\n")
    with pytest.raises(Stale):
        workspace.replace_file(file, b"a = 2\n", expected_sha256="0" * 64)
    assert file.read_text() == "a = 1\n"


def test_mcp_edits_a_file_without_flock_and_inotify(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("LIMIT = 10\n")
    client = {"name": "test", "version": "1"}
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    edit = {"old_string": "LIMIT = 10", "new_string": "LIMIT = 20"}
    call = {"name": "edit_file", "arguments": {"path": "a.py", "instruction": "", "edit": edit}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": start},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    command = [sys.executable, "-c", WITHOUT_FLOCK + RUN, "mcp", "--root", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in messages:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            if "id" in message:
                answer = json.loads(process.stdout.readline())
        process.stdin.close()
    assert answer["id"] == 2, answer
    assert not answer["result"].get("isError"), answer
    assert (tmp_path / "a.py").read_text() == "LIMIT = 20\n"


def test_two_processes_without_flock_lose_no_edit(tmp_path: Path) -> None:
    """Their locks are files of this user; without them one would overwrite the other's edit."""
    file = tmp_path / "a.py"
    file.write_text("".join(f"v{number} = 0\n\n\n" for number in range(4)))
    edits = []
    for number in range(4):
        edits.append(tmp_path / f"edit{number}")
        edits[-1].write_text(json.dumps({"old_string": f"v{number} = 0", "new_string": f"v{number} = 1"}))
    command = [sys.executable, "-c", WITHOUT_FLOCK + RUN, "apply", str(file), "--write", "--edit"]
    running = [subprocess.Popen([*command, str(edit)], stderr=subprocess.PIPE, text=True) for edit in edits]
    codes = [(process.communicate(timeout=120), process.returncode)[1] for process in running]
    assert set(codes) <= {0, 3}
    done = sum(f"v{number} = 1" in file.read_text() for number in range(4))
    assert done == codes.count(0)


@pytest.mark.skipif(os.name == "nt", reason="names with a backslash are paths on Windows")
def test_a_patch_with_windows_paths_does_not_leave_the_root(tmp_path: Path) -> None:
    for path in ("..\\\\x.py", "C:\\\\x.py", "/x.py", "../x.py"):
        edit = tmp_path / "patch"
        edit.write_text(f"*** Begin Patch\n*** Add File: {path}\n+b = 1\n*** End Patch\n")
        before = sorted(tmp_path.parent.iterdir())
        hunk_on(WITHOUT_FLOCK, "apply", "--edit", edit, "--root", tmp_path, "--write")
        assert sorted(tmp_path.parent.iterdir()) == before
        assert not Path("/x.py").exists()
