"""Edits in the form of tool calls: exact replacement, line ranges, and the whole file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor.errors import EditSyntaxError
from editor.formats import detect, parse, parse_files
from editor.merge import merge
from editor.types import (
    AlreadyApplied,
    Hint,
    Merged,
    MergeOutcome,
    Replacement,
    Sketch,
    Substitution,
    Substitutions,
    Unresolved,
)


def replaced(original: str, old: str, new: str, **more: Any) -> MergeOutcome:
    return merge(original, parse(json.dumps({"old_string": old, "new_string": new, **more})))


def ranged(original: str, *changes: dict[str, Any]) -> MergeOutcome:
    return merge(original, parse(json.dumps(list(changes)), "lines"))


def unresolved(outcome: MergeOutcome) -> Unresolved:
    assert isinstance(outcome, Unresolved), outcome
    return outcome


# Replacement as text.


@pytest.mark.parametrize(
    "call",
    [
        {"file_path": "a.py", "old_string": "a", "new_string": "b"},
        {"file_path": "a.py", "old_string": "a", "new_string": "b", "replace_all": False},
        {"command": "str_replace", "path": "a.py", "old_str": "a", "new_str": "b"},
        {"path": "a.py", "oldText": "a", "newText": "b"},
        {"path": "a.py", "edits": [{"old_text": "a", "new_text": "b"}]},
        {"filePath": "a.py", "oldString": "a", "newString": "b", "replaceAll": False},
        {
            "file_path": "a.py",
            "instruction": "rename",
            "old_string": "a",
            "new_string": "b",
            "expected_replacements": 1,
        },
        [{"path": "a.py", "old_string": "a", "new_string": "b"}],
    ],
)
def test_one_replacement_in_all_its_spellings(call: Any) -> None:
    for edit in (json.dumps(call), f"```json\n{json.dumps(call, indent=2)}\n```\n"):
        assert detect(edit) == "replace"
        (parsed,) = parse_files(edit)
        assert parsed.path == "a.py"
        assert parsed.changes == Substitutions((Substitution("a", "b"),))


def test_a_call_may_leave_the_new_text_out_to_delete_the_old_one() -> None:
    edit = '{"command": "str_replace", "path": "a.py", "old_str": "a\\n"}'
    assert detect(edit) == "replace"
    assert parse(edit).changes == Substitutions((Substitution("a\n", ""),))
    with pytest.raises(EditSyntaxError, match="needs 'new_string'"):
        parse('{"old_str": "a"}', "replace")


@pytest.mark.parametrize(
    ("edit", "prose"),
    [
        ('{"old_string": "a", "new_string": "b"}\n{"old_string": "c", "new_string": "d"}\n', ""),
        ('Two changes:\n{"old_string": "a", "new_string": "b"}\n{"old_string": "c", "new_string": "d"}\nDone.', None),
        (
            '```json\n{"old_string": "a", "new_string": "b"}\n```\nand\n'
            '```json\n{"old_string": "c", "new_string": "d"}\n```',
            "and",
        ),
        (
            '[{"old_string": "a", "new_string": "b"},\n {"old_string": "c", "new_string": "d"}]\n\nThat is all.',
            "That is all.",
        ),
    ],
)
def test_calls_with_talk_around_and_one_below_the_other(edit: str, prose: str | None) -> None:
    assert detect(edit) == "replace"
    parsed = parse(edit)
    assert parsed.changes == Substitutions((Substitution("a", "b"), Substitution("c", "d")))
    assert parsed.prose == ("Two changes:\nDone." if prose is None else prose)


def test_a_pair_that_is_sent_twice_is_read_once() -> None:
    pair = '{"old_string": "a", "new_string": "b"}'
    parsed = parse(f"[{pair}, {pair}]")
    assert parsed.changes == Substitutions((Substitution("a", "b"),))
    assert parsed.detected == "2 old/new pairs in JSON, 1 of them sent again"


def test_the_number_of_places_is_held_to() -> None:
    assert replaced("a b a\n", "a", "c", expected_replacements=2) == Merged("c b c\n", "exact")
    outcome = unresolved(replaced("a b a a\n", "a", "c", expected_replacements=2))
    assert (outcome.code, outcome.num_candidates) == ("ambiguous", 3)
    assert outcome.reason == "The old text stands in 3 places, and the edit expects 2."


@pytest.mark.parametrize(
    ("path", "edit"),
    [
        ("x.py", '{"old_string": "a", "new_string": "b", "version": 1}'),
        ("x.py", '{"old_string": "a", "new_string": "b"'),
        ("x.json", '{"old_string": "a", "new_string": "b"'),
        ("x.py", '{"name": "edit", "arguments": {"old_string": "a"}}'),
        ("x.py", '{"a": 1}'),
        ("x.py", '```json\n[{"a": 1}]\n```'),
    ],
)
def test_json_is_no_text_of_a_program(path: str, edit: str) -> None:
    with pytest.raises(EditSyntaxError) as fault:
        parse(edit, path=path)
    assert fault.value.code == "malformed"


@pytest.mark.parametrize(
    ("path", "edit"), [("x.json", '{"a": 1}'), ("x.yaml", '{"a": 1}'), ("x.json", '{"path": "p", "old": 1}')]
)
def test_json_is_the_text_of_data(path: str, edit: str) -> None:
    assert parse(edit, path=path).new_lines == (edit,)


def test_plain_keys_of_a_call_for_a_program() -> None:
    assert detect('{"path": "x.py", "old": "a", "new": "b"}', "x.py") == "replace"
    assert detect('{"path": "x.json", "old": "a", "new": "b"}', "x.json") == "lazy"


def test_plain_keys_only_count_where_the_format_is_named() -> None:
    edit = '{"old": "a", "new": "b"}'
    assert detect(edit) == "lazy"
    assert detect('{"path": "x", "old": "a", "new": "b"}') == "lazy"
    assert detect('{"old_string": "a", "new_string": "b", "version": 1}') == "lazy"
    assert parse(edit, "replace").changes == Substitutions((Substitution("a", "b"),))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("x = 1", "not JSON"),
        ('{"old_string": "a"}', "needs 'new_string'"),
        ('{"old_string": "a", "new_string": 1}', "needs 'new_string'"),
        ('{"old_string": "a", "new_string": "b", "fuzzy": true}', "'fuzzy' is not known"),
        ('{"old_string": "a", "old_str": "c", "new_string": "b"}', "given twice"),
        ('{"old_string": "a", "old_string": "c", "new_string": "b"}', "twice"),
        ('{"old_string": "a", "new_string": "b", "replace_all": "yes"}', "true or false"),
        ('{"old_string": "a", "new_string": "b", "expected_replacements": 0}', "number from 1"),
        ('{"old_string": "a", "new_string": "b"', "line 1 column 38"),
        ('{"old_string": "a", "new_string": "b"} // done', "stands behind"),
        ('{"old_string": "a", "new_string": "b"}\n@@ -1 +1 @@\n-a\n+b\n', "would be lost"),
        ('{"old_string": "a", "new_string": "b", "start_line": 3}', "'lines'"),
        (
            '[{"path": "x", "old_string": "a", "new_string": "b"}, {"old_string": "a", "new_string": "b"}]',
            "Some changes",
        ),
        ("[1]", "not an object"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_call_that_cannot_be_read_is_refused_and_told_how(edit: str, says: str) -> None:
    with pytest.raises(EditSyntaxError, match=says) as caught:
        parse(edit, "replace")
    assert "old_string" in caught.value.suggestion


def test_calls_for_several_files() -> None:
    edit = json.dumps([{"path": name, "old_str": "a", "new_str": "b"} for name in ("x", "y", "x")])
    first, second = parse_files(edit)
    assert (first.path, second.path) == ("x", "y")
    with pytest.raises(EditSyntaxError, match="2 files: x, y"):
        parse(edit)


# Replacement put into a text.


def test_a_part_of_a_line_is_replaced_exactly() -> None:
    assert replaced("x = foo(1) + 2\n", "foo(1)", "bar()") == Merged("x = bar() + 2\n", "exact")
    assert replaced("a\nb", "b", "c") == Merged("a\nc", "exact")
    assert replaced("a\nb\n", "a\r\nb", "a\r\nc") == Merged("a\nc\n", "exact")
    assert replaced("pass\n", "pass", "...") == Merged("...\n", "exact")
    assert unresolved(replaced("a\n", "a", "# ... existing code ...")).code == "open_intent"


def test_an_old_text_that_stands_twice_is_ambiguous() -> None:
    outcome = unresolved(replaced("x = 1\ny\nx = 1\n", "x = 1", "x = 2"))
    assert outcome.code == "ambiguous"
    assert "lines 1, 3" in outcome.reason
    assert [one.text for one in outcome.candidates] == ["x = 2\ny\nx = 1\n", "x = 1\ny\nx = 2\n"]
    assert replaced("x = 1\ny\nx = 1\n", "x = 1", "x = 2", replace_all=True) == Merged("x = 2\ny\nx = 2\n", "exact")


@pytest.mark.parametrize(
    ("original", "old", "new", "expected"),
    [
        ("a = 1 \nb\n", "a = 1\nb", "a = 2\nb", Merged("a = 2\nb\n", "trailing_space")),
        ("a = 1 \nb\n", "a = 1\nb\n", "", Merged("", "trailing_space")),
        ("if x:\n\ta()\n\tb()\n", "    a()\n    b()\n", "    a()\n", Merged("if x:\n\ta()\n", "reindent")),
        ("say “a”\nx\n", 'say "a"\nx', 'say "a"\ny', Merged("say “a”\ny\n", "folded")),
        ("a = 1 \nb", "a = 1\nb", "c", Merged("c", "trailing_space")),
    ],
)
def test_whole_lines_fall_to_the_line_ladder(original: str, old: str, new: str, expected: Merged) -> None:
    assert replaced(original, old, new) == expected


def test_a_part_of_a_line_does_not_fall_to_the_line_ladder() -> None:
    assert unresolved(replaced("x = “a” + b\n", '"a"', '"c"')).code == "not_found"


def test_a_miss_of_replacement_shows_the_nearest_place() -> None:
    outcome = unresolved(replaced("def f(a):\n    return compute(a)\n", "    return compute(b)", "    return 0"))
    assert outcome.code == "not_found"
    assert outcome.reason.startswith("The old text does not stand")
    assert outcome.nearest.startswith("line 2 is nearest")
    assert outcome.candidates[0].text == "def f(a):\n    return 0\n"


@pytest.mark.parametrize(
    ("original", "old", "new"),
    [
        ("import os\nx = 1\n", "import os\n", "import os\nimport sys\n"),
        ("timeout = 30\n", "timeout = 30", "timeout = 60"),
        ("call(a)\n", "(a", "(a, second"),
    ],
)
def test_a_replacement_is_not_made_twice(original: str, old: str, new: str) -> None:
    once = replaced(original, old, new)
    assert isinstance(once, Merged)
    assert isinstance(replaced(once.text, old, new), AlreadyApplied)


def test_a_new_text_is_no_result_where_an_end_of_the_old_one_stands_beside_it() -> None:
    kept = ",\n        root: self.root.clone(),\n        globs: self.globs.clone(),\n    })\n}\n\nGlob {\n"
    old, new = f": set{kept}    from: from,\n", f"{kept}    actual: actual,\n"
    file = f"Ok(Gitignore {{\n        set{old}    is_whitelist,\n}}\n"
    once = replaced(file, old, new)
    assert isinstance(once, Merged)
    assert isinstance(replaced(once.text, old, new), AlreadyApplied)
    half = file.replace("    from: from,\n", "    actual: actual,\n")
    assert isinstance(replaced(half, old, new), Unresolved)


def test_replace_all_is_not_made_twice() -> None:
    once = replaced("foo foo\n", "foo", "foobar", replace_all=True)
    assert once == Merged("foobar foobar\n", "exact")
    assert isinstance(replaced("foobar foobar\n", "foo", "foobar", replace_all=True), AlreadyApplied)
    assert unresolved(replaced("foo foobar\n", "foo", "foobar", replace_all=True)).code == "open_intent"


def test_nothing_to_replace() -> None:
    assert isinstance(replaced("a\n", "a", "a"), AlreadyApplied)
    assert replaced("", "", "a\nb\n") == Merged("a\nb\n", "exact")
    assert isinstance(replaced("a\n", "", "a\n"), AlreadyApplied)
    assert unresolved(replaced("a\n", "", "b")).code == "open_intent"


def test_replacements_are_made_in_turn_and_all_or_none() -> None:
    edit = parse('[{"old_str": "a", "new_str": "b1"}, {"old_str": "b1", "new_str": "c"}]')
    assert merge("a\n", edit) == Merged("c\n", "exact")
    failing = parse('[{"old_str": "a", "new_str": "b"}, {"old_str": "nowhere", "new_str": "c"}]')
    assert unresolved(merge("a\n", failing)).reason.startswith("Replacement 2 of 2 (in the text")


# Line ranges.


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ('{"start_line": 2, "end_line": 2, "old": "b", "new": "B"}', Replacement(("b",), ("B",), Hint(1, pinned=True))),
        (
            '{"start_line": 2, "end_line": 3, "new": "B\\n"}',
            Replacement((), ("B",), Hint(1, pinned=True, num_unseen=2)),
        ),
        ('{"start_line": 2, "end_line": 1, "new": "B"}', Replacement((), ("B",), Hint(1, pinned=True))),
        ('{"insert_line": 1, "new_str": "B"}', Replacement((), ("B",), Hint(1, pinned=True))),
        ('{"insert_line": 1, "old": "a", "new": "B"}', Replacement(("a",), ("a", "B"), Hint(0, pinned=True))),
        ("edit 2:3\nB\nend_of_edit\n", Replacement((), ("B",), Hint(1, pinned=True, num_unseen=2))),
    ],
)
def test_line_ranges_in_all_their_spellings(edit: str, expected: Replacement) -> None:
    assert detect(edit) == "lines"
    assert parse(edit).changes == (expected,)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ('{"start_line": 0, "end_line": 0, "new": ""}', "no range"),
        ('{"start_line": 3, "end_line": 1, "new": ""}', "no range"),
        ('{"start_line": 1, "end_line": 2, "old": "a", "new": ""}', "are 2, but the old text has 1"),
        ('{"start_line": "1", "end_line": 2, "new": ""}', "whole numbers"),
        ('{"start_line": 1, "new": ""}', "whole numbers"),
        ('{"insert_line": 1, "start_line": 1, "new": ""}', "either"),
        ('{"insert_line": 1, "old": "a\\nb", "new": ""}', "one line"),
        ("edit 1:2\nx\n", "no line 'end_of_edit'"),
        ("edit 1:2\nx\nend_of_edit\nrest", "no 'edit START:END'"),
    ],
)
def test_a_range_that_cannot_be_read_is_refused_and_told_how(edit: str, says: str) -> None:
    with pytest.raises(EditSyntaxError, match=says) as caught:
        parse(edit, "lines")
    assert "start_line" in caught.value.suggestion


def test_numbers_are_those_of_the_original() -> None:
    outcome = ranged(
        "a\nb\nc\nd\n",
        {"start_line": 3, "end_line": 3, "old": "c", "new": "C"},
        {"start_line": 1, "end_line": 2, "old": "a\nb", "new": "A\nA2\nA3"},
        {"insert_line": 4, "old": "d", "new": "e"},
    )
    assert outcome == Merged("A\nA2\nA3\nC\nd\ne\n", "exact")


def test_a_range_only_matches_at_its_lines() -> None:
    assert ranged("x\ny\nx\n", {"start_line": 3, "end_line": 3, "old": "x", "new": "z"}) == Merged("x\ny\nz\n", "exact")
    stale = unresolved(ranged("new\nx = 1\ny\n", {"start_line": 1, "end_line": 1, "old": "x = 1", "new": "x = 2"}))
    assert stale.code == "stale"
    assert "They stand at line 2" in stale.reason
    assert "- x = 1\n+ new" in stale.nearest
    assert [one.text for one in stale.candidates] == ["new\nx = 2\ny\n"]
    assert unresolved(ranged("a\n", {"start_line": 5, "end_line": 6, "old": "b\nc", "new": ""})).code == "stale"


def test_a_range_forgives_blanks_and_indentation_as_blocks_do() -> None:
    change = {"start_line": 2, "end_line": 2, "old": "    b()", "new": "    c()"}
    assert ranged("if a:\n\tb() \n", change) == Merged("if a:\n\tc()\n", "reindent")


def test_a_range_without_its_old_lines_is_only_proposed() -> None:
    outcome = unresolved(merge("a\nb\nc\n", parse("edit 2:3\nB\nend_of_edit")))
    assert outcome.code == "open_intent"
    assert "'old'" in outcome.suggestion
    assert [one.text for one in outcome.candidates] == ["a\nB\n"]
    assert ranged("a\n", {"insert_line": 0, "new": "top"}) == Merged("top\na\n", "exact")
    assert ranged("", {"start_line": 1, "end_line": 0, "new": "top"}) == Merged("top\n", "exact")


def test_ranges_are_not_applied_twice_and_do_not_overlap() -> None:
    changes = (
        {"start_line": 1, "end_line": 1, "old": "a", "new": "A\nA2"},
        {"start_line": 3, "end_line": 3, "old": "c", "new": "C"},
    )
    once = ranged("a\nb\nc\n", *changes)
    assert isinstance(once, Merged)
    assert isinstance(ranged(once.text, *changes), AlreadyApplied)
    both = unresolved(ranged("a\nb\n", {**changes[0]}, {"start_line": 1, "end_line": 2, "old": "a\nb", "new": ""}))
    assert "same lines" in both.reason


# The whole file.


@pytest.mark.parametrize("edit", ["a\nb\n", "```python\na\nb\n```", "Here is the updated file:\n```\na\nb\n```\n"])
def test_a_whole_file_takes_the_place_of_the_old_one(edit: str) -> None:
    parsed = parse(edit, "whole")
    assert parsed.changes == Sketch((("a", "b"),), False, False, complete=True)
    assert merge("x\n", parsed) == Merged("a\nb\n", "exact")
    assert merge("x", parsed) == Merged("a\nb", "exact")
    assert merge("", parsed) == Merged("a\nb\n", "exact")
    assert isinstance(merge("a\nb\n", parsed), AlreadyApplied)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ({"command": "create", "path": "x.py", "file_text": "a\nb\n"}, "create"),
        ({"file_path": "x.py", "content": "a\nb\n"}, "update"),
        ({"path": "x.py", "content": "a\nb"}, "update"),
        ([{"filePath": "x.py", "content": "a\nb\n"}], "update"),
    ],
)
@pytest.mark.parametrize("format_name", ["auto", "whole"])
def test_a_call_that_writes_a_file(call: Any, action: str, format_name: Any) -> None:
    for edit in (json.dumps(call), f"I'll write it:\n\n```json\n{json.dumps(call, indent=2)}\n```\n"):
        parsed = parse(edit, format_name, "x.py")
        assert (parsed.format, parsed.path, parsed.action) == ("whole", "x.py", action)
        assert parsed.changes == Sketch((("a", "b"),), False, False, complete=True)
        assert merge("", parsed) == Merged("a\nb\n", "exact")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ('{"path": "x", "file_text": ""}', "empty"),
        ('{"path": "x", "file_text": "a", "old_str": "b"}', "nothing but a path and the text"),
        ('[{"path": "x", "file_text": "a"}, {"path": "x", "file_text": "b"}]', "written 2 times"),
        ('{"path": "x", "file_text": "a"', "not JSON"),
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n", "part of an edit"),
        ("*** Begin Patch\n*** Update File: x.py\n@@\n-a\n+b\n*** End Patch\n", "part of an edit"),
    ],
)
def test_what_is_no_whole_file_is_refused(edit: str, says: str) -> None:
    with pytest.raises(EditSyntaxError, match=says):
        parse(edit, "whole", "x.py")


def test_a_whole_file_is_never_guessed() -> None:
    assert detect("import os\n\nx = 1\n") == "lazy"


def test_a_whole_file_with_placeholders_is_refused_unless_they_are_its_own() -> None:
    edit = parse("a\n# ... existing code ...\nb\n", "whole")
    assert unresolved(merge("a\nx\n", edit)).code == "open_intent"
    assert isinstance(merge("a\n# ... existing code ...\nx\n", edit), Merged)


# Properties.

LINES = st.lists(st.sampled_from(["a", "  b", "", "}", "“c”", "d\t", "    ..."]), max_size=4)


@settings(max_examples=60)
@given(st.lists(st.tuples(LINES, st.booleans(), LINES), min_size=1, max_size=8), st.booleans())
def test_calls_with_enough_context_give_exactly_the_new_text(
    parts: list[tuple[list[str], bool, list[str]]], final_newline: bool
) -> None:
    old: list[str] = []
    new: list[str] = []
    pairs: list[dict[str, str]] = []
    ranges: list[dict[str, Any]] = []
    for number, (before, changed, after) in enumerate(parts):
        before = [f"first {number}", *before, f"last {number}"]
        if changed:
            after = [f"first {number}", *after, f"changed word {number}"]
            pairs.append({"old_string": "\n".join(before), "new_string": "\n".join(after)})
            place = {"start_line": len(old) + 1, "end_line": len(old) + len(before)}
            ranges.append({**place, "old": "\n".join(before) + "\n", "new": "\n".join(after) + "\n"})
        old += before
        new += after if changed else before
    end = "\n" if final_newline else ""
    for edit, name in ((pairs, "replace"), (ranges, "lines")):
        if edit:
            text = json.dumps(edit)
            assert detect(text) == name
            outcome = merge("\n".join(old) + end, parse(text))
            assert outcome == Merged("\n".join(new) + end, "exact")


KEYS = ("old_string", "new_string", "old", "new", "path", "edits", "start_line", "end_line", "insert_line")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.text("ab\n ", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


@given(VALUES, st.text("ab\n ", max_size=12))
def test_any_json_is_merged_or_refused(value: Any, original: str) -> None:
    for name in ("auto", "replace", "lines", "whole"):
        try:
            files = parse_files(json.dumps(value), name)  # type: ignore[arg-type]
        except EditSyntaxError:
            continue
        for file in files:
            assert merge(original, file)
