"""The command in a process of its own: bad input prints one clear line and changes nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

HUNK = Path(sys.executable).with_name("hunk")
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"


def hunk(
    *arguments: str | Path, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command: Sequence[str | Path] = [HUNK, *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False, env=os.environ | (env or {})
    )


def assert_one_clear_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert 1 <= len(done.stderr.strip().splitlines()) <= 3, done.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.py"
    path.write_text("a = 1\nb = 2\n")
    return path


@pytest.fixture
def edit(tmp_path: Path) -> Path:
    path = tmp_path / "edit"
    path.write_text(BLOCK)
    return path


def test_nothing_is_written_without_write_and_the_diff_is_shown(file: Path, edit: Path) -> None:
    done = hunk("apply", file, "--edit", edit)
    assert done.returncode == 0
    assert "+a = 3" in done.stdout
    assert "merged by rule (exact), certain" in done.stderr
    assert file.read_text() == "a = 1\nb = 2\n"


def test_write_writes_and_a_second_time_is_a_noop(file: Path) -> None:
    file.write_text("timeout_seconds = 10\nretries = 2\n")
    block = BLOCK.replace("a = 1", "timeout_seconds = 10").replace("a = 3", "timeout_seconds = 30")
    assert hunk("apply", file, "--edit", "-", "--write", stdin=block).returncode == 0
    assert file.read_text() == "timeout_seconds = 30\nretries = 2\n"
    again = hunk("apply", file, "--edit", "-", "--write", "--json", stdin=block)
    assert again.returncode == 0
    assert json.loads(again.stdout)["status"] == "noop"
    assert file.read_text() == "timeout_seconds = 30\nretries = 2\n"


def test_the_edit_may_come_from_standard_input(file: Path) -> None:
    done = hunk("apply", file, "--edit", "-", "--json", stdin=BLOCK)
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["merged"]) == ("merged", "a = 3\nb = 2\n")


def test_the_edit_may_come_from_a_pipe_as_of_process_substitution(file: Path, edit: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{HUNK}' apply '{file}' --edit <(cat '{edit}')"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "+a = 3" in done.stdout


def test_the_diff_of_a_file_at_an_absolute_path_names_it_as_git_does(file: Path, edit: Path) -> None:
    done = hunk("apply", file.absolute(), "--edit", edit)
    assert done.stdout.startswith(f"--- a{file.absolute()}\n+++ b{file.absolute()}\n")


def test_a_refused_edit_says_what_was_nearest_and_what_to_send(file: Path) -> None:
    done = hunk("apply", file, "--edit", "-", "--mode", "deterministic", stdin=BLOCK.replace("a = 1", "a = 11"))
    assert done.returncode == 3
    assert "a = 11" in done.stderr
    assert "a = 1\n" in done.stderr
    assert "Traceback" not in done.stderr
    as_json = hunk("apply", file, "--edit", "-", "--mode", "deterministic", "--json", stdin=BLOCK.replace("a = 1", "z"))
    assert as_json.returncode == 3
    assert json.loads(as_json.stdout)["reasons"][0]["code"] == "not_found"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF\0\0", ["binary"]),
        ("a = 1\n".encode("utf-16-le"), ["UTF-16", "mark"]),
        (b"x" * 50_000_000, ["50.0 MB", "limit"]),
    ],
    ids=["binary", "UTF-16 without a mark", "50 MB"],
)
def test_a_file_that_cannot_be_edited_is_one_line(file: Path, edit: Path, content: bytes, words: list[str]) -> None:
    file.write_bytes(content)
    assert_one_clear_line(hunk("apply", file, "--edit", edit, "--write"), 2, *words)
    assert file.read_bytes() == content


def test_missing_files_and_directories_are_one_line(tmp_path: Path, file: Path, edit: Path) -> None:
    assert_one_clear_line(hunk("apply", tmp_path / "none.py", "--edit", edit), 2, "no file", "none.py")
    assert_one_clear_line(hunk("apply", file, "--edit", tmp_path / "none"), 2, "no file", "none")
    assert_one_clear_line(hunk("apply", tmp_path, "--edit", edit), 2, "directory")


@pytest.mark.parametrize("text", ["", "  \n", "# ... existing code ...\n"])
def test_an_edit_without_content_is_refused(file: Path, text: str) -> None:
    assert_one_clear_line(hunk("apply", file, "--edit", "-", stdin=text), 3, "hunk:")


def test_an_unknown_model_is_named_with_the_nearest_one(file: Path, edit: Path) -> None:
    done = hunk("apply", file, "--edit", edit, "--mode", "model", "--model", "qwen2.5-coder-1.5")
    assert_one_clear_line(done, 4, "qwen2.5-coder-1.5b")


def test_a_model_that_was_not_pulled_says_what_to_type(file: Path, edit: Path, tmp_path: Path) -> None:
    done = hunk("apply", file, "--edit", edit, "--mode", "model", env={"HUNK_CACHE": str(tmp_path / "empty")})
    assert_one_clear_line(done, 4, "hunk models pull qwen2.5-coder-1.5b")


@pytest.mark.parametrize("content", [b"GGUF" + b"\xff" * 4096, b"GGUF", b"not a model at all"])
def test_a_corrupted_model_file_is_one_line(file: Path, edit: Path, tmp_path: Path, content: bytes) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(content)
    done = hunk("apply", file, "--edit", edit, "--mode", "model", "--model", model)
    assert_one_clear_line(done, 4, "model.gguf")


def test_a_service_that_is_not_there_is_one_line(file: Path, edit: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert_one_clear_line(hunk("apply", file, "--edit", edit, "--url", f"http://127.0.0.1:{port}"), 5, "no answer")
    assert_one_clear_line(hunk("apply", file, "--edit", edit, "--url", "nonsense"), 2, "--url", "nonsense")


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = hunk("serve", "--model", "smollm2-135m", "--port", port)
    assert_one_clear_line(done, 2, port, "--port")


def test_a_root_that_is_no_folder_is_one_line(file: Path) -> None:
    assert_one_clear_line(hunk("serve", "--model", "smollm2-135m", "--root", file, "--port", "0"), 2, "not a folder")


def test_a_file_name_that_is_not_utf8_is_no_obstacle(tmp_path: Path, edit: Path) -> None:
    file = os.fsencode(tmp_path) + b"/caf\xe9.py"
    Path(os.fsdecode(file)).write_text("a = 1\nb = 2\n")
    done = subprocess.run(
        [HUNK, "apply", file, "--edit", edit, "--write"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(os.fsdecode(file)).read_text() == "a = 3\nb = 2\n"


def test_wrong_usage_ends_with_2(file: Path) -> None:
    assert hunk("apply", file).returncode == 2
    assert hunk("apply", file, "--edit", "-", "--mode", "magic").returncode == 2
    assert hunk("nonsense").returncode == 2


def test_ctrl_c_during_an_apply_ends_with_130_and_leaves_the_file(file: Path, edit: Path) -> None:
    original = file.read_text()
    command = [HUNK, "apply", file, "--edit", edit, "--mode", "model", "--model", "smollm2-135m", "--write"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "loading smollm2-135m\n", "a line before the long silence"
        assert "loaded" in process.stderr.readline()  # and now it merges
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert file.read_text() == original


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert hunk("--version").stdout.strip() == version("hunk")
