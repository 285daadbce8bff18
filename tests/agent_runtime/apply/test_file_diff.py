"""Diffs of whole files: `git apply` and Hunk itself take them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agent_runtime.apply.result import render_file_diff
from editor.formats import parse_files
from editor.patch_set import merge_files

CASES = [
    ("a\nb\n", "a\nc\n", ""),
    ("a\nb\n", "a\nc\n", "new.py"),
    ("a\nb\n", "a\nb\n", "new.py"),
    ("a\n", "a", ""),
    (None, "a\nb\n", ""),
    (None, "", ""),
    ("a\nb\n", None, ""),
    ("", None, ""),
]


@pytest.mark.parametrize(("before", "after", "move_to"), CASES)
@pytest.mark.parametrize("path", ["old.py", "with space.py"])
def test_git_applies_it(tmp_path: Path, before: str | None, after: str | None, move_to: str, path: str) -> None:
    if before is not None:
        (tmp_path / path).write_text(before)
    patch = render_file_diff(before, after, path, move_to)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    wanted = {} if after is None else {move_to or path: after}
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == wanted


@pytest.mark.parametrize(("before", "after", "move_to"), CASES)
def test_hunk_reads_it_back(before: str | None, after: str | None, move_to: str) -> None:
    edits = parse_files(render_file_diff(before, after, "old.py", move_to))
    result = merge_files({} if before is None else {"old.py": before}, edits)
    assert not result.refusals
    assert result.writes.get(move_to or "old.py") == after
    if move_to:
        assert result.writes["old.py"] is None


def test_equal_texts_have_no_diff() -> None:
    assert render_file_diff("a\n", "a\n", "a.py") == ""
