"""`hunk check`: what edits have left in files, and what was there before."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from agent_runtime.cli.check import find_leftovers
from agent_runtime.errors import BadRequest, FileMissing
from tests.agent_runtime.serving import hunk_here

CONFLICT = "<<<<<<< HEAD\na = 1\n=======\na = 2\n>>>>>>> main\n"


def git(*arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    (tmp_path / "a.py").write_text("# ... existing code ...\nx = 1\n")
    (tmp_path / "broken.py").write_text("def f(:\n    pass\n")
    (tmp_path / "notes.txt").write_text(CONFLICT)
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "kind", "line"),
    [
        ("a.py", "x = 1\n# ... existing code ...\n# ... rest of the file ...\n", "placeholder", 3),
        ("a.py", "# ... existing code ...\n# ... existing code ...\nx = 1\n", "placeholder", 2),
        ("new.ts", "function f() {\n  // ... existing code ...\n}\n", "placeholder", 2),
        ("a.py", f"# ... existing code ...\n{CONFLICT}", "merge conflict", 2),
        ("notes.txt", CONFLICT + CONFLICT, "merge conflict", 6),
        ("a.py", "# ... existing code ...\ndef f(:\n    pass\n", "syntax error", 2),
        ("new.json", '{"a": }\n', "syntax error", 1),
    ],
)
def test_what_an_edit_has_left_is_named_with_its_line(repo: Path, name: str, text: str, kind: str, line: int) -> None:
    (repo / name).write_text(text)
    done = hunk_here("check")
    assert done.exit_code == 3
    assert f"{name}:{line}: {kind}: " in done.stdout
    (found,) = [
        one for one in json.loads(hunk_here("check", name, "--json").stdout)["leftovers"] if one["kind"] == kind
    ]
    assert (found["path"], found["line"]) == (name, line)


def test_what_was_there_before_does_not_count_unless_it_is_asked_for(repo: Path) -> None:
    for name in ("a.py", "broken.py", "notes.txt"):
        (repo / name).write_text((repo / name).read_text() + "y = 2\n")
    done = hunk_here("check")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "3 files checked, 0 leftovers of edits\n"
    everything = hunk_here("check", "--base", "", "a.py", "broken.py", "notes.txt")
    assert len(everything.stdout.splitlines()) == 3


def test_changed_and_new_files_are_found_from_a_folder_below(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / "src").mkdir()
    (repo / "src" / "new.py").write_text("# ... existing code ...\n")
    (repo / "a.py").write_text("x = 2\n# ... rest unchanged ...\n")
    (repo / "broken.py").unlink()
    monkeypatch.chdir(repo / "src")
    done = hunk_here("check")
    assert {line.split(":")[0] for line in done.stdout.splitlines()} == {"new.py", "../a.py"}


def test_a_binary_file_and_one_with_crlf_are_no_faults(repo: Path) -> None:
    (repo / "image.png").write_bytes(b"\x89PNG\0\0" + bytes(range(256)))
    (repo / "a.py").write_bytes(b"# ... existing code ...\r\nx = 1\r\n")
    assert hunk_here("check").exit_code == 0


def test_without_git_files_have_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert isinstance(hunk_here("check").exception, BadRequest)
    (tmp_path / "a.py").write_text("# ... existing code ...\n")
    assert hunk_here("check", "a.py").exit_code == 3
    assert isinstance(hunk_here("check", "none.py").exception, FileMissing)


@pytest.mark.parametrize("base", ["nope", "--output=written", "-x"])
def test_an_unknown_commit_is_refused(repo: Path, base: str) -> None:
    assert f"git knows no commit {base!r}" in str(hunk_here("check", f"--base={base}").exception)
    assert not (repo / "written").exists()


def test_no_source_of_ours_but_tests_and_prompts_has_leftovers() -> None:
    root = Path(__file__).resolve().parents[3]
    found = {
        path.relative_to(root).as_posix()
        for folder in ("agent_runtime", "editor", "engine", "kernels", "repo_cache", "hunk", "benchmarks")
        for path in (root / folder).rglob("*.py")
        if list(find_leftovers(path))
    }
    assert found <= {"agent_runtime/prompt/forms.py"}
