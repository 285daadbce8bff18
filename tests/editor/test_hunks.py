r"""Hunks put into a text: one unit test a rule, the round trip of diffs, and the time of large ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor.diff import render_unified_diff
from editor.formats import unified_diff as udiff
from editor.formats import v4a
from editor.hunks.apply import merge_hunks
from editor.match.ladder import LineIndex, find_places
from editor.types import AlreadyApplied, Hint, Merged, MergeOutcome, ParsedEdit, Replacement, Unresolved


def hunk(before: str, after: str, line: int | None = None, *scopes: str, at_end: bool = False) -> Replacement:
    return Replacement(tuple(before.split()), tuple(after.split()), Hint(line, scopes, at_end))


def apply(text: str, *hunks: Replacement, final_newline: bool | None = None, form: str = "udiff") -> MergeOutcome:
    edit = ParsedEdit(
        "v4a" if form == "v4a" else "udiff", hunks, "test", "f", ordered=True, final_newline=final_newline
    )
    return merge_hunks(text, edit)


def apply_diff(text: str, diff: str) -> MergeOutcome:
    (edit,) = udiff.parse_files(diff)
    return merge_hunks(text, edit)


def unresolved(outcome: MergeOutcome) -> Unresolved:
    assert isinstance(outcome, Unresolved), outcome
    return outcome


def numbered(lines: str) -> str:
    return "".join(f"{line}\n" for line in lines.split())


# One rule a test


def test_one_place_is_certain_whatever_the_line_number() -> None:
    assert apply("a\nb\nc\n", hunk("b", "B", 40)) == Merged("a\nB\nc\n", "exact")
    assert apply("a\nb\nc\n", hunk("b", "B")) == Merged("a\nB\nc\n", "exact")


def test_a_line_number_alone_places_nothing() -> None:
    outcome = unresolved(apply("alpha\nbeta\ngamma\n", hunk("betta", "B", 1)))
    assert outcome.code == "not_found"
    assert outcome.nearest.startswith("line 2 is nearest")
    assert outcome.candidates == ()


def test_of_several_places_exactly_the_line_given() -> None:
    assert apply("x\na\nx\nb\nx\n", hunk("x", "X", 2)) == Merged("x\na\nX\nb\nx\n", "exact")
    assert unresolved(apply("x\na\nx\nb\nx\n", hunk("x", "X", 3))).code == "ambiguous"


def test_the_line_given_moves_with_the_unique_neighbour() -> None:
    text = numbered("new1 new2 one x two x three x")
    assert apply(text, hunk("one", "ONE", 0), hunk("x", "X", 3)) == Merged(
        numbered("new1 new2 ONE x two X three x"), "exact"
    )
    assert apply(text, hunk("x", "X", 1), hunk("two", "TWO", 2)) == Merged(
        numbered("new1 new2 one X TWO x three x"), "exact"
    )


def test_a_copy_that_came_below_a_hunk_does_not_take_it_over() -> None:
    text = numbered("a x b a x c")
    outcome = apply(text, hunk("x", "X", 1), hunk("c", "C", 3))
    assert unresolved(outcome).code == "ambiguous"


def test_neighbours_that_disagree_leave_it_open() -> None:
    text = numbered("one x n x two x")
    outcome = apply(text, hunk("one", "ONE", 0), hunk("x", "X", 1), hunk("two", "TWO", 2))
    assert unresolved(outcome).code == "ambiguous"


def test_one_line_number_everywhere_is_no_hint() -> None:
    text = numbered("x a x b x")
    assert unresolved(apply(text, hunk("x", "X", 0), hunk("b", "B", 0))).code == "ambiguous"


CLASSES = "class A:\n    def f(self):\n        return 1\n\n\nclass B:\n    def f(self):\n        return 1\n"


def code_hunk(*scopes: str, line: int | None = None) -> Replacement:
    return Replacement(("        return 1",), ("        return 2",), Hint(line, scopes))


@pytest.mark.parametrize(
    "scopes", [("class B",), ("class B:",), ("class B:", "    def f(self):"), ("class B", "def f")]
)
def test_of_several_places_the_one_inside_the_scope(scopes: tuple[str, ...]) -> None:
    outcome = apply(CLASSES, code_hunk(*scopes), form="v4a")
    assert outcome == Merged(CLASSES[: -len("1\n")] + "2\n", "exact")


def test_a_scope_does_not_reach_into_the_next_class() -> None:
    outcome = apply(CLASSES, code_hunk("class A"))
    assert outcome == Merged(CLASSES.replace("return 1", "return 2", 1), "exact")


def test_the_only_place_outside_of_its_scope_is_not_certain() -> None:
    """The hunk was made for class B, where another edit has changed the line since."""
    changed = CLASSES[: -len("1\n")] + "3\n"
    outcome = unresolved(apply(changed, code_hunk("class B"), form="v4a"))
    assert (outcome.code, len(outcome.candidates)) == ("stale", 1)
    assert unresolved(apply(changed, code_hunk("class C"), form="v4a")).code == "stale"
    assert unresolved(apply(changed, code_hunk("class B", line=40))).code == "stale"
    assert isinstance(apply(changed, code_hunk("class C", line=40)), Merged)


def test_a_heading_of_markdown_reaches_to_the_end() -> None:
    text = "# One\ntext\n# Two\nother\ntext\n"
    assert unresolved(apply(text, hunk("text", "TEXT", None, "# One"), form="v4a")).code == "ambiguous"
    assert apply(text, hunk("text", "TEXT", None, "# Two"), form="v4a") == Merged(
        "# One\ntext\n# Two\nother\nTEXT\n", "exact"
    )


def test_of_several_places_the_only_one_in_order() -> None:
    text = numbered("x one x two x")
    outcome = apply(text, hunk("one", "ONE"), hunk("x", "X"), hunk("two", "TWO"))
    assert outcome == Merged(numbered("x ONE X TWO x"), "exact")


def test_hunks_that_crowd_each_other_have_one_order() -> None:
    assert apply(numbered("x a x"), hunk("x", "X"), hunk("x", "Y")) == Merged(numbered("X a Y"), "exact")
    assert unresolved(apply(numbered("x a x x"), hunk("x", "X"), hunk("x", "Y"))).code == "ambiguous"


def test_hunks_out_of_order_are_placed_by_their_lines() -> None:
    outcome = apply(numbered("a b c d"), hunk("c", "C", 2), hunk("a", "A", 0))
    assert outcome == Merged(numbered("A b C d"), "exact")


def test_hunks_may_share_lines_of_context_but_not_changes() -> None:
    text = numbered("a b c d e")
    assert apply(text, hunk("a b c", "a B c"), hunk("c d e", "c D e")) == Merged(numbered("a B c D e"), "exact")
    outcome = unresolved(apply(text, hunk("a b c", "a B c"), hunk("b c d", "X c d")))
    assert outcome.code == "open_intent"
    assert "line 2" in outcome.reason
    assert unresolved(apply(text, hunk("b c", "b x1 c"), hunk("b c", "b x2 c"))).code == "open_intent"


def test_ambiguous_places_are_offered_nearest_first() -> None:
    outcome = unresolved(apply(numbered("x a x b x"), hunk("x", "X", 3)))
    assert outcome.num_candidates == 3
    assert outcome.reason == "The hunk (line 4) fits in 3 places: lines 1-1, 3-3, 5-5."
    texts = [one.text for one in outcome.candidates]
    assert texts == [numbered(text) for text in ("x a X b x", "x a x b X", "X a x b x")]
    scores = [one.score for one in outcome.candidates]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)


def test_end_of_file_chooses_and_is_checked() -> None:
    assert apply(numbered("x a x"), hunk("x", "X", at_end=True)) == Merged(numbered("x a X"), "exact")
    outcome = unresolved(apply(numbered("x a"), hunk("x", "X", at_end=True)))
    assert (outcome.code, outcome.candidates[0].text) == ("stale", numbered("X a"))


def test_insertions_without_context() -> None:
    assert apply("", hunk("", "a b")) == Merged("a\nb\n", "exact")
    assert apply("a\n", hunk("", "b", at_end=True)) == Merged("a\nb\n", "exact")
    by_line = unresolved(apply(numbered("a b c"), hunk("", "new", 1)))
    assert (by_line.code, by_line.candidates[0].text) == ("open_intent", numbered("a new b c"))
    bare = unresolved(apply(numbered("a b"), hunk("", "new")))
    assert (bare.code, bare.candidates[0].text) == ("open_intent", numbered("a b new"))


def test_blank_lines_alone_are_placed_by_their_line_only() -> None:
    blank = Replacement(("",), (), Hint(1))
    assert apply("a\n\nb\n", blank) == Merged("a\nb\n", "exact")
    assert "blank" in unresolved(apply("a\n\nb\n", Replacement(("",), (), Hint()))).reason


def test_a_blank_line_below_a_hunk_is_forgiven() -> None:
    """Models part hunks with a blank line, which then reads as context."""
    change = Replacement(("a", "b", ""), ("a", "B", ""), Hint())
    assert apply("a\nb\nc\n", change) == Merged("a\nB\nc\n", "exact")


@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        (
            "def f():\n    a = 1\n    return a\n",
            "    a = 1\n+    b = 2\n    return a\n",
            "    a = 1\n    b = 2\n    return a\n",
        ),
        ("<ul>\n  <li>a</li>\n</ul>\n", "  <li>a</li>\n+  <li>b</li>\n", "  <li>a</li>\n  <li>b</li>\n"),
        ("  a: 1\n\n  b: 2\n  c: 3\n", "  a: 1\n\n-  b: 2\n+  b: 4\n  c: 3\n", "  a: 1\n\n  b: 4\n  c: 3\n"),
        # A block comment, all of it one blank too far left.
        ("/*\n * one\n * end\n */\n", " * one\n+* two\n * end\n", " * one\n * two\n * end\n"),
    ],
)
def test_context_without_the_blank_that_is_its_sign_is_found(text: str, body: str, expected: str) -> None:
    first = expected.split("\n")[0]
    whole = text[: text.index(first)] + expected + text[len(text[: text.index(first)]) + len(_kept(body)) :]
    for edit in (f"--- a/f\n+++ b/f\n@@\n{body}", f"*** Begin Patch\n*** Update File: f\n@@\n{body}*** End Patch\n"):
        outcome = merge_hunks(text, (v4a if "Patch" in edit else udiff).parse_files(edit)[0])
        assert isinstance(outcome, Merged)
        assert outcome.text == whole
        assert not isinstance(merge_hunks(whole, udiff.parse_files(f"--- a/f\n+++ b/f\n@@\n{body}")[0]), Merged)


def _kept(body: str) -> str:
    """The lines that a body without signs stands for in the file."""
    lines = [line for line in body.split("\n")[:-1] if not line.startswith("+")]
    return "".join(line.replace("-", "", 1) + "\n" if line.startswith("-") else line + "\n" for line in lines)


SQL = 'def f(a, b):\n    q = """\nSELECT 1\n"""\n    x = 1\n    return q\n\n\ndef g(c):\n    x = 1\n    return c\n'


@pytest.mark.parametrize(
    ("scope", "place"),
    [("def f(a, b):", 0), ("def f()", 0), ("def f(...):", 0), ("def g()", 1), ("def g():", 1)],
)
def test_a_scope_goes_on_below_text_and_may_leave_out_parameters(scope: str, place: int) -> None:
    change = Replacement(("    x = 1",), ("    x = 2",), Hint(None, (scope,)))
    parts = SQL.split("x = 1")
    expected = (
        "x = 2".join(parts[:2]) + "x = 1" + parts[2] if place == 0 else "x = 1".join(parts[:2]) + "x = 2" + parts[2]
    )
    assert apply(SQL, change, form="v4a") == Merged(expected, "exact")


def test_a_scope_goes_on_below_a_heredoc() -> None:
    text = "build() {\n  cat <<EOF\nhello\nEOF\n  run one\n}\n"
    change = Replacement(("  run one",), ("  run two",), Hint(None, ("build() {",)))
    assert apply(text, change, form="v4a") == Merged(text.replace("one", "two"), "exact")


def test_found_on_a_looser_rung_the_file_keeps_its_spelling() -> None:
    text = "def f():\n\tif x:  \n\t\treturn 1\n"
    change = Replacement(("    if x:", "        return 1"), ("    if x:", "        return 2"), Hint())
    assert apply(text, change) == Merged("def f():\n\tif x:  \n\t\treturn 2\n", "reindent")


# Applied twice


def test_hunks_that_are_done_already() -> None:
    done = apply(numbered("a brand_new_name c"), hunk("a old c", "a brand_new_name c", 0))
    assert isinstance(done, AlreadyApplied)
    added = apply(numbered("first second"), hunk("first", "first second"))
    assert isinstance(added, AlreadyApplied)


def test_of_some_done_hunks_only_the_others_are_applied() -> None:
    text = numbered("head_line renamed_line mid old tail")
    first, second = hunk("head_line was mid", "head_line renamed_line mid"), hunk("old tail", "new tail")
    assert apply(text, first, second) == Merged(numbered("head_line renamed_line mid new tail"), "exact")


def test_a_done_hunk_without_context_is_not_skipped() -> None:
    """`was` is gone and `renamed_line` stands there; nothing shows that the one became the other."""
    outcome = apply(numbered("renamed_line mid old tail"), hunk("was", "renamed_line"), hunk("old tail", "new tail"))
    assert unresolved(outcome).code == "not_found"


def test_few_letters_are_no_proof_of_being_done() -> None:
    assert unresolved(apply(numbered("a } c"), hunk("b", "}"))).code == "not_found"


ENTRIES = '{\n  "a": {\n    "type": 1,\n    "default": 1\n  },\n  "b": {\n    "type": 1,\n    "default": 1\n  }\n}\n'
SECOND = '@@ -7,2 +7,2 @@\n     "type": 1,\n-    "default": 1\n+    "default": 2\n'


def test_a_diff_sent_twice_does_not_change_the_other_of_two_places() -> None:
    """The line number chose between two places; the second time only the other one is left."""
    once = apply_diff(ENTRIES, SECOND)
    assert isinstance(once, Merged)
    assert once.text.index('"default": 1') < once.text.index('"default": 2')
    assert isinstance(apply_diff(once.text, SECOND), AlreadyApplied)
    above = '@@ -1,2 +1,3 @@\n {\n+  "z": 0,\n   "a": {\n' + SECOND
    once = apply_diff(ENTRIES, above)
    assert isinstance(once, Merged)
    assert not isinstance(apply_diff(once.text, above), Merged)


def test_a_diff_sent_twice_does_not_change_its_twin_at_another_depth() -> None:
    original = "default:\n\tmsg = unknown;\n\tbreak;\n\n\tdefault:\n\t\tmsg = unknown;\n"
    diff = "@@\n default:\n-\tmsg = unknown;\n+\tmsg = unknown_error;\n"
    once = apply_diff(original, diff)
    assert isinstance(once, Merged)
    assert isinstance(apply_diff(once.text, diff), AlreadyApplied)


NEAR = 'def run(p):\n    log("start")  # noqa\n    cleanup_temp_files(p)\n\n\ndef stop():\n    return shutdown_all()\n'


@pytest.mark.parametrize("line", ["@@ -2,2 +2,1 @@", "@@"])
@pytest.mark.parametrize("form", ["udiff", "v4a"])
def test_a_deletion_that_missed_is_not_done(line: str, form: str) -> None:
    missed = f'{line}\n-    log("start")\n     cleanup_temp_files(p)\n'
    made = "@@\n-    return shutdown_all()\n+    return 1\n"
    for body in (missed, missed + made):
        text = f"*** Begin Patch\n*** Update File: f\n{body}*** End Patch\n" if form == "v4a" else body
        (edit,) = (v4a if form == "v4a" else udiff).parse_files(text)
        outcome = unresolved(merge_hunks(NEAR, edit))
        assert outcome.code == "not_found"
        assert "The new lines stand at line 3 already" in outcome.reason
        assert outcome.nearest


def test_a_deletion_between_kept_lines_is_done() -> None:
    diff = "@@ -1,3 +1,2 @@\n first_line\n-gone\n }\n"
    assert isinstance(apply_diff("first_line\n}\n", diff), AlreadyApplied)


def test_an_insertion_that_stands_around_its_line_is_open() -> None:
    diff = "--- a/f\n+++ b/f\n@@ -1,4 +1,6 @@\n a()\n b()\n+\n+c()\n \n c()\n"
    outcome = unresolved(apply_diff("a()\nb()\n\nc()\n\nc()\n", diff))
    assert "stand there already" in outcome.reason


def test_an_edit_that_changes_nothing() -> None:
    assert isinstance(apply(numbered("a b"), hunk("a", "a")), AlreadyApplied)


# Final newline


@pytest.mark.parametrize(
    ("before", "after"),
    [("a\nb", "a\nb\n"), ("a\nb\n", "a\nb"), ("a\nb", "a\nc"), ("\nfoo", "\n"), ("foo", "\n"), ("\n", ""), ("", "x")],
)
def test_the_final_newline_is_as_the_diff_says(before: str, after: str) -> None:
    diff = render_unified_diff(before, after, "f")
    assert apply_diff(before, diff) == Merged(after, "exact")
    assert isinstance(apply_diff(after, diff), AlreadyApplied | Unresolved)


def test_without_a_marker_the_final_newline_stays() -> None:
    assert apply("a\nb", hunk("b", "c")) == Merged("a\nc", "exact")
    assert apply("a\nb", hunk("a", "c"), final_newline=True) == Merged("c\nb", "exact")


def test_an_edit_of_the_final_newline_alone_needs_its_line() -> None:
    assert apply("a\nb\n", hunk("b", "b", at_end=True), final_newline=False) == Merged("a\nb", "exact")
    assert unresolved(apply("a\nc\n", hunk("b", "b", at_end=True), final_newline=False)).code == "not_found"


def test_lines_that_repeat_without_the_final_newline_asked_for_are_not_done() -> None:
    diff = "--- a/f\n+++ b/f\n@@ -3 +3,2 @@\n-x y\n+d\n+x y\n\\ No newline at end of file\n"
    outcome = unresolved(apply_diff("a\nd\nx y\n", diff))
    assert outcome.code == "open_intent"


# Round trips: hostile lines

LINES = [
    *["a", "b", "", " ", "d\r", "e\rf", "x\u2028y", "\x0c", "é", "brand_new_name", "-", "-- x", "++ y", "+ z", "-- "],
    *["--- a/f", "+++ b/f", "@@ -1,2 +1,2 @@", "@@", "diff --git a/f b/f", "Index: f", "```", "*** End Patch"],
    *["*** Update File: f", "*** End of File", "\\ No newline at end of file"],
]


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str]:
    """A text and an edited one, of few different lines, so that they repeat."""
    line = st.sampled_from(draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=6)))
    before = draw(st.lists(line, max_size=30))
    after = list(before)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(after)))
        after[start : start + draw(st.integers(0, 3))] = draw(st.lists(line, max_size=3))
    endings = draw(st.tuples(st.booleans(), st.booleans()))
    return _text(before, endings[0]), _text(after, endings[1])


def _text(lines: Sequence[str], newline: bool) -> str:
    return "\n".join(lines) + ("\n" if lines and newline else "")


@given(texts())
@settings(max_examples=400, deadline=None)
def test_a_diff_merged_into_its_old_text_gives_its_new_text(pair: tuple[str, str]) -> None:
    """It may be open where the old text has the new lines already, as the same diff sent twice would find them."""
    before, after = pair
    if before != after:
        outcome = apply_diff(before, render_unified_diff(before, after, "f"))
        if isinstance(outcome, Unresolved):
            assert "stand there already" in outcome.reason or "only blank lines" in outcome.reason
            assert after.rstrip("\n") in [one.text.rstrip("\n") for one in outcome.candidates]
        else:
            assert outcome == Merged(after, "exact")


@given(texts())
@settings(max_examples=400, deadline=None)
def test_a_diff_of_one_hunk_is_never_made_twice(pair: tuple[str, str]) -> None:
    before, after = pair
    diff = render_unified_diff(before, after, "f")
    added = [line for line in diff.split("\n")[3:] if line.startswith("+")]
    if before != after and diff.count("\n@@ ") == 1 and any(map(str.strip, (line[1:] for line in added))):
        assert not isinstance(apply_diff(after, diff), Merged)


@given(texts(), st.integers(1, 2))
@settings(max_examples=200, deadline=None)
def test_with_less_context_a_diff_is_merged_rightly_or_not_at_all(pair: tuple[str, str], context: int) -> None:
    before, after = pair
    if before != after:
        outcome = apply_diff(before, render_unified_diff(before, after, "f", context))
        assert isinstance(outcome, Unresolved) or outcome == Merged(after, "exact")


@given(texts())
@settings(max_examples=200, deadline=None)
def test_a_v4a_patch_is_merged_rightly_or_not_at_all(pair: tuple[str, str]) -> None:
    """The hunks of the diff, without line numbers: repeated lines may then be ambiguous, or look done."""
    before, after = (text.removesuffix("\n") + "\n" for text in pair)
    if before == after:
        return
    diff = render_unified_diff(before, after, "f", 3).split("\n")[2:-1]
    body = ["@@" if line.startswith("@@ -") else line for line in diff if not line.startswith("\\")]
    (edit,) = v4a.parse_files("\n".join(["*** Begin Patch", "*** Update File: f", *body, "*** End Patch"]))
    outcome = merge_hunks(before, edit)
    assert not isinstance(outcome, Merged) or outcome.text == after


@given(texts())
@settings(max_examples=200, deadline=None)
def test_a_v4a_patch_with_the_whole_file_as_context_gives_the_new_text(pair: tuple[str, str]) -> None:
    before, after = (text.removesuffix("\n") + "\n" for text in pair)
    if before == after or not before.strip():
        return
    diff = render_unified_diff(before, after, "f", 100).split("\n")[3:-1]
    body = [line for line in diff if not line.startswith("\\")]
    (edit,) = v4a.parse_files("\n".join(["*** Begin Patch", "*** Update File: f", "@@", *body, "*** End Patch"]))
    assert merge_hunks(before, edit) == Merged(after, "exact")


@given(st.lists(st.sampled_from(["a", " a", "a ", "b", "", "“q”", '"q"']), max_size=30), st.data())
@settings(max_examples=150, deadline=None)
def test_places_by_the_index_are_the_places_one_by_one(lines: list[str], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(["a", "  a", "b", "", '"q"']), min_size=1, max_size=3))
    if any(line.strip() for line in wanted):
        places = find_places(LineIndex(lines), wanted)
        assert places == find_places(lines, wanted)
        size = len(wanted)
        exact = tuple(at for at in range(len(lines) - size + 1) if lines[at : at + size] == wanted)
        assert not exact or (places is not None and (places.rung, places.starts) == ("exact", exact))


# Large inputs: the number of comparisons is what grows, so the text repeats itself


def large(num_lines: int, step: int) -> tuple[str, str]:
    lines = [f"    value_{at % 500} = compute({at % 250})" if at % 3 else "" for at in range(num_lines)]
    lines = [f"line {at}" if at % 40 == 0 else line for at, line in enumerate(lines)]
    changed = [f"changed {at}" if at % step == step - 1 else line for at, line in enumerate(lines)]
    return "\n".join(lines) + "\n", "\n".join(changed) + "\n"


@pytest.mark.parametrize("drift", [0, 7])
def test_a_megabyte_with_a_thousand_hunks(drift: int) -> None:
    before, after = large(40_000, 40)
    (edit,) = udiff.parse_files(render_unified_diff(before, after, "f"))
    assert isinstance(edit.changes, tuple)
    assert len(edit.changes) == 1_000
    shift = "new line\n" * drift
    assert merge_hunks(shift + before, edit) == Merged(shift + after, "exact")


# Codex


def test_compat_takes_the_first_match_and_adds_a_final_newline() -> None:
    edit = ParsedEdit("v4a", (hunk("x", "X"),), "test", "f", ordered=True)
    assert merge_hunks("x\na\nx", edit, compat=True) == Merged("X\na\nx\n", "exact")
    assert unresolved(merge_hunks("x\na\nx", edit)).code == "ambiguous"
