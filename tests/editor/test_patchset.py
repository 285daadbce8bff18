r"""Edits of several files: all or none, in order, recognised when they are done already."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from editor.formats import unified_diff, v4a
from editor.patch_set import PatchResult, list_paths, merge_files
from editor.types import AlreadyApplied, Merged, Unresolved


def v4a_patch(files: Mapping[str, str], *lines: str, compat: bool = False) -> PatchResult:
    edits = v4a.parse_files("\n".join(["*** Begin Patch", *lines, "*** End Patch"]))
    return merge_files(files, edits, compat=compat)


def diff(files: Mapping[str, str], text: str) -> PatchResult:
    return merge_files(files, unified_diff.parse_files(text))


def code(result: PatchResult) -> str:
    (refused,) = result.refusals
    assert isinstance(refused.outcome, Unresolved)
    assert refused.outcome.suggestion
    assert not result.writes
    return refused.outcome.code


def after(files: Mapping[str, str], result: PatchResult) -> dict[str, str]:
    kept = {path: text for path, text in files.items() if result.writes.get(path, text) is not None}
    return kept | {path: text for path, text in result.writes.items() if text is not None}


def is_applied(result: PatchResult) -> bool:
    return all(isinstance(file.outcome, AlreadyApplied) for file in result.files)


FILES = {"a.py": "one\ntwo\n", "b.py": "three\n", "c.py": "four\n"}
PATCH = (
    *("*** Add File: new/d.py", "+five"),
    *("*** Update File: a.py", "@@", " one", "-two", "+two_is_changed"),
    *("*** Update File: b.py", "*** Move to: lib/b.py", "@@", "-three", "+three_is_changed"),
    "*** Delete File: c.py",
)


def test_all_kinds_of_edits_at_once() -> None:
    result = v4a_patch(FILES, *PATCH)
    assert not result.refusals
    assert result.writes == {
        "new/d.py": "five\n",
        "a.py": "one\ntwo_is_changed\n",
        "b.py": None,
        "lib/b.py": "three_is_changed\n",
        "c.py": None,
    }
    assert [(file.action, file.path, file.new_path, file.text) for file in result.files] == [
        ("create", "new/d.py", "new/d.py", "five\n"),
        ("update", "a.py", "a.py", "one\ntwo_is_changed\n"),
        ("update", "b.py", "lib/b.py", "three_is_changed\n"),
        ("delete", "c.py", "c.py", None),
    ]
    assert result.partial == {}


def test_the_same_set_twice_is_recognised() -> None:
    again = v4a_patch(after(FILES, v4a_patch(FILES, *PATCH)), *PATCH)
    assert is_applied(again)
    assert (again.writes, again.refusals) == ({}, ())


def test_one_refused_edit_keeps_all_from_being_written() -> None:
    files = {**FILES, "a.py": "one\nsomething else\n"}
    result = v4a_patch(files, *PATCH)
    assert code(result) == "not_found"
    assert [file.ok for file in result.files] == [True, False, True, True]


def test_creating_a_file_that_is_there() -> None:
    assert code(v4a_patch({"x": "old\n"}, "*** Add File: x", "+new")) == "file_exists"
    same = v4a_patch({"x": "new\n"}, "*** Add File: x", "+new")
    assert is_applied(same)


def test_files_that_are_missing() -> None:
    assert code(v4a_patch({}, "*** Delete File: x")) == "file_missing"
    assert code(v4a_patch({}, "*** Update File: x", "@@", "-a")) == "file_missing"
    assert code(v4a_patch({}, "*** Update File: x", "*** Move to: y", "@@", "-a")) == "file_missing"
    assert code(v4a_patch({"y": "b\n"}, "*** Update File: x", "*** Move to: y", "@@", "-a", "+c")) == "file_missing"


def test_moving_onto_another_file() -> None:
    result = v4a_patch({"x": "a\n", "y": "b\n"}, "*** Update File: x", "*** Move to: y", "@@", "-a", "+c")
    assert code(result) == "file_exists"


def test_edits_of_one_file_are_applied_in_turn() -> None:
    files = {"x": "a\n"}
    twice = v4a_patch(files, "*** Update File: x", "@@", "-a", "+b", "*** Update File: x", "@@", "-b", "+c")
    assert twice.writes == {"x": "c\n"}
    created = v4a_patch({}, "*** Add File: x", "+a", "*** Update File: x", "@@", "-a", "+b")
    assert created.writes == {"x": "b\n"}
    moved = v4a_patch(
        files, "*** Update File: x", "*** Move to: y", "@@", "-a", "+b", "*** Update File: y", "@@", "-b", "+c"
    )
    assert moved.writes == {"x": None, "y": "c\n"}
    rewritten = v4a_patch(files, "*** Delete File: x", "*** Add File: x", "+new")
    assert rewritten.writes == {"x": "new\n"}


def test_edits_of_one_file_that_contradict_each_other() -> None:
    files = {"x": "a\n"}
    assert code(v4a_patch(files, "*** Update File: x", "@@", "-a", "+b", "*** Delete File: x")) == "open_intent"
    assert code(v4a_patch(files, "*** Delete File: x", "*** Update File: x", "@@", "-a", "+b")) == "file_missing"
    assert code(v4a_patch({}, "*** Add File: x", "+a", "*** Add File: x", "+b")) == "file_exists"


def test_a_diff_that_swaps_two_names() -> None:
    text = "".join(
        f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"
        for old, new in (("x", "y"), ("y", "x"))
    )
    assert diff({"x": "a\n", "y": "b\n"}, text).writes == {"x": "b\n", "y": "a\n"}


def test_a_rename_alone_and_done_already() -> None:
    text = "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
    assert diff({"x": "a\n"}, text).writes == {"x": None, "y": "a\n"}
    assert is_applied(diff({"y": "a\n"}, text))


def test_a_diff_deletes_only_the_text_that_it_quotes() -> None:
    text = "--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"
    assert diff({"x": "a\nb\n"}, text).writes == {"x": None}
    assert code(diff({"x": "a\nb\nadded since\n"}, text)) == "stale"
    assert code(diff({"x": "a\nc\n"}, text)) == "stale"


def test_a_created_file_without_final_newline_and_an_empty_one() -> None:
    text = "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n"
    assert diff({}, text).writes == {"x": "a"}
    assert diff({}, "diff --git a/x b/x\nnew file mode 100644\n").writes == {"x": ""}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "C:\\x", "\\\\host\\x", "~/x", "a\\..\\x"])
def test_paths_outside_are_refused(path: str) -> None:
    result = v4a_patch({}, f"*** Add File: {path}", "+a")
    assert code(result) == "malformed"
    move = v4a_patch({"x": "a\n"}, "*** Update File: x", f"*** Move to: {path}", "@@", "-a", "+b")
    assert code(move) == "malformed"


def test_an_edit_without_a_path_is_refused() -> None:
    assert code(diff({}, "@@ -1 +1 @@\n-a\n+b\n")) == "malformed"


def test_paths_that_the_caller_has_to_read() -> None:
    edits = v4a.parse_files(
        "*** Begin Patch\n*** Update File: ./a//b\n*** Move to: c\n@@\n-x\n"
        "*** Delete File: /etc/x\n*** Delete File: c\n*** End Patch"
    )
    assert list_paths(edits) == ("a/b", "c")
    assert merge_files({"a/b": "x\n"}, edits[:1]).writes == {"a/b": None, "c": ""}


def test_compat_overwrites_and_keeps_what_went_before_a_failure() -> None:
    result = v4a_patch(
        {"x": "old\n"},
        *("*** Add File: x", "+new", "*** Update File: gone", "@@", "-a", "*** Add File: z", "+never"),
        compat=True,
    )
    assert [file.ok for file in result.files] == [True, False]
    assert (result.writes, result.partial) == ({}, {"x": "new\n"})


def test_outcomes_say_what_was_done() -> None:
    result = v4a_patch({"x": "a\nlong_enough_line\n"}, "*** Update File: x", "@@", " a", "-b", "+long_enough_line")
    assert isinstance(result.files[0].outcome, AlreadyApplied)
    merged = v4a_patch({"x": "a\n"}, "*** Update File: x", "@@", "-a", "+b").files[0]
    assert merged.outcome == Merged("b\n", "exact")
