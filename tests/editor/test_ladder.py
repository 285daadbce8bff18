"""The rungs of the ladder: what each forgives, and that two places are never a match. Its index equals a plain scan."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor.match.ladder import LineIndex, Retab, Shift, find_places, fold_line, identity, rstrip_blanks, strip_blanks
from editor.merge import merge
from editor.types import AlreadyApplied, Hint, Merged, MergeOutcome, ParsedEdit, Replacement, Unresolved
from editor.verify import is_accepted, verify


def apply(original: str, before: str, after: str, hint: Hint | None = None) -> MergeOutcome:
    change = Replacement(tuple(before.split("\n")), tuple(after.split("\n")) if after else (), hint or Hint())
    return merge(original, ParsedEdit("search_replace", (change,), "test"))


def unresolved(outcome: MergeOutcome) -> Unresolved:
    assert isinstance(outcome, Unresolved), outcome
    return outcome


KEYS = [identity, rstrip_blanks, strip_blanks, fold_line]
LINES = st.lists(st.sampled_from(["a", "a ", "  a", "b", "", " ", "c\u00a0d", "c d", "“", '"']), max_size=14)


@pytest.mark.parametrize("key", KEYS)
@given(lines=LINES, wanted=LINES.filter(bool))
def test_the_index_finds_what_a_plain_scan_finds(
    key: Callable[[str], str], lines: list[str], wanted: list[str]
) -> None:
    keys, sought = [key(line) for line in lines], [key(line) for line in wanted]
    plain = tuple(at for at in range(len(keys) - len(sought) + 1) if keys[at : at + len(sought)] == sought)
    index = LineIndex(lines)
    asked_first = index.key_by(key).find_starts(sought)
    asked_again = index.key_by(key).find_starts(sought)
    assert asked_first == asked_again == plain


def test_one_index_serves_many_questions() -> None:
    index = LineIndex(["def f():", "\treturn 1", "x\u00a0= 1"])
    assert find_places(index, ["def f():"]) == find_places(index.lines, ["def f():"])
    assert find_places(index, ["    return 1"]) == find_places(index.lines, ["    return 1"])
    assert find_places(index, ["x = 1"]) == find_places(index.lines, ["x = 1"])


# Indentation.


@pytest.mark.parametrize(
    ("original", "before", "after", "expected"),
    [
        (
            "class A:\n\tdef f(self):\n\t\treturn 1\n",
            "    def f(self):\n        return 1",
            "    def f(self):\n        if x:\n            return 2\n        return 1",
            "class A:\n\tdef f(self):\n\t\tif x:\n\t\t\treturn 2\n\t\treturn 1\n",
        ),
        ("if (a) {\n  b();\n}\n", "\tb();", "\tif (c) {\n\t\tb();\n\t}", "if (a) {\n  if (c) {\n    b();\n  }\n}\n"),
        # One level less deep in the edit, and the ` *` of a block comment behind the tabs.
        (
            "class A {\n\t/**\n\t * One.\n\t */\n\tf() {\n\t\tg();\n\t}\n}\n",
            "/**\n * One.\n */\nf() {\n  g();\n}",
            "/**\n * Two.\n */\nf() {\n  g();\n  h();\n}",
            "class A {\n\t/**\n\t * Two.\n\t */\n\tf() {\n\t\tg();\n\t\th();\n\t}\n}\n",
        ),
    ],
)
def test_tabs_for_spaces(original: str, before: str, after: str, expected: str) -> None:
    assert apply(original, before, after) == Merged(expected, "reindent")


def test_tabs_and_spaces_are_not_mixed() -> None:
    # Without its own indentation the SEARCH line does not tell how many spaces are a tab.
    outcome = unresolved(apply("class A:\n\tfoo()\n", "foo()", "if a:\n    foo()"))
    assert outcome.code == "not_found"
    assert "indentation" in outcome.reason


def test_a_file_that_mixes_tabs_and_spaces_keeps_its_own() -> None:
    original = "def f():\n\tif a:\n\t    b()\n\tc()\n"
    outcome = apply(original, "if a:\n    b()", "if a:\n    b()\n    d()")
    assert outcome == Merged("def f():\n\tif a:\n\t    b()\n\t    d()\n\tc()\n", "reindent")


def test_an_uneven_mapping_of_tabs_is_none() -> None:
    assert unresolved(apply("\tif a:\n\t\t\tb()\n", "  if a:\n    b()", "x")).code == "not_found"


def test_a_line_that_has_too_little_indentation_cannot_be_moved() -> None:
    assert Retab(4, -1, to_tabs=True).apply("a") is None
    assert Retab(4, 0, to_tabs=True).apply("\ta") is None
    assert Retab(4, 1, to_tabs=False).apply("\t *") == "         *"
    assert Shift("\t").apply("    a") is None
    assert Shift("\t").apply(" * a") == "\t * a"


def test_brackets_at_another_indentation_are_no_match() -> None:
    assert unresolved(apply("f(\n    a,\n  )\n", ")", "];")).code == "not_found"


@pytest.mark.parametrize(
    ("original", "before", "after", "candidate"),
    [
        # One line at another depth.
        (
            "def f():\n    if a:\n        return None\n",
            "    return None",
            "    return []",
            "def f():\n    if a:\n        return []\n",
        ),
        (
            "def f():\n    a = 1\n    return a\n",
            "a = 1",
            "a = 1\n    b = 2",
            "def f():\n    a = 1\n        b = 2\n    return a\n",
        ),
        # The new line stands at the file's depth already.
        (
            "def f():\n    a()\n    b()\n",
            "a()\nb()",
            "a()\n    c()\nb()",
            "def f():\n    a()\n        c()\n    b()\n",
        ),
        # Four spaces are two tabs, or one.
        ("f {\n\tif x {\n\t\treturn err\n\t}\n}\n", "    return err", "    if y {\n        return err\n    }", None),
        # Text of a heredoc, of a raw string, of a template literal.
        (
            "f() {\n  if true; then\n    run\n  fi\n}\n",
            "if true; then\n  run\nfi",
            "if true; then\n  cat <<EOF\nhello\nEOF\n  run\nfi",
            None,
        ),
        ("f {\n\tx := 1\n\tuse(x)\n}\n", "    x := 1\n    use(x)", "    x := `\na:\n    b: 1\n`\n    use(x)", None),
        (
            "f {\n    a();\n    b();\n}\n",
            "a();\nb();",
            "a();\nc(`\n  text\n`);\nb();",
            "f {\n    a();\n    c(`\n      text\n    `);\n    b();\n}\n",
        ),
    ],
)
def test_where_a_shift_may_be_wrong_it_is_only_proposed(
    original: str, before: str, after: str, candidate: str | None
) -> None:
    outcome = unresolved(apply(original, before, after))
    assert outcome.code in ("open_intent", "not_found")
    assert candidate is None or candidate in [one.text for one in outcome.candidates]


def test_in_yaml_no_line_is_found_at_another_depth_for_certain() -> None:
    change = Replacement(("  name: web", "  image: a"), ("  name: api", "  image: a"))
    edit = ParsedEdit("search_replace", (change,), "test")
    original = "spec:\n  t:\n      name: web\n      image: a\n"
    assert unresolved(merge(original, edit, "yaml")).code == "open_intent"
    assert isinstance(merge(original, edit, "python"), Merged)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def f(self):\n    a()\n    b()", "def f(self):\n    if x:\n        a()\n    b()", "if x:\n            a()"),
        (
            "def f(self):\n    a()\n    b()",
            "def f(self):\n    a()\n    for i in x:\n        c()\n        d()\n    b()",
            "a()\n        for i in x:\n            c()\n            d()",
        ),
        (
            "def f(self):\n    a()\n    b()",
            'def f(self):\n    """Do it.\n\n    More.\n    """\n    a()\n    b()',
            '"""Do it.\n\n        More.\n        """\n        a()',
        ),
    ],
)
def test_a_dedented_block_is_shifted_with_what_is_nested_in_it(before: str, after: str, expected: str) -> None:
    original = "class A:\n    def f(self):\n        a()\n        b()\n"
    outcome = apply(original, before, after)
    assert outcome == Merged(original.replace("a()", expected), "reindent")


def test_a_long_line_without_its_indentation_is_found() -> None:
    original = "def f():\n    return os.path.basename(path)\n"
    outcome = apply(original, "return os.path.basename(path)", "return os.path.dirname(path)")
    assert outcome == Merged(original.replace("basename", "dirname"), "reindent")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a = 1\n    return a", "a = 2\n    return a", "    a = 2\n    return a"),
        ("a = 1\n    return a", "a = 1\n    b = 2\n    return b", "    a = 1\n    b = 2\n    return b"),
        ("a = 1\n    return a", "    a = 2\n    return a", "    a = 2\n    return a"),
        ("a = 1\n    return a", "if x:\n        a = 1\n    return a", "    if x:\n        a = 1\n    return a"),
    ],
)
def test_a_first_line_that_lost_its_indentation_is_found_and_given_it(before: str, after: str, expected: str) -> None:
    original = "def f():\n    a = 1\n    return a\n"
    assert apply(original, before, after) == Merged(f"def f():\n{expected}\n", "reindent")
    twice = original + original.replace("f()", "g()")
    assert isinstance(apply(twice, before, after), Unresolved)


# Look-alikes.


@pytest.mark.parametrize(
    ("original", "before", "after", "expected"),
    [
        ("x\u00a0=\u00a01\ny\n", "x = 1", "x = 2", "x\u00a0=\u00a02\ny\n"),
        ("say(“hello world”)\n", 'say("hello world")', 'say("hello there")', "say(“hello there”)\n"),
        ("It’s – well… fine\n", "It's - well... fine", "It's - well... great", "It’s – well… great\n"),
        ("ｆｏｏ（１）\nbar\n", "foo(1)\nbar", "foo(1)\nbaz", "ｆｏｏ（１）\nbaz\n"),
        ("caf\u0065\u0301 = 1\n", "caf\u00e9 = 1", "caf\u00e9 = 2", "caf\u0065\u0301 = 2\n"),
        ("a\u200bb = 1\n", "ab = 1", "ab = 2", "a\u200bb = 2\n"),
        ("“a” one “b” two\n", '"a" one "b" two', '"x" one "y" two', "“x” one “y” two\n"),
        # An inserted line keeps what the sender wrote; the lines around it keep the file's bytes.
        ("# “x”\ny\n", '# "x"\ny', '# "x"\n# "z"\ny', '# “x”\n# "z"\ny\n'),
        ("  “a”\n  b\n", '"a"\nb', '"a"\nc', "  “a”\n  c\n"),
    ],
)
def test_look_alikes_are_found_and_the_files_own_stay(original: str, before: str, after: str, expected: str) -> None:
    assert apply(original, before, after) == Merged(expected, "folded")


@pytest.mark.parametrize(
    ("original", "before", "after"),
    [
        ("x = “a” + “b”\n", 'x = "a" + "b"', 'x = "a" + "b" + "c"'),
        ("“a b” c\n", '"a b" c', "d c"),
        ("a\u00a0b c\n", "a b c", "x y c"),
    ],
)
def test_a_change_of_the_look_alikes_themselves_is_open(original: str, before: str, after: str) -> None:
    outcome = unresolved(apply(original, before, after))
    assert outcome.code == "open_intent"
    assert len(outcome.candidates) == 1
    assert outcome.candidates[0].text != original


def test_look_alikes_in_two_places_are_ambiguous() -> None:
    assert unresolved(apply("“a” b\nx\n„a“ b\n", '"a" b', "c")).num_candidates == 2


def test_a_unicode_difference_is_named() -> None:
    outcome = unresolved(apply("total\u00a0= 1\nfirst(line)\n", "total = 1\nfirst(lime)", "x"))
    assert "U+00A0 (NO-BREAK SPACE) in the file at column 6" in outcome.nearest


# Elided middles.

LONG = "def f():\n    a = 1\n    b = 2\n    return total\n\n\ndef g():\n    return 0\n"


@pytest.mark.parametrize("dots", ["    ...", "...", "    # ... existing code ...", "…"])
def test_an_elided_middle_stays(dots: str) -> None:
    outcome = apply(LONG, f"def f():\n{dots}\n    return total", f"def f(x):\n{dots}\n    return total + x")
    expected = LONG.replace("def f():", "def f(x):").replace("return total", "return total + x")
    assert outcome == Merged(expected, "elided")


@pytest.mark.parametrize(
    ("old", "new"), [("return total", "return total + x"), ("return total", "return total\n    more()")]
)
def test_an_elided_middle_is_changed_once_and_passes_the_checks(old: str, new: str) -> None:
    before, after = f"def f():\n    ...\n    {old}", f"def f():\n    ...\n    {new}"
    once = apply(LONG, before, after)
    assert isinstance(once, Merged)
    change = Replacement(tuple(before.split("\n")), tuple(after.split("\n")))
    assert is_accepted(verify(LONG, once.text, ParsedEdit("search_replace", (change,), "test"), "python"))
    assert isinstance(apply(once.text, before, after), AlreadyApplied)


def test_an_elided_middle_with_two_ends_is_ambiguous() -> None:
    original = "def f():\n    a()\n    return 1\n\n\ndef g():\n    return 1\n"
    outcome = unresolved(apply(original, "def f():\n    ...\n    return 1", "def f():\n    ...\n    return 2"))
    assert outcome.code == "ambiguous"
    assert outcome.candidates[0].text == "def f():\n    a()\n    return 2\n\n\ndef g():\n    return 1\n"


@pytest.mark.parametrize("num_pieces", [5, 40, 3_000])
def test_many_pieces_that_stand_everywhere_end_soon(num_pieces: int) -> None:
    # Trying all ways to place them would not end in a lifetime.
    pieces = "x\n...\n" * num_pieces
    outcome = unresolved(apply("last\n" + "x\n" * 200, pieces + "last", pieces.replace("x", "y") + "last"))
    assert outcome.code == "not_found"


def test_dots_on_one_side_only_are_open() -> None:
    outcome = unresolved(apply(LONG, "def f():\n    ...\n    return total", "def f():\n    return 0"))
    assert outcome.code == "open_intent"
    assert outcome.candidates[0].text == "def f():\n    return 0\n\n\ndef g():\n    return 0\n"
    assert unresolved(apply(LONG, "def f():", "def f():\n    # ... existing code ...\n    c = 3")).code == "open_intent"


def test_dots_that_stand_in_the_file_are_text() -> None:
    assert apply("def f():\n    ...\n", "def f():\n    ...", "def f():\n    return 1") == Merged(
        "def f():\n    return 1\n", "exact"
    )


BODY = "def f(x):\n    a = x + 1\n    b = a * 2\n    c = b - 3\n    return c\n"


@pytest.mark.parametrize(
    ("original", "before", "after", "expected"),
    [
        (
            BODY,
            "    a = x + 1\n    ...\n    return c",
            "    for x in range(3):\n        a = x + 1\n        ...\n    return c",
            "def f(x):\n    for x in range(3):\n        a = x + 1\n        b = a * 2\n        c = b - 3\n"
            "    return c\n",
        ),
        (
            BODY,
            "def f(x):\n    ...\n    return c",
            "def f(x):\n    with lock:\n        ...\n    return c",
            "def f(x):\n    with lock:\n        a = x + 1\n        b = a * 2\n        c = b - 3\n    return c\n",
        ),
        (
            "s:\n  main:\n    host: a\n\n    port: 80\n  name: x\n",
            "s:\n  main:\n    ...\n  name: x",
            "s:\n  ...\n  name: x",
            "s:\n  host: a\n\n  port: 80\n  name: x\n",
        ),
    ],
)
def test_what_is_elided_goes_to_the_depth_of_its_dots(original: str, before: str, after: str, expected: str) -> None:
    assert apply(original, before, after) == Merged(expected, "elided")


def test_what_is_elided_and_cannot_go_to_another_depth_is_open() -> None:
    before, after = "def f(x):\n    ...\n    return c", "def f(x):\n    with lock:\n        ...\n    return c"
    text = BODY.replace("    b = a * 2\n", '    b = """\ntext\n"""\n')
    assert unresolved(apply(text, before, after)).code == "open_intent"
    assert unresolved(apply(BODY, before.replace("    ...", "..."), after)).code == "open_intent"
    both = unresolved(apply(BODY, before + "\n    ...", after + "\n..."))
    assert both.code == "open_intent"


def test_lines_that_move_past_elided_ones_are_open() -> None:
    original = "def a():\n    x = 1\n    return x\n\n\ndef b():\n    y = 2\n    return y\n"
    heads = ("def a():\n    ...\n\n\ndef b():\n    ...", "def b():\n    ...\n\n\ndef a():\n    ...")
    assert unresolved(apply(original, *heads)).code == "open_intent"
    assert unresolved(apply(BODY, "    a = x + 1\n    ...\n    return c", "    ...\n    a = x + 1\n    return c"))


# Hints, slack, and what is only alike.


def test_a_line_hint_chooses_among_places_and_makes_none() -> None:
    original = "x = 1\ny\nx = 1\n"
    assert apply(original, "x = 1", "x = 2", Hint(line=2)) == Merged("x = 1\ny\nx = 2\n", "exact")
    near = unresolved(apply(original, "x = 1", "x = 2", Hint(line=1)))
    assert near.code == "ambiguous"
    assert len(near.candidates) == 2
    assert unresolved(apply(original, "z", "x", Hint(line=1))).code == "not_found"


def test_a_scope_hint_chooses_among_places() -> None:
    original = "class A:\n    def f(self):\n        return 1\n\nclass B:\n    def f(self):\n        return 1\n"
    outcome = apply(original, "        return 1", "        return 2", Hint(scopes=("class B:", "def f(self):")))
    assert outcome == Merged(original[:-2] + "2\n", "exact")
    assert unresolved(apply(original, "        return 1", "x", Hint(scopes=("def f(self):",)))).code == "ambiguous"


def test_blank_lines_around_both_parts_are_forgiven_and_not_written() -> None:
    assert apply("a\nb\n", "\na\n", "\nA\n") == Merged("A\nb\n", "trailing_space")
    assert unresolved(apply("a\nb\n", "\na", "A")).code == "not_found"
    assert apply("a\n\nb\n", "\nb", "\nB") == Merged("a\n\nB\n", "exact")


def test_a_change_of_blank_lines_alone_is_not_taken_for_applied() -> None:
    # REPLACE stands in the file, but SEARCH has a blank line too many: nothing tells that the edit was made before.
    original = "import functools\n\ndef fnmatch(name):\n    pass\n"
    outcome = unresolved(apply(original, "\n\ndef fnmatch(name):", "\ndef fnmatch(name):"))
    assert outcome.code == "not_found"


def test_what_is_only_alike_is_proposed_and_never_merged() -> None:
    original = "import os\n\n\ndef load(path):\n    with open(path) as file:\n        return file.read()\n"
    outcome = unresolved(
        apply(
            original,
            "def load(path):\n    with open(path) as f:\n        return file.read()",
            "def load(path):\n    with open(path) as f:\n        return file.read().strip()",
        )
    )
    assert outcome.code == "not_found"
    (reading,) = outcome.candidates
    # What the edit leaves as it is stays as the file has it, however the edit spells it.
    assert reading.text == original.replace("file.read()", "file.read().strip()")
    assert 0.75 < reading.score < 1
    assert reading.why.startswith("SEARCH taken at lines 4-6")


def test_places_that_are_alike_to_the_same_degree_are_all_proposed() -> None:
    original = "value_one = compute(1)\nother\nvalue_one = compute(2)\n"
    outcome = unresolved(apply(original, "value_one = compute(3)", "gone"))
    assert [one.text for one in outcome.candidates] == [
        "gone\nother\nvalue_one = compute(2)\n",
        "value_one = compute(1)\nother\ngone\n",
    ]


def test_nothing_is_proposed_for_lines_of_another_file() -> None:
    outcome = unresolved(apply("def load(path):\n    return 1\n", "SELECT * FROM users", "x"))
    assert outcome.candidates == ()
    assert outcome.nearest == ""


def test_html_escapes_are_taken_as_written_and_named() -> None:
    # Roo-Code#10804, cline#7698: decoding them changed files that hold escapes.
    outcome = unresolved(apply("if (a < c) {\n", "if (a &lt; c) {", "if (a &gt; c) {"))
    assert "HTML escapes" in outcome.reason
    assert apply("p { &lt; }\n", "p { &lt; }", "p { &gt; }") == Merged("p { &gt; }\n", "exact")


def test_very_long_lines_and_blocks_are_compared_in_bounded_time() -> None:
    assert unresolved(apply("a" * 100_000 + "\n", "a" * 99_999, "b")).code == "not_found"
    many = "\n".join(f"line {number} of many" for number in range(5_000))
    assert unresolved(apply(many + "\n", many.replace("7", "8"), "b")).nearest


TEXT = st.text(st.sampled_from("ab \t\u00a0“”\"'…-–\u0301\u200b\n."), max_size=30)


@given(TEXT, TEXT, TEXT)
def test_no_text_makes_the_ladder_fail(original: str, before: str, after: str) -> None:
    outcome = apply(original, before, after)
    if isinstance(outcome, Unresolved):
        assert outcome.reason
        assert all(0 < one.score <= 1 and one.why for one in outcome.candidates)


@given(st.lists(st.text("ab“”\"' \u00a0…", max_size=8), min_size=1, max_size=5), st.data())
def test_folding_never_changes_a_line_that_the_edit_repeats(lines: list[str], data: st.DataObject) -> None:
    lines = [f"{number}{line}" for number, line in enumerate(lines)]
    plain = [fold_line(line) for line in lines]
    at = data.draw(st.integers(0, len(lines) - 1))
    outcome = apply("\n".join(lines) + "\n", "\n".join(plain), "\n".join([*plain[:at], "new", *plain[at:]]))
    assert isinstance(outcome, Merged)
    assert outcome.text == "".join(line + "\n" for line in [*lines[:at], "new", *lines[at:]])
