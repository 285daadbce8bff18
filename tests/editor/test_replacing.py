"""SEARCH/REPLACE into a file: one place at every rung, the file's own spelling, nothing twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.merge import merge
from editor.types import AlreadyApplied, Hint, Merged, MergeOutcome, ParsedEdit, Replacement, Unresolved


def apply(original: str, *blocks: tuple[str, str]) -> MergeOutcome:
    changes = tuple(
        Replacement(tuple(b.split("\n")) if b else (), tuple(a.split("\n")) if a else ()) for b, a in blocks
    )
    return merge(original, ParsedEdit("search_replace", changes, "test"))


def unresolved(outcome: MergeOutcome) -> Unresolved:
    assert isinstance(outcome, Unresolved), outcome
    return outcome


def test_exact() -> None:
    assert apply("a\nb\nc\n", ("b", "B\nB2")) == Merged("a\nB\nB2\nc\n", "exact")
    assert apply("a\nb\nc", ("c", "C")) == Merged("a\nb\nC", "exact")
    assert apply("a\nb\n", ("b", "")) == Merged("a\n", "exact")
    assert apply("a\n", ("a", "")) == Merged("", "exact")


def test_only_whole_lines_match() -> None:
    assert unresolved(apply("abc\n", ("b", "x"))).code == "not_found"


def test_trailing_space_is_found_and_kept() -> None:
    outcome = apply(
        "def f():  \n    a = 1\t\n    return a\n", ("def f():\n    a = 1", "def f():\n    b = 2\n    a = 1")
    )
    assert outcome == Merged("def f():  \n    b = 2\n    a = 1\t\n    return a\n", "trailing_space")


def test_an_exact_place_beats_a_looser_one() -> None:
    assert apply("x = 1 \nx = 1\n", ("x = 1", "x = 2")) == Merged("x = 1 \nx = 2\n", "exact")


def test_reindent_shifts_the_new_lines() -> None:
    original = "class A:\n\tdef f(self):\n\t\treturn 1\n"
    before, after = "def f(self):\n\treturn 1", "def f(self):\n\tx = 2\n\n\treturn x"
    expected = "class A:\n\tdef f(self):\n\t\tx = 2\n\n\t\treturn x\n"
    assert apply(original, (before, after)) == Merged(expected, "reindent")


def test_reindent_takes_indentation_away() -> None:
    assert apply("if a:\n    b()\n", ("    if a:\n        b()", "    if a:\n        c()")) == Merged(
        "if a:\n    c()\n", "reindent"
    )
    # The new line cannot lose four columns that it does not have.
    assert unresolved(apply("if a:\n    b()\n", ("    if a:\n        b()", "  c()"))).code == "not_found"


def test_uneven_indentation_does_not_match() -> None:
    assert unresolved(apply("if a:\n    b()\n", ("  if a:\n    b()", "x"))).code == "not_found"


@pytest.mark.parametrize(
    "original", ["x = 1\ny = 2\nx = 1\n", "x = 1 \ny = 2\nx = 1\t\n", "  x = 1\ny = 2\n    x = 1\n"]
)
def test_two_places_are_never_a_match(original: str) -> None:
    outcome = unresolved(apply(original, ("x = 1", "x = 3")))
    assert outcome.code == "ambiguous"
    assert outcome.num_candidates == 2
    assert "1-1, 3-3" in outcome.reason


def test_the_nearest_miss_is_shown() -> None:
    original = "import os\n\n\ndef load(path):\n    with open(path) as file:\n        return file.read()\n"
    outcome = unresolved(
        apply(original, ("def load(path):\n    with open(path) as f:\n        return f.read()", "pass"))
    )
    assert outcome.code == "not_found"
    assert outcome.nearest.startswith("lines 4-6 are nearest")
    assert "-     with open(path) as f:" in outcome.nearest
    assert "+     with open(path) as file:" in outcome.nearest
    assert outcome.suggestion


def test_blocks_are_looked_for_in_the_original_in_any_order() -> None:
    assert apply("a\nb\nc\n", ("c", "a"), ("a", "c")) == Merged("c\nb\na\n", "exact")


def test_a_block_may_follow_an_earlier_one() -> None:
    assert apply("alpha\n", ("alpha", "beta\ngamma"), ("gamma", "delta")) == Merged("beta\ndelta\n", "exact")


def test_readings_that_differ_are_refused() -> None:
    # Looked for in the original the second block is line 2; in turn it would be ambiguous or elsewhere.
    outcome = apply("one\ntwo\n", ("one", "three"), ("two\n", "x"))
    assert isinstance(outcome, Unresolved)
    assert unresolved(apply("a\nb\nc\n", ("a\nb", "x"), ("b\nc", "y"))).code in (
        "ambiguous",
        "open_intent",
        "not_found",
    )
    assert unresolved(apply("anchor\n", ("anchor", "anchor\nn1"), ("anchor", "anchor\nn2"))).code == "ambiguous"


def test_all_blocks_or_none() -> None:
    outcome = unresolved(apply("a\nb\n", ("a", "A"), ("nowhere", "x")))
    assert outcome.code == "not_found"
    assert outcome.reason.startswith("Block 2 of 2")
    assert outcome.suggestion.endswith("as it is now. Send the other blocks as they are.")


@pytest.mark.parametrize("blocks", [[("nowhere", "x")], [("nowhere", "x"), ("neither", "y")]])
def test_of_other_blocks_nothing_is_said_where_there_are_none_that_fit(blocks: list[tuple[str, str]]) -> None:
    assert "other" not in unresolved(apply("a\nb\n", *blocks)).suggestion


def test_an_empty_search_fills_an_empty_file_only() -> None:
    assert apply("", ("", "a\nb")) == Merged("a\nb\n", "exact")
    assert apply("\n", ("", "a")) == Merged("a\n", "exact")
    assert apply("a\nb\n", ("", "a\nb")) == AlreadyApplied("Every block's REPLACE lines already stand in the file.")
    assert unresolved(apply("c\n", ("", "a"))).code == "open_intent"


@pytest.mark.parametrize(
    ("original", "before", "after"),
    [
        ("import os\nx = 1\n", "import os", "import os\nimport sys"),
        ("import os\nx = 1\n", "x = 1", "import sys\nx = 1"),
        ("def f():\n    return 1\n", "    return 1", "    value = compute()\n    return value"),
        ("timeout = 30\n", "timeout = 30", "timeout = 60"),
        ("a = 1\nunused = 2\nreturn_value = 3\n", "a = 1\nunused = 2\nreturn_value = 3", "a = 1\nreturn_value = 3"),
    ],
)
def test_an_edit_is_not_applied_twice(original: str, before: str, after: str) -> None:
    once = apply(original, (before, after))
    assert isinstance(once, Merged)
    assert isinstance(apply(once.text, (before, after)), AlreadyApplied)


def test_whether_one_more_bracket_is_wanted_is_open() -> None:
    assert unresolved(apply("if (a) {\n  b();\n}\n", ("  b();", "  b();\n}"))).code == "open_intent"


def test_a_placeholder_is_never_written() -> None:
    outcome = unresolved(apply("a\nb\n", ("a", "// ... existing code ...\nc")))
    assert outcome.code == "open_intent"


LINES = st.lists(st.sampled_from(["a", "b", "  a", "}", "", "c = 1", "c = 1 ", "\tx"]), min_size=1, max_size=12)


@given(LINES, st.data())
def test_a_unique_region_is_replaced_and_nothing_else(lines: list[str], data: st.DataObject) -> None:
    lines = [f"{line}{number}" if data.draw(st.booleans()) else line for number, line in enumerate(lines)]
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    after = data.draw(LINES)
    found = [at for at in range(len(lines)) if lines[at : at + end - start] == lines[start:end]]
    outcome = merge(
        "\n".join(lines) + "\n",
        ParsedEdit("search_replace", (Replacement(tuple(lines[start:end]), tuple(after)),), "test"),
    )
    if isinstance(outcome, Merged):
        assert found == [start]
        assert outcome.text == "".join(line + "\n" for line in [*lines[:start], *after, *lines[end:]])
    elif len(found) > 1 and any(line.strip() for line in lines[start:end]) and after != lines[start:end]:
        assert isinstance(outcome, Unresolved)


GARBAGE = st.lists(
    st.sampled_from(["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "# ...", "a", "", " b", "}", "foo = 1"])
).map("\n".join)


@given(GARBAGE | st.text(), GARBAGE | st.text())
def test_garbage_never_crashes(original: str, edit: str) -> None:
    try:
        parsed = parse(edit)
    except EditSyntaxError:
        return
    assert merge(original, parsed)


ROWS = st.sampled_from(["a1", "b2", "c3", "d4", "log(1)", "}", "", "  a1"])


@settings(max_examples=150)
@given(
    st.lists(ROWS, min_size=1, max_size=8),
    st.lists(st.tuples(st.lists(ROWS, min_size=1, max_size=2), st.lists(ROWS, max_size=3)), min_size=2, max_size=3),
)
def test_blocks_told_to_be_independent_give_the_same_text_in_turn(
    lines: list[str], blocks: list[tuple[list[str], list[str]]]
) -> None:
    original = "\n".join(lines) + "\n"
    changes = tuple(Replacement(tuple(before), tuple(after)) for before, after in blocks)
    edit = ParsedEdit("search_replace", changes, "test")
    quick = merge(original, edit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("editor.search_replace.blocks._is_order_independent", lambda *_: False)
        slow = merge(original, edit)
    assert quick == slow


def test_a_block_that_seems_done_beside_one_that_is_not_is_open() -> None:
    """Found by round trips: a copy of lines was taken for a block applied before, and left out without a word."""
    added = ("import b", "import a\nimport b")
    once = apply("import z\nimport b\n\n# C\n", added)
    assert isinstance(once, Merged)
    outcome = unresolved(apply(once.text, added, ("# C", "# D")))
    assert outcome.code == "open_intent"
    assert once.text.replace("# C", "# D") in [one.text for one in outcome.candidates]


def test_candidates_of_several_open_blocks_come_best_first() -> None:
    """Found by the fuzzer: the second of two readings was the likelier."""
    original = "import os\n\n\ndef a():\n    return 1\n\n\ndef b():\n    re.turn 2\n\n\ndef c, return 3\n"
    scores = [
        one.score
        for one in unresolved(apply(original, ("    return 2", "    return 20"), ("def c():", "def d():"))).candidates
    ]
    assert len(scores) > 2
    assert scores == sorted(scores, reverse=True)


# Done, missed, or its twin.

LIMIT = 'LIMIT = 10\nNAME = "x"\n'
ONE_LINE_EDITS = {
    "search_replace": "<<<<<<< SEARCH\nLIMIT = 10\n=======\nLIMIT = 20\n>>>>>>> REPLACE\n",
    "replace": json.dumps({"old_string": "LIMIT = 10", "new_string": "LIMIT = 20"}),
    "lines": json.dumps({"start_line": 1, "end_line": 1, "old": "LIMIT = 10", "new": "LIMIT = 20"}),
    "numbered diff": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-LIMIT = 10\n+LIMIT = 20\n",
    "bare diff": "--- a/x\n+++ b/x\n@@\n-LIMIT = 10\n+LIMIT = 20\n",
    "v4a": "*** Begin Patch\n*** Update File: x\n@@\n-LIMIT = 10\n+LIMIT = 20\n*** End Patch\n",
}


@pytest.mark.parametrize("edit", ONE_LINE_EDITS.values(), ids=ONE_LINE_EDITS.keys())
def test_a_one_line_edit_sent_twice_is_done_the_second_time(edit: str) -> None:
    once = merge(LIMIT, parse(edit))
    assert once == Merged(LIMIT.replace("10", "20"), "exact")
    assert isinstance(merge(once.text, parse(edit)), AlreadyApplied)


@pytest.mark.parametrize("edit", ONE_LINE_EDITS.values(), ids=ONE_LINE_EDITS.keys())
def test_an_edit_that_missed_is_not_done_because_its_new_line_stands_elsewhere(edit: str) -> None:
    outcome = unresolved(merge("def a():\n    pass\nLIMIT = 15\n\nLIMIT = 20\n", parse(edit)))
    assert outcome.code in ("not_found", "stale")


@pytest.mark.parametrize(
    ("original", "before", "after"),
    [
        ("a = load(); // cached\nrender(applicationState);\nflush();\n", "a = load();\nrender(applicationState);", 1),
        ("job:\n  debug: true # later\n  image: python\n", "  debug: true\n  image: python", 1),
        ("BEGIN\nrender(state)\nflush(all)\nEND\n", "render(state)\nflush()", 0),
        ("    timeout = 20\n\n    timeout = 30\n", "    timeout = 10", "    timeout = 30"),
        ("a()\nb() # x\ncall_of_c()\n", "b()\ncall_of_c()", "call_of_c()"),
    ],
)
def test_a_near_miss_is_not_done(original: str, before: str, after: str | int) -> None:
    """REPLACE stands in the file, as kept lines do, and lines like those of another place."""
    if isinstance(after, int):
        after = before.split("\n")[after]
    outcome = unresolved(apply(original, (before, after)))
    assert outcome.code == "not_found"
    assert "The REPLACE lines stand at line" in outcome.reason
    old, new = json.dumps(before), json.dumps(after)
    assert unresolved(merge(original, parse(f'{{"old_string": {old}, "new_string": {new}}}'))).code == "not_found"


@pytest.mark.parametrize(
    ("original", "before", "after"),
    [
        ("a = 1\nb = 2\nc_value = 3\n", "a = 1\nb = 2\nc_value = 3", "a = 1\nc_value = 3"),
        ("first_line()\nlast_line()\n", "first_line()\nlast_line()", "first_line()"),
        ("x = 1\ny\n", "x = 1", "x = 3"),
        ("import a\n\nvalue = compute(1)\n", "value = compute(1)", "value = compute(1)\nmore = value\n"),
        ("x()\nvalue = 1", "value = 1", "value = 1\nother_value = 2\n"),
        ("def f():\n    a = 1\n    return a\n", "a = 1\n    return a", "a = 22\n    return a"),
    ],
)
def test_what_was_made_is_done(original: str, before: str, after: str) -> None:
    once = apply(original, (before, after))
    assert isinstance(once, Merged)
    assert isinstance(apply(once.text, (before, after)), AlreadyApplied)


@pytest.mark.parametrize(("before", "after"), [("b = 2", ""), ("a", "b"), ("    pass", "    return 1")])
def test_what_cannot_be_told_to_be_done_is_refused(before: str, after: str) -> None:
    once = apply(f"x = 1\n{before}\nc = 3\n", (before, after))
    assert isinstance(once, Merged)
    again = unresolved(apply(once.text, (before, after)))
    assert again.code == "not_found"
    assert ("The REPLACE lines stand at line 2 already" in again.reason) == bool(after)


TWINS = "def a():\n    if cached:\n        return load(path)\n    return load(path)\n"
CHANGED_TWIN = TWINS.replace("\n    return load(path)", "\n    return load(path, 1)")
PAIR = {"old_string": "\n    return load(path)\n", "new_string": "\n    return load(path, 1)\n"}


def test_an_edit_sent_twice_does_not_change_its_twin_at_another_depth() -> None:
    block = ("    return load(path)", "    return load(path, 1)")
    assert apply(TWINS, block) == Merged(CHANGED_TWIN, "exact")
    assert isinstance(apply(CHANGED_TWIN, block), AlreadyApplied)
    assert apply(TWINS, block, block) == Merged(CHANGED_TWIN, "exact")
    assert merge(TWINS, parse(json.dumps({"edits": [PAIR, PAIR]}))) == Merged(CHANGED_TWIN, "exact")
    assert isinstance(merge(CHANGED_TWIN, parse(json.dumps(PAIR))), AlreadyApplied)


def test_an_edit_sent_twice_does_not_change_the_other_of_two_places() -> None:
    """The line number chose between two places; the second time only the other one is left."""
    entry = '"type": 1,\n"default": 1\n'
    change = Replacement(('"type": 1,', '"default": 1'), ('"type": 1,', '"default": 2'), Hint(line=3))
    above = Replacement(("head",), ("head", "of"), Hint(line=0))
    for changes in ((change,), (above, change)):
        edit = ParsedEdit("search_replace", changes, "test")
        once = merge(f"head\n{entry}{entry}", edit)
        assert isinstance(once, Merged)
        assert once.text.endswith('"default": 1\n"type": 1,\n"default": 2\n')
        assert isinstance(merge(once.text, edit), AlreadyApplied)


def test_where_the_new_lines_stand_in_doubt_no_place_like_the_old_ones_is_changed() -> None:
    original = "if a:\n        run_all(x)\n        stop_now(x)\nrun_all(y)\nstop_now(y)\n\nrun_all(y)\nstop_now(y)\n"
    outcome = unresolved(apply(original, ("run_all(x)\nstop_now(x)", "run_all(y)\nstop_now(y)")))
    assert outcome.code == "open_intent"
    assert "stand at lines 4-5 already" in outcome.reason


FALSELY_DONE = [
    ("    timeout = 10", "    timeout = 30"),
    ('    log("start")\n    clean(p)', "    clean(p)"),
    ("    unlike_anything()", "    timeout = 30"),
]


@pytest.mark.parametrize("missed", FALSELY_DONE)
def test_what_seems_done_beside_what_is_made_is_never_dropped(missed: tuple[str, str]) -> None:
    original = 'def a(p):\n    log("start")  # noqa\n    clean(p)\n    timeout = 20\n'
    original += "\n\ndef b():\n    timeout = 30\n    go()\n"
    made = ("    go()", "    stop()")
    for blocks in ((missed, made), (made, missed)):
        assert isinstance(apply(original, *blocks), Unresolved)
        edits = [{"old_string": old, "new_string": new} for old, new in blocks]
        assert isinstance(merge(original, parse(json.dumps({"edits": edits}))), Unresolved)


def test_a_block_that_is_proven_to_be_done_does_not_keep_others_from_being_made() -> None:
    done = ("first(1)\nsecond(2)\nthird(3)", "first(1)\nanother(2)\nthird(3)")
    outcome = apply("first(1)\nanother(2)\nthird(3)\nlast(4)\n", done, ("last(4)", "last(5)"))
    assert outcome == Merged("first(1)\nanother(2)\nthird(3)\nlast(5)\n", "exact")


def test_an_empty_search_with_a_line_is_proposed_at_that_line() -> None:
    edit = "<<<<<<< SEARCH\n:start_line:2\n-------\n=======\nb0 = 0\n>>>>>>> REPLACE\n"
    outcome = unresolved(merge("a = 1\nb = 2\n", parse(edit)))
    assert [one.text for one in outcome.candidates] == ["a = 1\nb0 = 0\nb = 2\n"]


def test_a_deletion_of_what_the_edit_itself_inserts_is_meant_for_another_place() -> None:
    """An import is to be moved, and its old place has changed since."""
    original = "import a\nimport moved as m\n\nrun()\n"
    blocks = (("import a", "import a\nimport moved"), ("import moved", ""), ("run()", "stop()"))
    assert isinstance(apply(original, *blocks), Unresolved)
    edits = [{"old_string": old, "new_string": new} for old, new in blocks]
    original = original.replace("moved as m", "unmoved")
    assert isinstance(merge(original.replace("un", "UN"), parse(json.dumps({"edits": edits}))), Unresolved)


def test_a_deletion_whose_kept_lines_stand_beside_the_lines_to_delete_is_not_done() -> None:
    original = "    end\n\n    def web?\n      name_of == 1\n    end\n\n    def puma?\n      name == 2\n    end\n"
    before = "    end\n\n    def web?\n      name == 1\n    end\n\n    def puma?"
    outcome = unresolved(apply(original, (before, "    end\n\n    def puma?")))
    assert outcome.code == "not_found"
    assert unresolved(apply("if a\n    end\n  end\n", ("  end\nend", "  end\n  more\nend")))


def test_a_deletion_sent_twice_does_not_go_to_a_place_without_its_blank_line() -> None:
    twice = "one:\n    show()\n    click()\nend\n\ntwo:\n    show()\n    click()\n\n    leave()\nend\n"
    block = ("    show()\n    click()\n", "    show()\n")
    made = apply(twice, block)
    assert made == Merged(twice.replace("    click()\n\n", "\n"), "exact")
    assert isinstance(made, Merged)
    assert unresolved(apply(made.text, block)).code == "open_intent"


def test_blank_lines_that_both_parts_have_may_be_missing_in_the_file() -> None:
    assert apply("show()\nclick()\n", ("\nclick()", "\nleave()")) == Merged("show()\nleave()\n", "trailing_space")
