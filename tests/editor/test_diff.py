"""Unified diffs: `git apply` makes the new text of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor import diff as alignment
from editor.diff import line_opcodes, render_unified_diff

TEXT = st.lists(st.sampled_from(["a", "b", "c", "", "d\r", "é", "-", "+ x"]), max_size=14).map("\n".join)


def apply_diff(before: str, diff: str) -> str:
    """Apply a diff the slow and obvious way."""
    old, new, at = before.split("\n"), list[str](), 0
    last_sign, no_newline = "", {" ": False, "-": False, "+": False}
    for line in diff.split("\n")[2:-1]:
        if line.startswith("@@"):
            start, count = (int(number) for number in line.split(" ")[1][1:].split(","))
            begin = start - 1 if count else start
            new += old[at:begin]
            at = begin
        elif line.startswith("\\"):
            no_newline[last_sign] = True
        else:
            last_sign, text = line[0], line[1:]
            if last_sign in " -":
                assert old[at] == text
                at += 1
            if last_sign in " +":
                new.append(text)
    new += old[at:]
    if no_newline["-"] and not (no_newline["+"] or no_newline[" "]) and new:
        new.append("")
    if no_newline["+"] and new and new[-1] == "":
        new.pop()
    return "\n".join(new)


@given(TEXT, TEXT, st.integers(0, 3))
def test_a_diff_applied_gives_the_new_text(before: str, after: str, context: int) -> None:
    diff = render_unified_diff(before, after, "f", context)
    assert bool(diff) == (before != after)
    assert apply_diff(before, diff) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb\nc\n", "a\nB\nc\n"),
        ("a\nb", "a\nb\n"),
        ("a\nb\n", "a\nb"),
        ("a\nb", "a\nc"),
        ("", "a\nb\n"),
        ("a\n", ""),
        ("a\r\nb\r\n", "a\r\nc\r\n"),
        ("".join(f"{n}\n" for n in range(50)), "".join(f"{n}\n" for n in range(50) if n % 9)),
        ("x\x0cy\u2028z\n", "x\x0cy\u2028w\n"),
    ],
)
@pytest.mark.parametrize("name", ["f.py", "with space.py", 'quo"te.py', "ünï.py"])
def test_git_apply_takes_it(tmp_path: Path, before: str, after: str, name: str) -> None:
    (tmp_path / name).write_bytes(before.encode())
    diff = render_unified_diff(before, after, name).encode()
    command = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "-"]
    done = subprocess.run(command, input=diff, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    file = tmp_path / name
    assert (file.read_bytes() if file.exists() else b"") == after.encode()


def test_the_text_of_a_small_diff() -> None:
    assert render_unified_diff("a\nb", "a\nc\n", "x/y.py") == (
        "--- a/x/y.py\n+++ b/x/y.py\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
    )


LINES = st.lists(st.integers(0, 12), max_size=40)


@given(LINES, LINES)
@settings(max_examples=60)
def test_cutting_a_large_alignment_still_gives_a_whole_one(a: list[int], b: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "MAX_MATRIX_BITS", 9)
        ops = line_opcodes(a, b)
    rebuilt: list[int] = []
    at_a = at_b = 0
    for op in ops:
        assert (op.a_start, op.b_start) == (at_a, at_b)
        at_a, at_b = op.a_end, op.b_end
        rebuilt += a[op.a_start : op.a_end] if op.equal else b[op.b_start : op.b_end]
    assert (at_a, at_b) == (len(a), len(b))
    assert rebuilt == b
