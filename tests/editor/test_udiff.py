r"""Unified diffs: read as tools and models write them, and rendered so that `git apply` makes the new text."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import unidiff
from hypothesis import given, settings
from hypothesis import strategies as st

from editor import diff as alignment
from editor.diff import line_opcodes, render_unified_diff
from editor.errors import EditSyntaxError
from editor.formats.unified_diff import looks_like, parse_files
from editor.types import Hint, ParsedEdit, Replacement
from tests.editor.recorded import DATA


def one(diff: str) -> ParsedEdit:
    (edit,) = parse_files(diff)
    return edit


def change(diff: str) -> Replacement:
    changes = one(diff).changes
    assert isinstance(changes, tuple)
    (only,) = changes
    return only


def refused(diff: str) -> str:
    with pytest.raises(EditSyntaxError) as error:
        parse_files(diff)
    assert error.value.suggestion
    return error.value.message


HEADER = "--- a/x.py\n+++ b/x.py\n"
BODY = " a\n-b\n+c\n d\n"
CHANGE = (("a", "b", "d"), ("a", "c", "d"))


def test_a_git_diff() -> None:
    edit = one(
        "diff --git a/x.py b/x.py\nindex 1234567..89abcde 100644\n" + HEADER + "@@ -4,3 +4,3 @@ def f():\n" + BODY
    )
    assert edit.changes == (Replacement(*CHANGE, Hint(line=3, scopes=("def f():",))),)
    assert (edit.format, edit.path, edit.move_to, edit.action) == ("udiff", "x.py", "", "update")
    assert (edit.ordered, edit.final_newline, edit.detected) == (True, None, "git diff with 1 hunk")


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("@@ -4,3 +4,3 @@", Hint(3)),
        ("@@ -4,9 +4,1 @@", Hint(3)),
        ("@@ -1,9 +1,1 @@", Hint()),
        ("@@ ... @@", Hint()),
        ("@@ @@", Hint()),
        ("@@", Hint()),
        ("@@ -,+ @@", Hint()),
        ("@@ def f(): @@", Hint(scopes=("def f():",))),
        ("@@ def f():", Hint(scopes=("def f():",))),
        ("@@ -4,3 +4,3 @@ class A", Hint(3, ("class A",))),
    ],
)
def test_line_numbers_become_hints_and_wrong_counts_do_no_harm(header: str, hint: Hint) -> None:
    assert change(f"{HEADER}{header}\n{BODY}") == Replacement(*CHANGE, hint)
    assert change(f"{header}\n{BODY}") == Replacement(*CHANGE, hint)


def test_an_insertion_with_a_count_of_zero_names_the_line_above() -> None:
    assert change(HEADER + "@@ -5,0 +6,1 @@\n+new\n").hint.line == 5
    assert change(HEADER + "@@ -0,0 +1,1 @@\n+new\n").hint.line == 0


@pytest.mark.parametrize(
    ("headers", "path", "move_to"),
    [
        ("--- x.py\n+++ x.py\n", "x.py", ""),
        ("--- a/x.py\t2024-01-01 10:00:00.000 +0000\n+++ b/x.py\t2024-01-02 10:00:00 +0000\n", "x.py", ""),
        ("--- x.py  2024-01-01 10:00:00 +0000\n+++ x.py  2024-01-02 10:00:00 +0000\n", "x.py", ""),
        ("--- a/with space.py\t\n+++ b/with space.py\t\n", "with space.py", ""),
        ('--- "a/\\303\\274 \\"q\\".py"\n+++ "b/\\303\\274 \\"q\\".py"\n', 'ü "q".py', ""),
        ("--- i/x.py\n+++ w/x.py\n", "x.py", ""),
        ("--- x.py.orig\n+++ x.py\n", "x.py", ""),
        ("--- /tmp/work/src/x.py\n+++ src/x.py\n", "src/x.py", ""),
        ("--- a/x.py\n+++ b/y.py\n", "x.py", "y.py"),
        ("Index: x.py\n=====\n--- x.py\t(revision 191)\n+++ x.py\t(working copy)\n", "x.py", ""),
        (
            "diff -r 44299fd3d1a8 x.py\n--- a/x.py\tSun Oct 13 20:51:07 2013 -0300\n+++ b/x.py\tSun Oct 13 20\n",
            "x.py",
            "",
        ),
        ("Index: x.py\n", "x.py", ""),
        (
            "Index: x.py\n=====\ndiff --git a/x.py b/x.py\n--- a/x.py\t(revision 1)\n+++ b/x.py(revision 2)\n",
            "x.py",
            "",
        ),
        ("diff --git a/x b/y\nsimilarity index 90%\nrename from x\nrename to y\n--- a/x\n+++ b/y\n", "x", "y"),
        ("", "", ""),
    ],
)
def test_file_names(headers: str, path: str, move_to: str) -> None:
    edit = one(f"{headers}@@ -4,3 +4,3 @@\n{BODY}")
    assert (edit.path, edit.move_to, edit.action) == (path, move_to, "update")


def test_a_rename_without_hunks() -> None:
    edit = one("diff --git a/old name b/new name\nsimilarity index 100%\nrename from old name\nrename to new name\n")
    assert (edit.path, edit.move_to, edit.changes) == ("old name", "new name", ())


def test_created_and_deleted_files() -> None:
    created = one("--- /dev/null\n+++ b/x.py\n@@ -0,0 +1,2 @@\n+a\n+\n")
    assert (created.action, created.path, created.changes) == ("create", "x.py", (Replacement((), ("a", "")),))
    deleted = one("--- a/x.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n")
    assert (deleted.action, deleted.path) == ("delete", "x.py")
    assert deleted.changes == (Replacement(("a", "b"), (), Hint(0)),)
    empty = one("diff --git a/x y b/x y\nnew file mode 100644\nindex 0000000..e69de29\n")
    assert (empty.action, empty.path, empty.changes) == ("create", "x y", ())
    stamped = one("--- x\t1970-01-01 00:00:00 +0000\n+++ x\t2013-10-13 23:44:04 +0000\n@@ -0,0 +1 @@\n+a\n")
    assert stamped.action == "create"


@pytest.mark.parametrize(
    ("body", "final_newline", "at_end"),
    [
        ("-a\n\\ No newline at end of file\n+b\n", True, True),
        ("-a\n+b\n\\ No newline at end of file\n", False, True),
        ("-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n", None, True),
        ("-b\n a\n\\ No newline at end of file\n", None, True),
        (" a\n\\ No newline at end of file\n+b\n", True, True),
        ("-a\n+b\n", None, False),
    ],
)
def test_markers_of_a_missing_final_newline(body: str, final_newline: bool | None, at_end: bool) -> None:
    edit = one(f"{HEADER}@@ ... @@\n{body}")
    assert edit.final_newline is final_newline
    assert change(f"{HEADER}@@ ... @@\n{body}").hint.at_end is at_end


def test_talk_and_a_fence_around_a_diff() -> None:
    diff = f"Here is the fix:\n\n```diff\n{HEADER}@@ -1,3 +1,3 @@\n{BODY}```\n\nWhat changed:\n- b is c\n+ no more\n"
    assert change(diff) == Replacement(*CHANGE, Hint(0))


@pytest.mark.parametrize("header", ["@@ -4,3 +4,3 @@", "@@ ... @@"])
def test_prose_below_the_last_hunk(header: str) -> None:
    assert change(f"{HEADER}{header}\n{BODY}\nThis renames b.\n").before == CHANGE[0]


@pytest.mark.parametrize("header", ["@@ -1 +1,4 @@", "@@ ... @@", "@@"])
def test_added_lines_without_their_sign_below_a_hunk_are_named(header: str) -> None:
    assert "Line 6 of the diff ('and more') stands right below a hunk" in refused(
        f"{HEADER}{header}\n one\n+more\nand more\nstill more\n"
    )


def test_lines_that_the_counts_ask_for_are_no_prose() -> None:
    assert "Line 7" in refused(HEADER + "@@ -1 +1,4 @@\n one\n+more\n\nreturn x\n")
    assert one(HEADER + "@@ -1 +1,9 @@\n one\n+more\n\nThis adds more.\n").prose == "This adds more."


@pytest.mark.parametrize(
    "below",
    ["```\nDone.\n", "EOF\n", "diff -u y y\n", "Only in a: b\n", "-- \n2.38.1\n", "</diff>\n", "\tcontext();\n"],
)
def test_what_may_stand_right_below_a_hunk(below: str) -> None:
    assert change(f"{HEADER}@@ -1,3 +1,4 @@\n a\n+b\n c\n{below}").after == ("a", "b", "c")


def test_a_removed_line_that_looks_like_a_header_is_refused_without_counts() -> None:
    body = "@@ @@\n a\n--- old\n+++ new\n@@ @@\n d\n-e\n+f\n"
    assert "may name another file, or be a line that goes" in refused("--- a/q.lua\n+++ b/q.lua\n" + body)
    first, second = one("--- a/q.lua\n+++ b/q.lua\n" + body.replace("@@ @@", "@@ -1,2 +1,2 @@")).changes
    assert (first.before, first.after) == (("a", "-- old"), ("a", "++ new"))
    assert second.before == ("d", "e")


def test_a_hunk_in_a_fence_for_diffs_needs_no_header() -> None:
    edit = "Change a:\n```diff\n-a = 1\n+a = 2\n```\nand c:\n\n```diff\n b = 1\n-c = 1\n+c = 2\n```\n"
    assert looks_like(edit)
    assert one(edit).changes == (
        Replacement(("a = 1",), ("a = 2",)),
        Replacement(("b = 1", "c = 1"), ("b = 1", "c = 2")),
    )
    assert one(edit).prose == "Change a:\nand c:"
    assert not looks_like("```diff\nflask\n+pytest\n```\n")


@pytest.mark.parametrize(
    "more",
    [
        "2. Then:\n   ```diff\n   @@ -3 +3 @@\n   -c\n   +d\n   ```\n",
        "and\n\n<<<<<<< SEARCH\nc\n=======\nd\n>>>>>>> REPLACE\n",
        '{"old_string": "c", "new_string": "d"}\n',
        "*** Update File: x.py\n",
    ],
)
def test_a_second_change_in_another_form_is_not_talk(more: str) -> None:
    assert "would be lost" in refused(f"```diff\n{HEADER}@@ -4,3 +4,3 @@\n{BODY}```\n{more}")


def test_a_mail_signature_is_no_removed_line() -> None:
    assert change(HEADER + "@@ -4,3 +4,3 @@\n" + BODY + "-- \n2.38.1\n\n").before == CHANGE[0]
    assert change(HEADER + "@@ ... @@\n" + BODY + "-- \n2.38.1\n").before == CHANGE[0]


def test_blank_context_lines_may_lack_their_space() -> None:
    assert change(HEADER + "@@ -1,4 +1,4 @@\n a\n\n-b\n+c\n\n").before == ("a", "", "b", "")
    assert change(HEADER + "@@ ... @@\n a\n\n-b\n+c\n\n\n").before == ("a", "", "b")


def test_a_line_of_a_hunk_without_its_sign_is_named() -> None:
    assert refused(HEADER + "@@ -1,3 +1,3 @@\n a\nb = 1\n-c\n+d\n") == (
        "Line 5 of the diff ('b = 1') stands among the lines of a hunk, but begins with none of ' ', '+', '-'."
    )
    assert "Line 6" in refused(HEADER + "@@ -1,2 +1,2 @@\n a\n-b\n+b\nlost\n+c\n").replace("Line 7", "Line 6")


def test_header_lookalikes_inside_a_hunk_are_content_by_the_counts() -> None:
    diff = HEADER + "@@ -1,3 +1,3 @@\n a\n--- x\n+++ y\n b\n@@ -9,2 +9,2 @@\n-c\n+d\n e\n"
    first, second = one(diff).changes
    assert (first.before, first.after) == (("a", "-- x", "b"), ("a", "++ y", "b"))
    assert second.before == ("c", "e")


def test_headers_behind_a_hunk_with_wrong_counts_are_headers() -> None:
    for header in ("@@ -4,4 +4,4 @@", "@@ -4,9 +4,9 @@", "@@ ... @@"):
        first, second = parse_files(f"{HEADER}{header}\n{BODY}--- a/y.py\n+++ b/y.py\n@@ -1,1 +1,1 @@\n-q\n+r\n")
        assert (first.path, second.path) == ("x.py", "y.py")
        assert first.changes[0].before == CHANGE[0]


def test_several_files_and_hunks() -> None:
    diff = (
        f"diff --git a/x.py b/x.py\n{HEADER}@@ -1,3 +1,3 @@\n{BODY}@@ -9,3 +9,3 @@\n{BODY}"
        "diff --git a/y b/y\ndeleted file mode 100644\n--- a/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-q\n"
    )
    assert [(edit.path, edit.action, len(edit.new_lines)) for edit in parse_files(diff)] == [
        ("x.py", "update", 6),
        ("y", "delete", 0),
    ]


def test_windows_line_endings() -> None:
    assert change((HEADER + "@@ -4,3 +4,3 @@\n" + BODY).replace("\n", "\r\n")) == Replacement(*CHANGE, Hint(3))


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        ("diff --git a/x b/x\nGIT binary patch\nliteral 3\n", "binary file"),
        ("diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n", "binary file"),
        ("diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n", "copies a file"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "changes only the mode"),
        ("diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+y\n", "symbolic link"),
        ("@@@ -1,2 -1,2 +1,3 @@@\n  a\n", "combined diff"),
        ("*** x\n--- y\n***************\n*** 1,2 ****\n", "context diff"),
        (HEADER + "@@ -1,1 +1,1 @@\n", "without any line"),
        ("--- /dev/null\n+++ b/x\n@@ -1,1 +1,2 @@\n a\n+b\n", "creates a file"),
        ("no diff at all\n", "no line that begins with '@@'"),
    ],
)
def test_what_cannot_be_applied_is_refused_by_name(diff: str, message: str) -> None:
    assert message in refused(diff)


def test_a_mode_change_beside_hunks_is_told() -> None:
    diff = f"diff --git a/x.py b/x.py\nold mode 100644\nnew mode 100755\n{HEADER}@@ -1,3 +1,3 @@\n{BODY}"
    assert one(diff).detected == "git diff with 1 hunk, its mode change left out"


def test_a_hunk_straight_below_the_file_names() -> None:
    assert change(HEADER + BODY) == Replacement(*CHANGE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEADER + "@@ -1,3 +1,3 @@\n" + BODY, True),
        ("Sure:\n```diff\n@@ ... @@\n" + BODY + "```\n", True),
        ("diff --git a/x b/x\nnew file mode 100644\n", True),
        ("@@\n-a\n+b\n", True),
        ("def f():\n    return 1\n", False),
        ("# Title\n---\n+ item\n", False),
        ("x @@ y\n", False),
        ("a\n" * 6 + "@@ decorated\n- x\n", False),
    ],
)
def test_looks_like(text: str, expected: bool) -> None:
    assert looks_like(text) is expected


SAMPLES = sorted(DATA.glob("unidiff/samples/*.diff"))
REFUSED = {
    "binary.diff": "binary file",
    "debdiff.diff": "binary file",
    "git_symlink.diff": "symbolic link",
    "sample8.diff": "binary file",
}
# unidiff raises on these; how many files there are.
WRONG_COUNTS = {"sample1.diff": 1, "sample2.diff": 2, "sample6.diff": 1, "sample7.diff": 1}


@pytest.mark.parametrize("file", SAMPLES or [None], ids=lambda file: file.name if file else "absent")
def test_real_diffs_are_read_as_unidiff_reads_them(file: Path | None) -> None:
    if file is None:
        pytest.skip(f"recorded diffs are not at hand: {DATA / 'unidiff'}")
    text = file.read_bytes().decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    if file.name in REFUSED:
        assert REFUSED[file.name] in refused(text)
        return
    edits = parse_files(text)
    if file.name in WRONG_COUNTS:
        assert len(edits) == WRONG_COUNTS[file.name]
        with pytest.raises(unidiff.UnidiffParseError):
            unidiff.PatchSet(text)
        return
    patch = unidiff.PatchSet(text)
    assert [edit.path for edit in edits] == [_old_path(file) for file in patch]
    for edit, theirs in zip(edits, patch, strict=True):
        assert [_lines(one) for one in edit.changes] == [
            (
                tuple(line.value.removesuffix("\n") for line in hunk if line.is_context or line.is_removed),
                tuple(line.value.removesuffix("\n") for line in hunk if line.is_context or line.is_added),
            )
            for hunk in theirs
        ]


def _old_path(file: unidiff.PatchedFile) -> str:
    """unidiff keeps the quotes and octal bytes of a name."""
    name = file.target_file if file.source_file == "/dev/null" else file.source_file
    assert name is not None
    octets = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), name.strip('"').encode())
    return octets.decode().removeprefix("a/").removeprefix("b/")


def _lines(change: Replacement) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return change.before, change.after


def test_the_pair_of_whatthepatch() -> None:
    folder = DATA / "whatthepatch" / "casefiles"
    if not folder.exists():
        pytest.skip(f"recorded diffs are not at hand: {folder}")
    edit = one((folder / "diff-unified.diff").read_text("utf-8"))
    assert (edit.path, len(edit.changes)) == ("lao", 2)
    comment = one((folder / "embedded-diff.comment").read_text("utf-8"))
    assert comment.path == "src/org/mozilla/javascript/IRFactory.java"
    assert len(comment.new_lines) == 9


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
