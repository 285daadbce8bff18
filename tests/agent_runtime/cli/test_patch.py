"""`hunk apply` without FILE: edits the files below --root that the edit names, all or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent_runtime.cli.test_cli import hunk
from tests.agent_runtime.in_process import hunk_here
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.server.test_http import serving

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
