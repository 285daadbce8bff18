"""The sandbox of tests that a benchmark runs: what passes, what fails, and what a program may not do there."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.apply.executing import execute
from benchmarks.apply.sandbox import Limits, Sandbox, sandbox
from benchmarks.cases import Case, PatchCase

QUICK = Limits(seconds=20, cpu_seconds=1, memory_bytes=200 << 20, file_bytes=100_000)


def outcome(program: str, limits: Limits = QUICK) -> str:
    return sandbox().run({"x.py": program}, ["python", "x.py"], limits).outcome


def test_a_program_passes_if_it_ends_well() -> None:
    found = sandbox().run({"x.py": "print('hello')\n", "a/b.txt": "text"}, ["python", "x.py"])
    assert (found.outcome, found.output) == ("passed", "hello\n")
    assert outcome("raise SystemExit(3)") == "failed"
    assert outcome("assert open('missing')") == "failed"
    assert outcome("assert open('a/b.txt').read() == 'text'") == "failed"


def test_it_stands_alone_in_an_empty_folder_with_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("PYTHONPATH", "/tmp")
    program = """
import os, sys
assert os.listdir() == ["x.py"], os.listdir()
assert os.environ["HOME"] == os.getcwd() == os.environ["TMPDIR"]
assert set(os.environ) <= {"HOME", "TMPDIR", "PATH", "LANG", "LC_CTYPE"}, os.environ
assert sys.flags.isolated and "/tmp" not in sys.path
open("y", "w").write("here one may write")
"""
    assert sandbox().run({"x.py": program}, ["python", "x.py"]).output == ""
    assert outcome(program) == "passed"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("while True: pass", "timeout"),
        ("data = bytearray(1 << 30)", "failed"),
        ("open('big', 'wb').write(b'x' * 1_000_000)", "failed"),
        ("files = [open('x.py') for _ in range(1000)]", "failed"),
    ],
)
def test_it_is_kept_within_its_limits(program: str, expected: str) -> None:
    assert outcome(program) == expected


def test_it_is_ended_with_all_that_it_started_when_its_time_is_over() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)  # whoever the program runs as may write there
        program = f"""
import os, time
os.chdir({name!r})
if os.fork() == 0:
    time.sleep(2.5)
    open("still here", "w").close()
time.sleep(60)
"""
        assert outcome(program, Limits(seconds=1.5)) == "timeout"
        time.sleep(1.5)
        assert not list(folder.iterdir())


def test_endless_output_is_cut() -> None:
    found = sandbox().run({"x.py": "while True: print('x' * 1000)"}, ["python", "x.py"], QUICK)
    assert found.outcome in ("failed", "timeout")
    assert len(found.output) <= 2_000


def test_there_is_no_network_where_the_machine_permits_that() -> None:
    if "no network" not in sandbox().restrictions:
        pytest.skip(f"this machine only permits: {sandbox().restrictions}")
    program = """
import socket
try:
    socket.create_connection(("127.0.0.1", PORT), 5)
except OSError:
    raise SystemExit(0)
raise SystemExit(1)
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert outcome(program.replace("PORT", str(server.getsockname()[1]))) == "passed"


def test_processes_are_few_and_others_files_are_not_written() -> None:
    if "AS ROOT" in sandbox().restrictions:
        pytest.skip("root knows no limit on processes here")
    program = """
import os, time
for number in range(200):
    try:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
    except OSError:
        raise SystemExit(0)
raise SystemExit(1)
"""
    assert outcome(program) == "passed"
    if os.geteuid() == 0:
        assert outcome("open('/usr/local/hunk-was-here', 'w')") == "failed"


def test_a_file_outside_and_a_program_that_is_not_here() -> None:
    for name in ("../x", "/x", ""):
        with pytest.raises(ValueError, match="outside"):
            sandbox().run({name: ""}, ["python", "-c", "pass"])
    assert sandbox().run({}, ["no-such-program-here"]).outcome == "unavailable"
    assert sandbox().run({}, []).outcome == "unavailable"


@pytest.mark.long
def test_without_any_help_of_the_machine_the_limits_hold() -> None:
    bare = Sandbox((), "limits")
    assert bare.run({"x.py": "while True: pass"}, ["python", "x.py"], QUICK).outcome == "timeout"
    assert bare.run({"x.py": "pass"}, ["python", "x.py"], QUICK).outcome == "passed"


CASE = Case(
    "e",
    "edit_eval",
    "lazy",
    "x.py",
    "",
    "",
    "def f():\n    return 2\n",
    test="{{Code}}\ndef check():\n    assert f() == 2\ncheck()",
)


@pytest.mark.parametrize(
    ("merged", "expected"),
    [
        ("def f():\n    return 1 + 1\n", "passed"),
        ("def f():\n    return 3\n", "failed"),
        ("raise SystemExit(0)\n", "failed"),
        (None, ""),
    ],
)
def test_a_merge_is_judged_by_its_cases_own_tests(merged: str | None, expected: str) -> None:
    assert execute(CASE, merged)[0] == expected


def test_tests_that_fail_on_the_expected_result_are_no_tests() -> None:
    broken = Case("e", "edit_eval", "lazy", "x.py", "", "", "x = 1\n", test="{{Code}}\nassert x == 2\n")
    assert execute(broken, "x = 2\n")[0] == "invalid"


def test_a_repository_is_tested_by_its_command() -> None:
    files = {
        "pack/__init__.py": "A = 1\n",
        "check.py": "import sys; sys.path.insert(0, '.'); import pack; assert pack.A == 2",
    }
    case = PatchCase(
        "r", "repo", "", files, files | {"pack/__init__.py": "A = 2\n"}, False, "v4a", ("python", "check.py")
    )
    assert execute(case, case.expected)[0] == "passed"
    assert execute(case, case.files)[0] == "failed"
