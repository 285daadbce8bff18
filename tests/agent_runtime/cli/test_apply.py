"""`hunk apply`: its output on a terminal and off it, and edits of several files below --root."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from agent_runtime import wiring
from agent_runtime.apply.pipeline import Applier
from agent_runtime.cli import pipeline
from agent_runtime.cli.hunks import choose_hunks
from agent_runtime.cli.render import print_refusal, print_remarks
from agent_runtime.errors import BadFile, BadRequest, EditRefused, ModelUnavailable, Stale
from agent_runtime.llm import opener
from agent_runtime.local_services import announce
from agent_runtime.models.progress import LINE_EVERY_SECONDS
from agent_runtime.models.store import ModelFiles
from agent_runtime.types import ApplyRequest, ApplyResult, FileResult, GivenScope, PatchRequest, Reading, Reason, Usage
from editor.types import Check
from tests.agent_runtime.cli.test_cli import hunk
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import hunk_here, serving

HUNK = Path(sys.executable).with_name("hunk")
FILE = "def f():\n    return 1\n\n\ndef g():\n    return 2\n"
EDIT = "<<<<<<< SEARCH\n    return 2\n=======\n    return 3\n>>>>>>> REPLACE\n"
MERGED = FILE.replace("return 2", "return 3")
THREE = "".join(f"def {name}():\n    timeout = 10\n    return timeout\n\n\n" for name in "abc")
IN_THREE = json.dumps({"old_string": "    timeout = 10\n", "new_string": "    timeout = 30\n"})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.py"
    file.write_text(FILE)
    return file


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the models to be loaded in this process, and load none."""
    asked: list[str] = []

    def open_merger(name: str, *arguments: object) -> ScriptedMerger:
        asked.append(name)
        raise ModelUnavailable("no model in this test")

    monkeypatch.setattr(wiring, "open_merger", open_merger)
    return asked


@pytest.fixture(scope="module")
def rejecting() -> Iterator[str]:
    """A service whose model writes text that a check rejects."""
    with serving(ScriptedMerger("# ... existing code ...\n")) as url:
        yield url


def applied(*arguments: str | Path, edit: str = EDIT) -> Result:
    return hunk_here("apply", *arguments, "--edit", "-", stdin=edit)


def test_a_merge_is_its_difference_and_remarks_are_apart(file: Path) -> None:
    done = applied("a.py")
    assert done.exit_code == 0
    assert done.stdout.startswith("--- a/a.py\n+++ b/a.py\n@@ ")
    assert done.stdout.endswith("\n-    return 2\n+    return 3\n")
    assert done.stderr == "merged by rule (exact), certain; not written; --write does\n"


def test_nothing_to_do_prints_nothing(file: Path) -> None:
    file.write_text(MERGED)
    done = applied("a.py", edit=EDIT.replace("    return", "def g():\n    return"))
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing to do" in done.stderr


@pytest.mark.parametrize("more", [[], ["--write"], ["-o", "-"], ["-o", "out.py"]], ids=str)
def test_what_a_check_rejects_leaves_standard_output_empty(file: Path, rejecting: str, more: list[str]) -> None:
    done = applied("a.py", "--url", rejecting, "--mode", "model", *more)
    assert (done.exit_code, done.stdout) == (3, "")
    for told in ("+# ... existing code ...", "rejected by a check; nothing was written", "marker_leak"):
        assert told in done.stderr
    assert file.read_text() == FILE
    assert not Path("out.py").exists()


def test_json_stays_on_standard_output_whatever_became_of_the_edit(file: Path, rejecting: str) -> None:
    for more, code, status in (([], 0, "merged"), (["--url", rejecting, "--mode", "model"], 3, "rejected")):
        done = applied("a.py", "--json", *more)
        assert (done.exit_code, json.loads(done.stdout)["status"]) == (code, status)


