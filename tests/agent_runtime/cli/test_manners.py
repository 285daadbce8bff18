"""All commands: completion, output without colours, closed pipes, exit codes, help without heavy imports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_runtime import errors
from agent_runtime.cli.main import EXIT_CODES, app
from agent_runtime.errors import HunkError
from tests.agent_runtime.in_process import hunk_here

HUNK = Path(sys.executable).with_name("hunk")
DOC = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


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
    table = DOC.partition("## Exit codes")[2].partition("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == used
    assert {int(code) for code in re.findall(r"\b(\d+) [a-z]", EXIT_CODES)} == used
    shown = hunk_here("--help").stdout
    assert all(f" {code} " in shown for code in used)
