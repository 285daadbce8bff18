r"""Edits of several files, and V4A patches.

Edits are applied in order, all or none, and recognised if they are already applied. The scenarios of Codex are applied
by its rules and by ours.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from editor.errors import EditSyntaxError
from editor.formats import unified_diff, v4a
from editor.formats.v4a import looks_like, parse_files
from editor.patch_set import PatchResult, list_paths, merge_files
from editor.types import AlreadyApplied, Hint, Merged, ParsedEdit, Replacement, Unresolved
from tests.editor.recorded import rows


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


def enveloped(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


def one(patch: str) -> ParsedEdit:
    (edit,) = parse_files(patch)
    return edit


UPDATE = ("*** Update File: src/x.py", "@@", " a", "-b", "+c", " d")
CHANGE = Replacement(("a", "b", "d"), ("a", "c", "d"))


def test_an_update() -> None:
    edit = one(enveloped(*UPDATE))
    assert edit == ParsedEdit("v4a", (CHANGE,), "V4A patch with 1 hunk", "src/x.py", ordered=True)


def test_all_kinds_of_file_edits_in_one_patch() -> None:
    add, delete, move = parse_files(
        enveloped(
            *("*** Add File: new.md", "+one", "+", "+three"),
            "*** Delete File: old.md",
            *("*** Update File: a.py", "*** Move to: lib/a.py", "@@ class A", "-x", "+y", "@@", "-z"),
        )
    )
    assert (add.action, add.path, add.changes) == ("create", "new.md", (Replacement((), ("one", "", "three")),))
    assert (delete.action, delete.path, delete.changes) == ("delete", "old.md", ())
    assert (move.action, move.path, move.move_to) == ("update", "a.py", "lib/a.py")
    assert move.changes == (Replacement(("x",), ("y",), Hint(scopes=("class A",))), Replacement(("z",), ()))


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        (("@@ class A", "@@     def f(self):"), Hint(scopes=("class A", "    def f(self):"))),
        (("@@", "@@ class A"), Hint(scopes=("class A",))),
        (("@@ class A @@",), Hint(scopes=("class A",))),
        (("@@ ... @@",), Hint()),
        (("@@ -5,3 +5,3 @@ def f():",), Hint(4, ("def f():",))),
        (("@@ -5,3 +5,3 @@",), Hint(4)),
        ((), Hint()),
    ],
)
def test_scopes_and_hunks_without_a_header(header: tuple[str, ...], hint: Hint) -> None:
    edit = one(enveloped("*** Update File: x", *header, "-a", "+b"))
    assert edit.changes == (Replacement(("a",), ("b",), hint),)


def test_the_end_of_the_file() -> None:
    edit = one(enveloped("*** Update File: x", "@@", "-a", "+b", "*** End of File", "", "@@", "-c"))
    assert edit.changes == (Replacement(("a",), ("b",), Hint(at_end=True)), Replacement(("c",), ()))


@pytest.mark.parametrize(
    "wrapped",
    [
        "apply_patch <<'EOF'\n{}EOF\n",
        "<<'EOF'\n{}EOF",
        "```\n{}```\n",
        "Here is the patch:\n\n```patch\n{}```\nIt changes b.\n- and no more\n",
        'bash -lc "apply_patch <<PATCH\n{}PATCH"',
    ],
)
def test_wrappings_of_the_envelope(wrapped: str) -> None:
    patch = wrapped.format(enveloped(*UPDATE))
    assert looks_like(patch)
    assert one(patch).changes == (CHANGE,)


def test_markers_padded_with_blanks() -> None:
    edit = one(" *** Begin Patch\n  *** Update File: x \n@@\n-a\n+b\n*** End Patch \n")
    assert (edit.path, edit.changes) == ("x", (Replacement(("a",), ("b",)),))


def test_a_bare_patch_without_an_envelope() -> None:
    for patch in (
        "\n".join(UPDATE),
        "```diff\n" + "\n".join(UPDATE) + "\n```\n",
        "\n".join([*UPDATE, "*** End Patch"]),
    ):
        assert one(patch).changes == (CHANGE,)
        assert looks_like(patch)
    nameless = one("\n".join(UPDATE[1:]) + "\n")
    assert (nameless.path, nameless.changes) == ("", (CHANGE,))


def test_several_envelopes() -> None:
    edits = parse_files(enveloped(*UPDATE) + "\n" + enveloped("*** Delete File: y"))
    assert [edit.path for edit in edits] == ["src/x.py", "y"]


def test_marker_texts_as_lines_of_a_file() -> None:
    edit = one(enveloped("*** Update File: x", "@@", " *** End Patch", "-*** Update File: q", "+*** Add File: q"))
    assert edit.changes == (Replacement(("*** End Patch", "*** Update File: q"), ("*** End Patch", "*** Add File: q")),)


def test_windows_line_endings() -> None:
    assert one(enveloped(*UPDATE).replace("\n", "\r\n")).changes == (CHANGE,)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (enveloped(), "names no file"),
        (enveloped("*** Update File: x"), "Line 2 of the patch ('*** Update File: x') is followed by no hunk."),
        (enveloped("*** Frobnicate File: x"), "Line 2 of the patch ('*** Frobnicate File: x') is no file marker"),
        (enveloped("*** Update File: x", "@@", "-a", "oops", "+b"), "Line 5 of the patch ('oops') should begin a hunk"),
        (enveloped("*** Update File: x", "@@", "@@"), "stands where a hunk should have lines"),
        (enveloped("*** Add File: x", "+a", "b"), "Line 4 of the patch ('b') belongs to a new file"),
        ("*** Begin Patch\n*** Update File: x\n@@\n-a\n+b\n", "has no '*** End Patch' line; its end may be missing"),
    ],
)
def test_errors_name_the_line(patch: str, message: str) -> None:
    with pytest.raises(EditSyntaxError) as error:
        parse_files(patch)
    assert message in error.value.message
    assert "*** " in error.value.suggestion


@pytest.mark.parametrize(
    "behind",
    [
        "*** Update File: src/x.py\n@@\n-e\n+f\n*** End Patch\n",
        "@@\n-e\n+f\n",
        "-e\n+f\n*** End Patch\n",
        "   *** Update File: src/x.py\n",
        "<<<<<<< SEARCH\ne\n=======\nf\n>>>>>>> REPLACE\n",
    ],
)
def test_a_change_behind_the_end_is_not_talk(behind: str) -> None:
    with pytest.raises(EditSyntaxError) as fault:
        parse_files(enveloped(*UPDATE) + behind)
    assert fault.value.code == "malformed"


def test_the_talk_around_a_patch_is_kept() -> None:
    edit = one("Here:\n\n```\n" + enveloped(*UPDATE) + "```\nIt changes b.\n- and no more\n")
    assert edit.prose == "Here:\n\nIt changes b.\n- and no more"
    assert one(enveloped(*UPDATE) + "*** End Patch\n").prose == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (enveloped(*UPDATE), True),
        ("*** Add File: x\n+a\n", True),
        ("@@ def f\n-a\n+b\n", False),
        ("x = 1\n*** Update File: x\n", False),
    ],
)
def test_looks_like(text: str, expected: bool) -> None:
    assert looks_like(text) is expected


# The scenarios of Codex. Where Hunk is stricter (docs/v4a.md), the reason it gives.
STRICTER = {
    "010_move_overwrites_existing_destination": "file_exists",
    "011_add_overwrites_existing_file": "file_exists",
    "015_failure_after_partial_success_leaves_changes": "file_missing",
    "016_pure_addition_update_chunk": "open_intent",
}


def outcome_of(row: dict[str, object], *, compat: bool) -> tuple[dict[str, str], bool, list[Unresolved]]:
    """Return the files afterwards, whether anything was refused, and why."""
    files = dict(row["input"])
    try:
        result = merge_files(files, parse_files(str(row["patch"])), compat=compat)
    except EditSyntaxError:
        return files, True, []
    for path, text in (result.partial if compat else result.writes).items():
        if text is None:
            del files[path]
        else:
            files[path] = text
    return files, bool(result.refusals), [file.outcome for file in result.refusals]


def test_every_scenario_of_codex_by_its_own_rules() -> None:
    scenarios = rows("codex_apply_patch/scenarios.jsonl")
    assert len(scenarios) == 23
    for row in scenarios:
        files, refused, _ = outcome_of(row, compat=True)
        assert (files, refused) == (row["expected"], row["expects_rejection"]), row["id"]


def test_the_scenarios_in_which_hunk_is_stricter() -> None:
    stricter = {}
    for row in rows("codex_apply_patch/scenarios.jsonl"):
        files, refused, reasons = outcome_of(row, compat=False)
        if (files, refused) != (row["expected"], row["expects_rejection"]):
            assert files == row["input"], row["id"]
            stricter[row["id"]] = reasons[0].code
    assert stricter == STRICTER


def test_what_codex_appends_is_the_first_candidate() -> None:
    result = merge_files({"f": "line1\nline2\n"}, parse_files(enveloped("*** Update File: f", "@@", "+added")))
    outcome = result.files[0].outcome
    assert isinstance(outcome, Unresolved)
    assert outcome.candidates[0].text == "line1\nline2\nadded\n"