@pytest.mark.parametrize(
    ("before", "old", "new"),
    [
        (b"a = 1\r\nb = 2\r\nc = 3", "b = 2", "b = 4"),
        (b"\xef\xbb\xbfa = 1\r\nb = 2\n", "a = 1", "a = 5"),
        (b'a = "\xe9"\nb = "\xe8"\n', 'b = "è"', 'b = "é"'),
        (b"a\x0cb\nc\x08d\n", "c\x08d", "c\x08e"),
    ],
    ids=["CRLF", "BOM", "cp1252", "control characters"],
)
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; apt-get install git")
def test_git_applies_what_is_printed(file: Path, before: bytes, old: str, new: str) -> None:
    file.write_bytes(before)
    edit = json.dumps({"old_string": old, "new_string": new})
    asked = {"input": edit.encode(), "capture_output": True, "timeout": 60, "check": True}
    diff = subprocess.run([HUNK, "apply", "a.py", "--edit", "-"], **asked).stdout  # type: ignore[call-overload]
    whole = subprocess.run([HUNK, "apply", "a.py", "--edit", "-", "-o", "-"], **asked).stdout  # type: ignore[call-overload]
    done = subprocess.run(["git", "apply", "-"], input=diff, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == whole != before


def test_the_merged_text_goes_to_standard_output_or_a_file(file: Path) -> None:
    done = applied("a.py", "-o", "-")
    assert (done.exit_code, done.stdout) == (0, MERGED)
    assert "put in standard output" in done.stderr
    out = Path("out.py")
    for stands_there in (None, "something else\n"):
        if stands_there is not None:
            out.write_text(stands_there)
        done = applied("a.py", "--output", out)
        assert (done.exit_code, out.read_text()) == (0, MERGED)
        assert "+    return 3" in done.stdout
        assert "put in out.py" in done.stderr
    assert file.read_text() == FILE
    done = applied("a.py", "-o", "-", "--write")
    assert (done.stdout, file.read_text()) == (MERGED, MERGED)
    again = applied("a.py", "-o", "-", edit=EDIT.replace("    return", "def g():\n    return"))
    assert (again.exit_code, again.stdout) == (0, MERGED), "where there is nothing to do it is the file's text"


@pytest.mark.parametrize(
    ("arguments", "fault", "word"),
    [
        (["-o", "-"], BadRequest, "give FILE"),
        (["a.py", "-o", "-", "--json"], BadRequest, "standard output"),
        (["a.py", "-o", "./a.py"], BadRequest, "--write"),
        (["a.py", "-o", "."], BadFile, "directory"),
        (["a.py", "-o", "none/out.py"], BadFile, "none/out.py"),
    ],
)
def test_an_output_that_cannot_be_is_refused(
    file: Path, arguments: list[str], fault: type[Exception], word: str
) -> None:
    done = applied(*arguments)
    assert isinstance(done.exception, fault)
    assert word in str(done.exception)
    assert file.read_text() == FILE


def test_an_old_text_that_stands_in_three_functions_is_refused_and_no_model_is_loaded(
    file: Path, loads: list[str]
) -> None:
    file.write_text(THREE)
    done = applied("a.py", "--write", edit=IN_THREE)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "stands in 3 places: lines 2, 7, 12." in done.stderr
    assert "Send more of the text around it" in done.stderr
    as_json = applied("a.py", "--json", edit=IN_THREE)
    assert json.loads(as_json.stdout)["reasons"][0]["num_candidates"] == 3
    assert file.read_text() == THREE
    assert not loads
    asked_for = applied("a.py", "--mode", "model", edit=IN_THREE)
    assert (asked_for.exit_code, len(loads)) == (4, 1), "the model is there for who asks for it"


@pytest.mark.parametrize("num_lines", [1, 2])
def test_an_edit_that_is_sent_again_loads_no_model_and_changes_nothing(
    file: Path, loads: list[str], num_lines: int
) -> None:
    old, new = ("".join(f"limit_{at} = {value}\n" for at in range(num_lines)) for value in (10, 20))
    file.write_text(f"import os\n\n{old}\n\ndef f():\n    return os\n")
    edit = f"<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n"
    assert applied("a.py", "--write", edit=edit).exit_code == 0
    once = sha256(file.read_bytes()).hexdigest()
    again = applied("a.py", "--write", edit=edit)
    assert again.exit_code in (0, 3)
    assert again.stdout == ""
    assert sha256(file.read_bytes()).hexdigest() == once
    assert not loads


def test_off_a_terminal_a_line_is_said_before_a_model_is_loaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise ModelUnavailable("no model in this test")

    monkeypatch.setattr(wiring, "resolve", lambda *_: ModelFiles("gguf", file, "smollm2-135m"))
    monkeypatch.setattr(opener, "load_files", load)
    done = applied("a.py", "--mode", "model", "--model", "smollm2-135m")
    assert done.stderr.splitlines()[0] == "loading smollm2-135m"
    assert done.stdout == ""
    assert isinstance(done.exception, ModelUnavailable)


def test_an_unknown_model_is_not_said_to_be_loaded_and_no_mode_mends_it(file: Path) -> None:
    snippet = "# ...\ndef h():\n    return 3\n"
    done = applied("a.py", "--model", "nosuch", edit=snippet)
    assert done.exit_code == 4
    said = " ".join(done.stderr.split())
    assert said.startswith("hunk: 'nosuch' is neither a model of `hunk models list`")
    assert said.endswith("Send SEARCH/REPLACE blocks with the exact lines to change.")
    assert "mode" not in said.split("A model is needed")[1]


def test_off_a_terminal_long_work_says_a_line_now_and_then(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(pipeline.time, "monotonic", lambda: now)
    counter = pipeline.TokenCounter()
    for num_tokens in range(1, 6):
        now += LINE_EVERY_SECONDS / 2
        counter.on_tokens(num_tokens)
    assert capsys.readouterr().err.splitlines() == ["2 tokens written", "4 tokens written"]


LONG = "value = compute(" + ", ".join(f"argument_{number}" for number in range(20)) + ")"
DIFF = f"@@ -1,3 +1,3 @@\n context\n-{LONG}\n+{LONG.upper()}"
REASON = Reason(
    "not_found",
    "The SEARCH lines do not stand in the file, and this sentence goes on for longer than a line of a terminal is.",
    12,
    f"lines 3-4 are nearest (87 % alike):\n- {LONG}\n+ {LONG.upper()}",
    "Copy the SEARCH lines from the file as it is now. Send the other blocks of this edit as they are, all of them.",
    (Reading(0.998, "SEARCH taken at lines 3-4", DIFF), Reading(0.5, "at 9", "\n".join([DIFF] * 4))),
    "src/settings.py",
)


def shown(fault: EditRefused | ModelUnavailable, width: int = 80, *, terminal: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False)
    print_refusal(fault, console)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown(EditRefused(REASON.reason, reasons=(REASON,)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_code_is_whole_where_the_output_is_no_terminal() -> None:
    text = shown(EditRefused(REASON.reason, reasons=(REASON,)), terminal=False)
    assert f"  + {LONG.upper()}\n" in text


def test_everything_that_a_reason_holds_is_shown_in_order() -> None:
    text = shown(EditRefused(REASON.reason, reasons=(REASON,)))
    parts = [
        "hunk: src/settings.py: The SEARCH",
        "Lines 3-4 are nearest",
        "one of these, the likeliest of 12",
        "1. SEARCH taken at lines 3-4 (score 0.99)",
        "2. at 9 (score 0.50)",
        "(8 more lines)",
        "Copy the SEARCH lines",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_every_refused_file_is_named_and_the_sixth_is_counted() -> None:
    reasons = tuple(Reason("file_missing", f"'{n}.py' is not there", path=f"{n}.py") for n in range(7))
    text = shown(EditRefused("7 files cannot be edited", reasons=reasons))
    assert "'4.py' is not there" in text
    assert "'5.py'" not in text
    assert "2 more files" in text


def test_a_missing_model_comes_with_the_reason_why_it_was_asked_for_and_a_command_to_copy() -> None:
    fault = ModelUnavailable("x" * 70 + ": run `hunk models pull qwen2.5-coder-1.5b`")
    fault.reasons = (REASON,)
    text = shown(fault)
    assert "hunk models pull qwen2.5-coder-1.5b" in text
    assert "src/settings.py: The SEARCH lines" in text


def test_the_result_of_several_files_has_a_line_for_each() -> None:
    failed = Check("parse_errors", False, "1 syntax error")
    made = FileResult("a", "merged", "x\n", "--- a/a\n", "deterministic", "exact", 1, "certain", (failed,), "", "")
    moved = FileResult("b", "merged", "", "", "model", "model", 1, "model", (), "", "", action="move", move_to="c")
    file = io.StringIO()
    print_remarks(ApplyResult((made, moved), Usage(), {"total_ms": 1.0}), Console(file=file, width=80), "written")
    lines = file.getvalue().splitlines()
    assert lines[0] == "a: merged by rule (exact), certain"
    assert lines[-1] == "2 of 2 files changed; written"
    assert "  parse_errors: 1 syntax error" in lines
    assert "b to c: merged by the model, checked" in lines


@pytest.mark.parametrize(
    ("scope", "line"),
    [
        (GivenScope("file", ((1, 9),), 9, 9), "  the model was given the whole file, 9 lines"),
        (
            GivenScope("regions", ((1, 4), (700, 731)), 36, 10_000),
            "  the model was given lines 1-4, lines 700-731 of 10000, and an outline of the rest",
        ),
    ],
)
def test_what_the_model_was_given_and_what_it_did_with_it_are_shown(scope: GivenScope, line: str) -> None:
    made = FileResult("a", "merged", "x\n", "", "model", "model", 2, "scored", (), "", "", scope=scope)
    file = io.StringIO()
    print_remarks(ApplyResult((made,), Usage(), {"total_ms": 1.0}), Console(file=file, width=80), "written")
    headline, given, cost = file.getvalue().splitlines()
    assert headline == "merged by the model, chosen and checked; written"
    assert given == line
    assert "0 forward passes" in cost


def test_where_the_prompts_kv_came_from_is_shown() -> None:
    made = FileResult("a", "merged", "x\n", "", "model", "model", 1, "model", (), "", "")

    def cost(usage: Usage) -> str:
        file = io.StringIO()
        print_remarks(ApplyResult((made,), usage, {"total_ms": 1.0}), Console(file=file), "written")
        return file.getvalue().splitlines()[-1]

    assert "9 prompt tokens (4 cached), " in cost(Usage(prompt=9, cached=4, recomputed=5, recomputed_by={"changed": 5}))
    approximate = Usage(
        prompt=9, cached=2, reused_approximate=4, recomputed=3, recomputed_by={"changed": 0, "asked": 2, "tail": 1}
    )
    assert "9 prompt tokens (2 cached, 4 reused approximately, 3 run: 2 asked, 1 tail), " in cost(approximate)


PATCH = """diff --git a/src/a.py b/src/a.py
--- a/src/a.py
+++ b/src/a.py
@@ -1,2 +1,2 @@
-timeout_seconds = 10
+timeout_seconds = 30
 retries = 2
diff --git a/old.py b/src/new.py
similarity index 100%
rename from old.py
rename to src/new.py
diff --git a/gone.py b/gone.py
deleted file mode 100644
--- a/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-nothing = 0
diff --git a/docs/x.md b/docs/x.md
new file mode 100644
--- /dev/null
+++ b/docs/x.md
@@ -0,0 +1 @@
+# X
"""
BEFORE = {"src/a.py": "timeout_seconds = 10\nretries = 2\n", "old.py": "old = 1\n", "gone.py": "nothing = 0\n"}
AFTER = {"src/a.py": "timeout_seconds = 30\nretries = 2\n", "src/new.py": "old = 1\n", "docs/x.md": "# X\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name, text in BEFORE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_nothing_is_written_without_write(root: Path) -> None:
    done = hunk_here("apply", "--edit", "-", "--root", root, stdin=PATCH)
    assert done.exit_code == 0, done.exception
    assert files(root) == BEFORE
    for words in ("old.py to src/new.py: merged by rule", "delete gone.py:", "create docs/x.md:"):
        assert words in done.stderr
    assert "+# X" in done.stdout


@pytest.mark.parametrize("remote", [False, True], ids=["here", "service"])
def test_a_patch_is_written_whole_and_a_second_time_is_a_noop(root: Path, remote: bool) -> None:
    with serving(ScriptedMerger()) as url:
        command = ["apply", "--edit", "-", "--root", root, "--write", "--json", *(["--url", url] if remote else [])]
        done = hunk(*command, stdin=PATCH)
        assert done.returncode == 0, done.stderr
        assert files(root) == AFTER
        assert [file["action"] for file in json.loads(done.stdout)["files"]] == ["update", "move", "delete", "create"]
        again = hunk(*command, stdin=PATCH)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["status"] == "noop"
    assert files(root) == AFTER


def test_one_file_that_is_refused_leaves_all_and_is_named(root: Path) -> None:
    (root / "src" / "a.py").write_text("timeout_minutes = 1\n")
    before = files(root)
    done = hunk("apply", "--edit", "-", "--root", root, "--write", "--mode", "deterministic", stdin=PATCH)
    assert done.returncode == 3
    assert "src/a.py" in done.stderr
    assert files(root) == before


def test_a_link_out_of_the_root_is_neither_read_nor_written(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "a.py"
    outside.write_text(BEFORE["src/a.py"])
    (root / "src" / "a.py").unlink()
    (root / "src" / "a.py").symlink_to(outside)
    done = hunk("apply", "--edit", "-", "--root", root, "--write", stdin=PATCH)
    assert done.returncode == 2
    assert "leads out of the root" in done.stderr
    assert outside.read_text() == BEFORE["src/a.py"]
    assert (root / "old.py").exists()


def test_a_file_takes_its_part_of_the_patch_and_the_others_stay(root: Path) -> None:
    done = hunk_here("apply", root / "src" / "a.py", "--edit", "-", "--write", stdin=PATCH)
    assert done.exit_code == 0, done.exception
    assert files(root) == BEFORE | {"src/a.py": AFTER["src/a.py"]}


def test_an_edit_without_names_and_a_file_beside_a_root_are_wrong_usage(root: Path) -> None:
    block = "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n"
    unnamed = hunk("apply", "--edit", "-", "--root", root, stdin=block)
    assert (unnamed.returncode, "name its file" in unnamed.stderr) == (2, True)
    both = hunk("apply", root / "old.py", "--edit", "-", "--root", root, stdin=PATCH)
    assert (both.returncode, "--root" in both.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("lazy", "# ... existing code ...\nretries = 2\nmost_retries = 3\n"),
        ("search_replace", "<<<<<<< SEARCH\ntimeout_seconds = 10\n=======\ntimeout_seconds = 30\n>>>>>>> REPLACE\n"),
        ("udiff", "@@ -1 +1 @@\n-timeout_seconds = 10\n+timeout_seconds = 30\n"),
        ("v4a", "*** Begin Patch\n*** Update File: a.py\n-timeout_seconds = 10\n+timeout_seconds = 30\n*** End Patch"),
        ("whole", "```python\ntimeout_seconds = 30\nretries = 2\n```\n"),
        ("replace", '{"old_string": "seconds = 10", "new_string": "seconds = 30"}'),
        ("lines", '{"start_line": 1, "end_line": 1, "old": "timeout_seconds = 10", "new": "timeout_seconds = 30"}'),
    ],
)
def test_every_format_is_taken_by_name(root: Path, name: str, edit: str) -> None:
    file = root / "src" / "a.py"
    done = hunk_here("apply", file, "--edit", "-", "--format", name, "--mode", "deterministic", "--write", stdin=edit)
    assert done.exit_code == 0, done.exception
    assert file.read_text() != BEFORE["src/a.py"]


def test_the_policy_decides_whether_a_failed_check_rejects(root: Path) -> None:
    file = root / "src" / "a.py"
    before = "".join(f"def step_{number}():\n    return {number}\n\n\n" for number in range(9))
    file.write_text(before)
    edit = "def step_8():\n    return 8\n"
    sent = ("apply", file, "--edit", "-", "--format", "whole", "--mode", "deterministic", "--write")
    strict = hunk_here(*sent, stdin=edit)
    assert (strict.exit_code, "symbols_kept" in strict.stderr) == (3, True)
    assert file.read_text() == before
    lenient = hunk_here(*sent, "--policy", "lenient", stdin=edit)
    assert (lenient.exit_code, "symbols_kept" in lenient.stderr, file.read_text()) == (0, True, edit)


def test_an_explicit_edit_made_to_the_letter_is_not_rejected_for_its_syntax(root: Path) -> None:
    file = root / "src" / "a.py"
    edit = "<<<<<<< SEARCH\nretries = 2\n=======\nretries = (2\n>>>>>>> REPLACE\n"
    done = hunk_here("apply", file, "--edit", "-", "--json", stdin=edit)
    assert done.exit_code == 0
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "parse_errors"]
    assert check["detail"].startswith("1 syntax errors, 0 before")


def test_check_says_whether_an_edit_applies_and_prints_no_difference(file: Path) -> None:
    done = applied("a.py", "--check")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "merged by rule (exact), certain; only checked\n"
    refused = applied("a.py", "--check", "--mode", "deterministic", edit=EDIT.replace("return 2", "return 5"))
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert file.read_text() == FILE


def test_a_text_on_standard_input_is_merged_to_standard_output(file: Path, tmp_path: Path) -> None:
    (tmp_path / "edit").write_text(EDIT)
    done = hunk_here("apply", "-", "--edit", "edit", stdin=FILE)
    assert (done.exit_code, done.stdout) == (0, MERGED)
    named = hunk_here("apply", "-", "-e", "edit", "--stdin-filename", "x/y.py", "--json", stdin=FILE)
    assert json.loads(named.stdout)["diff"].startswith("--- a/x/y.py\n")
    assert hunk_here("apply", "-", "-e", "edit", "-o", "new.py", stdin=FILE).stdout.startswith("--- a/file\n")
    assert (tmp_path / "new.py").read_text() == MERGED


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("a.py", "-e", "edit", "-e", "edit"), "--edit is given more than once"),
        (("-", "-e", "-"), "cannot both be standard input"),
        (("-", "-e", "edit", "--write"), "standard input cannot be written"),
        (("a.py", "-e", "edit", "--check", "--write"), "--check writes nothing"),
        (("a.py", "-e", "edit", "--patch"), "no terminal"),
        (("a.py", "-e", "edit", "--patch", "--json"), "asks on the terminal"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    file: Path, tmp_path: Path, arguments: tuple[str, ...], fault: str
) -> None:
    (tmp_path / "edit").write_text(EDIT)
    done = hunk_here("apply", *arguments)
    assert isinstance(done.exception, BadRequest)
    assert fault in str(done.exception)
    assert file.read_text() == FILE


TWO = "<<<<<<< SEARCH\n    return 1\n=======\n    return 7\n>>>>>>> REPLACE\n" + EDIT
SPREAD = FILE.replace("\n\n\n", "\n\n\n# a\n# b\n# c\n# d\n# e\n# f\n# g\n\n\n")


@pytest.mark.parametrize(
    ("answers", "taken"),
    [("ny", [2]), ("yn", [1]), ("a", [1, 2]), ("d", []), ("q", []), ("yq", [1]), ("?x", None)],
)
def test_patch_takes_the_hunks_that_are_chosen(
    file: Path, monkeypatch: pytest.MonkeyPatch, answers: str, taken: list[int] | None
) -> None:
    file.write_text(SPREAD)
    left = iter(answers)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(left, "n"))
    result = ApplyResult((edit_file(SPREAD, TWO),), Usage(), {"total_ms": 1.0})
    (chosen,) = choose_hunks(result, lambda _: SPREAD.encode()).files
    expected = SPREAD
    for number, (old, new) in enumerate([("return 1", "return 7"), ("return 2", "return 3")], 1):
        expected = expected.replace(old, new) if number in (taken or []) else expected
    assert chosen.merged == expected
    assert chosen.status == ("merged" if taken else "noop")
    assert chosen.checks[0].detail == f"{len(taken or [])} of 2 hunks were taken"


def edit_file(text: str, edit: str) -> FileResult:
    return Applier(lambda: pytest.fail("no model is needed")).apply(ApplyRequest(text.encode(), edit, "a.py")).file


def test_a_new_file_is_one_hunk(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = json.dumps({"command": "create", "path": "b.py", "file_text": "b = 1\n"})
    applier = Applier(lambda: pytest.fail("no model is needed"))
    result = applier.apply_patch(PatchRequest(edit), lambda _: None)
    for answer, number in (("y", 1), ("n", 0)):
        monkeypatch.setattr("typer.prompt", lambda *_, answer=answer, **__: answer)
        assert len(choose_hunks(result, lambda _: None).files) == number


def test_patch_asks_on_a_terminal_and_writes(file: Path, tmp_path: Path) -> None:
    file.write_text(SPREAD)
    (tmp_path / "edit").write_text(TWO)
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover -- the child becomes the command
        os.execv(HUNK, ["hunk", "apply", str(file), "-e", str(tmp_path / "edit"), "-p"])
    shown = b""
    for answer in (b"n\n", b"y\n"):
        while not shown.rstrip().endswith(b"[y,n,a,d,q,?]:"):
            shown += os.read(terminal, 4096)
        os.write(terminal, answer)
        shown = b""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert file.read_text() == SPREAD.replace("return 2", "return 3")


SNIPPET = "def f():\n    # ... existing code ...\n    return 9\n"


def test_a_running_service_is_asked_only_for_what_needs_a_model_and_lies_in_its_folder(
    file: Path, tmp_path: Path, loads: list[str]
) -> None:
    wanted = FILE.replace("return 1", "return 9")
    with serving(ScriptedMerger(wanted), tmp_path) as url, announce(url, "scripted", [tmp_path]):
        assert "asking" not in applied("a.py").stderr
        done = applied("a.py", "--mode", "model", "--write", edit=SNIPPET)
        assert done.exit_code == 0, done.stderr
        assert f"asking the running service at {url}" in done.stderr
        assert file.read_text() == wanted
        file.write_text(FILE)
        assert loads == []
        for options in (["--own-model"], ["--dtype", "float32"], ["--model", "smollm2-135m"]):
            assert "asking" not in applied("a.py", "--mode", "model", *options, edit=SNIPPET).stderr
        elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere.py"
        elsewhere.write_text(FILE)
        assert "asking" not in applied(elsewhere, "--mode", "model", edit=SNIPPET).stderr
        assert len(loads) == 4


def test_the_number_of_tokens_stays_in_one_line_of_a_terminal_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    counter = pipeline.TokenCounter()
    counter.clear()
    assert capsys.readouterr().err == ""
    counter.on_tokens(7)
    counter.on_tokens(8)
    counter.clear()
    assert capsys.readouterr().err == "\r7 tokens written\r8 tokens written\r\x1b[2K"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A history in a cache of the test."""
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HUNK_HISTORY", "10")


@pytest.mark.usefixtures("kept")
def test_a_write_stays_where_the_command_after_it_succeeds_and_is_undone_where_it_fails(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = applied("a.py", "--write", "--then", "echo fine; grep -q 'return 3' a.py")
    assert done.exit_code == 0
    assert file.read_text() == MERGED
    file.write_text(FILE)
    failed = applied("a.py", "--write", "--then", "grep -q 'return 9' a.py")
    assert failed.exit_code == 3
    assert failed.stderr.splitlines()[-1] == "the write is undone: \"grep -q 'return 9' a.py\" ended with 1"
    assert file.read_text() == FILE


@pytest.mark.usefixtures("kept")
def test_a_command_that_changes_the_file_itself_keeps_the_write_and_says_so(file: Path) -> None:
    done = applied("a.py", "--write", "--then", "echo '# more' >> a.py; false")
    assert isinstance(done.exception, Stale)
    assert file.read_text() == MERGED + "# more\n"


@pytest.mark.usefixtures("kept")
def test_an_interrupted_command_takes_the_write_back_and_says_so(file: Path) -> None:
    done = applied("a.py", "--write", "--then", "kill -INT $PPID; sleep 0.1")
    assert done.stderr.splitlines()[-1] == "the write is undone: 'kill -INT $PPID; sleep 0.1' was interrupted"
    assert done.exit_code != 0
    assert file.read_text() == FILE


@pytest.mark.usefixtures("kept")
def test_then_is_for_writes_that_can_be_undone(file: Path) -> None:
    for arguments in (["--then", "true"], ["--write", "--history", "0", "--then", "true"]):
        assert "--then needs --write" in str(applied("a.py", *arguments).exception)
    assert file.read_text() == FILE


@pytest.mark.usefixtures("kept")
def test_the_answer_names_the_write(file: Path) -> None:
    answer = json.loads(applied("a.py", "--write", "--json").stdout)
    assert answer["written"]
    assert hunk_here("undo", answer["write_id"]).exit_code == 0
    assert file.read_text() == FILE


@pytest.mark.usefixtures("kept")
def test_a_failed_command_says_that_nothing_was_kept(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "history").write_text("in its place")
    done = applied("a.py", "--write", "--then", "false")
    assert done.exit_code == 3
    assert "the write stays" in done.stderr
    assert file.read_text() == MERGED
