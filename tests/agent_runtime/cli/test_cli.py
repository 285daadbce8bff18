"""The command in a process of its own: bad input, exit codes, completion, help, and the examples of docs/errors.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_runtime import errors
from agent_runtime.cli import bench
from agent_runtime.cli.main import COMMANDS, EXIT_CODES, app, load_command
from agent_runtime.errors import BadRequest, HunkError
from tests.agent_runtime.serving import hunk_here

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

    assert hunk("--version").stdout.strip() == version("hunk-apply")


CLI_DOC = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
    )


def test_help_needs_neither_torch_nor_the_service_nor_mcp() -> None:
    program = (
        "import sys; from agent_runtime.cli.main import app; app(['--help'], standalone_mode=False); "
        "print(sorted({'torch', 'fastapi', 'mcp', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = run(sys.executable, "-c", program)
    assert done.stderr.strip() == "[]"
    for command in ("apply", "bench", "config", "doctor", "mcp", "models", "serve", "token", "watch"):
        assert f" {command} " in done.stdout


def test_the_completion_for_bash_is_a_script_that_bash_reads() -> None:
    script = run(HUNK, "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert script.returncode == 0, script.stderr
    assert "_HUNK_COMPLETE=complete_bash" in script.stdout
    read = subprocess.run(["bash", "-n"], input=script.stdout, text=True, capture_output=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_models_settings_and_benchmarks_are_completed(shell: str) -> None:
    def completed(typed: str) -> str:
        asked = {"bash": {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}}.get(
            shell, {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        )
        environ = {"_HUNK_COMPLETE": f"complete_{shell}", **asked}
        return CliRunner().invoke(app, [], prog_name="hunk", env=environ).stdout

    assert "models" in completed("hunk mo")
    assert "smollm2-135m" in completed("hunk models pull smol")
    assert "smollm2-135m" in completed("hunk serve --model smol")
    assert "span_memory" in completed("hunk config show span")
    assert "reuse.quality" in completed("hunk bench reuse")


def test_off_a_terminal_there_are_no_colours() -> None:
    assert "\x1b" not in run(HUNK, "config", "show", TERM="xterm-256color", COLORTERM="truecolor").stdout


def test_no_color_holds_on_a_terminal() -> None:
    pytest.importorskip("pty")
    coloured, plain = (_on_a_terminal("config", "show", **environ) for environ in ({}, {"NO_COLOR": "1"}))
    colour = re.compile(rb"\x1b\[[0-9;]*3[0-7]m")
    assert b"qwen2.5-coder-1.5b" in plain
    assert not colour.search(plain)
    assert b"\x1b[" in coloured


def _on_a_terminal(*arguments: str, **environ: str) -> bytes:
    import pty

    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", **environ}
    with subprocess.Popen([HUNK, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 65536):
                said += piece
        except OSError:  # the terminal's other end is closed
            pass
        process.wait(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    return said


def test_a_reader_that_leaves_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as stdout:
        done = subprocess.run(
            [HUNK, "config", "show"], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_faults_are_json_where_json_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path))
    commands = {
        "unknown-model": ["models", "path", "nonesuch"],
        "model-unavailable": ["models", "path", "smollm2-135m"],
        "malformed": ["config", "show", "nonesuch"],
        "bad-file": ["doctor", str(tmp_path / "a"), str(tmp_path / "b")],
    }
    for kind, arguments in commands.items():
        done = hunk_here(*arguments, "--json")
        assert isinstance(done.exception, HunkError), arguments
        assert json.loads(done.stdout)["type"] == f"urn:hunk:problem:{kind}"


def test_the_exit_codes_are_those_of_the_help_and_of_the_page() -> None:
    used = {0, 130} | {
        fault.exit_code for fault in vars(errors).values() if isinstance(fault, type) and issubclass(fault, HunkError)
    }
    table = CLI_DOC.partition("## Exit codes")[2].partition("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == used
    assert {int(code) for code in re.findall(r"\b(\d+) [a-z]", EXIT_CODES)} == used
    shown = hunk_here("--help").stdout
    assert all(f" {code} " in shown for code in used)


ROOT = Path(__file__).resolve().parents[3]
ERRORS_DOC = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^```edit\n(.*?)^```\n+```console\n\$ hunk (.*?)\n(.*?)^```", ERRORS_DOC, re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(("edit", "command", "printed"), EXAMPLES)
def test_the_example_is_printed_as_it_stands_there(edit: str, command: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "edit").write_text(edit)
    arguments = [str(tmp_path / "edit") if word == "EDIT" else word for word in shlex.split(command)]
    done = subprocess.run([HUNK, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == printed


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3


def test_it_lists_what_can_be_run_with_what_it_measures() -> None:
    listed = json.loads(hunk_here("bench", "--json").stdout)["benchmarks"]
    what = {row["name"]: row["what"] for row in listed}
    assert {"apply", "copy", "edit", "engine", "forwards", "models", "reuse", "reuse.quality", "watch"} <= set(what)
    assert "copy.ours" not in what
    assert what["edit"] == "Measure how right and how fast the editor is on recorded edits"
    assert all(name in hunk_here("bench").stdout for name in what)


def test_it_runs_one_from_any_folder_with_its_own_arguments(tmp_path: Path) -> None:
    done = subprocess.run(
        [HUNK, "bench", "edit", "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--case-format" in done.stdout


def test_one_that_there_is_not() -> None:
    fault = hunk_here("bench", "edti").exception
    assert isinstance(fault, BadRequest)
    assert "did you mean edit?" in str(fault)


def test_elsewhere_than_in_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    for arguments in ([], ["edit"]):
        fault = hunk_here("bench", *arguments).exception
        assert isinstance(fault, BadRequest)
        assert "benchmarks run from a checkout" in str(fault)
        assert fault.exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_each_command_begins_its_own_help(name: str) -> None:
    """`hunk --help` shows the line without importing the command."""
    command = load_command(name)
    said = " ".join((command.help or "").split())
    assert said.startswith(COMMANDS[name].help)


def test_short_flags_of_help_and_version() -> None:
    assert hunk("-V").stdout == hunk("--version").stdout
    assert hunk("-h").stdout == hunk("--help").stdout
    assert hunk("apply", "-h").stdout == hunk("apply", "--help").stdout


@pytest.mark.parametrize("arguments", [[], ["apply"], ["serve"], ["mcp"], ["watch"], ["models"], ["models", "list"]])
def test_a_flag_is_not_shown_with_a_value(arguments: list[str]) -> None:
    shown = hunk(*arguments, "--help").stdout
    assert "--help" in shown
    assert "<bool>" not in shown
    assert "BOOLEAN" not in shown


def test_an_edit_by_rule_imports_neither_numpy_nor_the_service(file: Path, edit: Path) -> None:
    """They take most of the 0.7 s that the command took with them."""
    slow = {"numpy", "torch", "httpx", "jinja2", "fastapi", "pydantic", "rich", "tokenizers"}
    program = (
        "import sys; from agent_runtime.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
        f"print(sorted({slow} & set(sys.modules)), file=sys.stderr)"
    )
    done = run(sys.executable, "-c", program, "apply", file, "--edit", edit)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
    assert "+a = 3" in done.stdout


def test_broken_json_is_named_as_that(file: Path) -> None:
    broken = '{"old_string": "a = 1", "new_string": "a = 2"'
    for arguments in (["apply", file], ["apply"]):
        done = hunk(*arguments, "--edit", "-", stdin=broken)
        assert done.returncode == 3
        assert "The edit is not JSON" in done.stderr
