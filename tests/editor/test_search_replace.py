"""SEARCH/REPLACE blocks as aider, Cline and Roo write them: file names, hints, escapes, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor.errors import EditSyntaxError
from editor.formats import detect, parse, parse_files
from editor.formats.markup import parse_file_name
from editor.merge import merge
from editor.types import Hint, Merged, ParsedEdit, Replacement, Unresolved
from tests.editor.recorded import search_replace


def block(before: str, after: str) -> str:
    return f"<<<<<<< SEARCH\n{before}\n=======\n{after}\n>>>>>>> REPLACE\n"


def only(edit: str) -> Replacement:
    parsed = parse(edit)
    assert isinstance(parsed.changes, tuple)
    (change,) = parsed.changes
    return change


# Names of files.


@pytest.mark.parametrize(
    "edit",
    [
        "src/x.py\n" + block("a", "b"),
        "src/x.py\n```python\n" + block("a", "b") + "```\n",
        "```python\nsrc/x.py\n" + block("a", "b") + "```\n",
        "Change this:\n\n**src/x.py**\n```\n" + block("a", "b") + "```\nDone.\n",
        "### `src/x.py`:\n\n" + block("a", "b"),
        "```python src/x.py\n" + block("a", "b") + "```\n",
        "# File: src/x.py\n" + block("a", "b"),
    ],
)
def test_the_name_above_a_block_is_its_path(edit: str) -> None:
    parsed = parse(edit)
    assert parsed.format == "search_replace"
    assert parsed.path == "src/x.py"


@pytest.mark.parametrize(
    "line",
    ["Here it is:", "```python", "Done.", "...", "1.5 times", "# Heading", "in utils.py:", "e.g.", "", "```", "etc..."],
)
def test_talk_names_no_file(line: str) -> None:
    assert parse_file_name(line) == ""


def test_several_files_in_order_of_first_appearance() -> None:
    edit = (
        "b.py\n"
        + block("b1", "B1")
        + "a.py\n"
        + block("a1", "A1")
        + block("a2", "A2")
        + "b.py\n```\n"
        + block("b2", "B2")
    )
    first, second = parse_files(edit)
    assert (first.path, first.old_lines) == ("b.py", ("b1", "b2"))
    assert (second.path, second.old_lines) == ("a.py", ("a1", "a2"))
    with pytest.raises(EditSyntaxError, match=r"2 files: b\.py, a\.py") as caught:
        parse(edit)
    assert caught.value.code == "several_files"


def test_one_name_is_for_all_blocks() -> None:
    edit = block("a", "b") + "x.py\n" + block("c", "d")
    assert parse(edit).path == "x.py"
    assert len(parse(edit).old_lines) == 2
    with pytest.raises(EditSyntaxError, match="first block names no file"):
        parse_files(edit + "y.py\n" + block("e", "f"))


# Roo and Cline.


def test_roo_line_hint() -> None:
    edit = "<<<<<<< SEARCH\n:start_line:3\n:end_line:3\n-------\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE"
    assert only(edit) == Replacement(("x = 1",), ("x = 2",), Hint(line=2))
    assert merge("x = 1\ny\nx = 1\n", parse(edit)) == Merged("x = 1\ny\nx = 2\n", "exact")


@pytest.mark.parametrize("header", ["", ":start_line:1\n-------\n"])
def test_roo_escapes(header: str) -> None:
    edit = f"<<<<<<< SEARCH\n{header}\\<<<<<<< HEAD\na\n\\=======\nb\n\\>>>>>>> main\n=======\na\n>>>>>>> REPLACE"
    assert only(edit).before == ("<<<<<<< HEAD", "a", "=======", "b", ">>>>>>> main")


def test_an_escape_that_may_be_meant_is_refused() -> None:
    with pytest.raises(EditSyntaxError, match="backslash"):
        parse(block("a", "\\======="))


def test_roo_line_numbers_are_taken_off_and_hint() -> None:
    edit = block(" 9 | def f():\n10 |     return 1", " 9 | def f():\n10 |     return 2")
    read = only(edit)
    assert (read.before, read.after) == (("def f():", "    return 1"), ("def f():", "    return 2"))
    assert read.hint == Hint(line=8)
    assert read.verbatim is not None
    assert read.verbatim.before == (" 9 | def f():", "10 |     return 1")
    read = only(block("1 | a", "1 | b").replace("1 | b\n", ""))
    assert (read.before, read.after, read.hint) == (("a",), (), Hint(line=0))


@pytest.mark.parametrize(
    ("before", "after"), [("1 | a\n1 | b", "1 | c"), ("1 | a", "b"), ("a", "1 | a"), ("1 || a", "1 || b")]
)
def test_numbers_of_the_text_stay(before: str, after: str) -> None:
    assert only(block(before, after)).before == tuple(before.split("\n"))


def test_cline_markers() -> None:
    assert only("------- SEARCH>\na\n=======\nb\n+++++++ REPLACE>\n") == Replacement(("a",), ("b",))


def test_html_escapes_stay() -> None:
    assert only(block("a &lt; b", "a &amp;&amp; b")) == Replacement(("a &lt; b",), ("a &amp;&amp; b",))


# What may be cut, and what is no block at all.


@pytest.mark.parametrize("end", ["", "```", "```\nThis is all.\n", ">>>>>>"])
def test_a_block_without_its_end_is_refused(end: str) -> None:
    with pytest.raises(EditSyntaxError, match="may be missing"):
        parse("```\n<<<<<<< SEARCH\na\n=======\nb\n" + end)


def test_fences_of_the_code_are_kept() -> None:
    edit = "README.md\n````\n" + block("```sh\nx\n```", "```sh\ny\n```") + "````\n"
    assert only(edit) == Replacement(("```sh", "x", "```"), ("```sh", "y", "```"))


@pytest.mark.parametrize("end", ["", "```\nThis is all.\n", "\n" + block("c", "d")])
def test_the_word_may_be_missing_in_the_end_line(end: str) -> None:
    parsed = parse("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>>\n" + end)
    assert isinstance(parsed.changes, tuple)
    assert parsed.changes[0] == Replacement(("a",), ("b",))


def test_a_block_with_two_possible_ends_is_refused() -> None:
    with pytest.raises(EditSyntaxError, match="could end at lines 5, 7"):
        parse("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>>\nc\n>>>>>>> REPLACE\n")


@pytest.mark.parametrize(
    "edit",
    [
        "<<<<<<< search\na\n=======\nb\n>>>>>>> replace\n",
        "<<<<<<< ORIGINAL\na\n=======\nb\n>>>>>>> UPDATED\n",
        "<<<<<<< SEARCH src/x.py\na\n=======\nb\n>>>>>>> REPLACE\n",
        "<<<<<<< SEARCH src/x.py\na\n=======\nb\n>>>>>>> REPLACE src/x.py\n",
        "<edits>\n<old_text>\na\n</old_text>\n<new_text>\nb\n</new_text>\n</edits>\n",
    ],
)
def test_other_spellings_of_the_markers(edit: str) -> None:
    assert detect(edit) == "search_replace"
    assert only(edit) == Replacement(("a",), ("b",))
    assert parse(edit).path == ("src/x.py" if "src" in edit else "")


def test_the_line_of_a_tag_is_a_hint() -> None:
    assert only("<old_text line=10>\na\n</old_text>\n<new_text>\nb\n</new_text>\n").hint == Hint(line=9)


@pytest.mark.parametrize(
    "edit",
    [
        "<old_text>\na\n</old_text>\n<new_text>\nb\n",
        "<old_text>\na\n<new_text>\nb\n</new_text>\n",
        "<old_text>\na\n</old_text>\nx\n<new_text>\nb\n</new_text>\n",
    ],
)
def test_tags_that_do_not_match_are_refused(edit: str) -> None:
    with pytest.raises(EditSyntaxError, match="block at line 1"):
        parse(edit)


def test_a_block_that_is_sent_twice_is_read_once() -> None:
    parsed = parse(block("a", "b") + block("c", "d") + block("a", "b"))
    assert parsed.changes == (Replacement(("a",), ("b",)), Replacement(("c",), ("d",)))
    assert parsed.detected == "3 SEARCH/REPLACE blocks, 1 of them sent again"


@pytest.mark.parametrize("head", ["# Count the items\n\n", "---\n\n"])
def test_a_title_above_the_blocks_of_a_program(head: str) -> None:
    assert detect(head + block("a", "b"), "x.py") == "search_replace"
    assert detect(head + block("a", "b"), "x.md") == "lazy"


@pytest.mark.parametrize(
    "label", ["### App.add", "### Node.js", "self.items", "#### `App.add`", "**app.add**:", "os.path"]
)
def test_a_label_above_a_block_names_no_file(label: str) -> None:
    edit = "app.py\n" + block("a", "b") + f"\n{label}\n" + block("c", "d")
    (parsed,) = parse_files(edit, path="app.py")
    assert (parsed.path, parsed.old_lines) == ("app.py", ("a", "c"))


@pytest.mark.parametrize(
    "second",
    [
        "2. Then:\n\n   <<<<<<< SEARCH\n   b\n   =======\n   c\n   >>>>>>> REPLACE\n",
        "> <<<<<<< SEARCH\n> b\n> =======\n> c\n> >>>>>>> REPLACE\n",
        "SEARCH\nb\n=======\nc\nREPLACE\n",
        "<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> main\n",
        "```diff\n@@ -2 +2 @@\n-b\n+c\n```\n",
        "```diff\n-b\n+c\n```\n",
        "--- a/x\n+++ b/x\n",
        "*** Update File: x.py\n@@\n-b\n+c\n",
        '{"old_string": "b", "new_string": "c"}\n',
        '```json\n{\n  "old_string": "b",\n  "new_string": "c"\n}\n```\n',
        "2c2\n< b\n---\n> c\n",
        "<search>b</search>\n<replace>c</replace>\n",
    ],
)
def test_a_second_change_in_another_spelling_is_not_talk(second: str) -> None:
    for edit in (block("a", "b") + second, second + block("a", "b")):
        with pytest.raises(EditSyntaxError) as fault:
            parse(edit, "search_replace")
        assert fault.value.code == "malformed"
        assert "would be lost" in fault.value.message


def test_the_talk_around_blocks_is_kept() -> None:
    edit = "First:\n\nx.py\n```python\n" + block("a", "b") + "```\n\nChanges:\n- b is new\n+ no more\n"
    assert parse(edit).prose == "First:\n\nx.py\n\nChanges:\n- b is new\n+ no more"


SHOWN = "```\nsrc/x.py\n" + block("a", "b") + "```\n"


@pytest.mark.parametrize(
    "edit",
    [
        "# How to write edits\n\nLike this:\n\n" + SHOWN,
        "---\ntitle: Edits\n---\n\n" + SHOWN,
        "<!-- ... existing text ... -->\n\nLike this:\n\n" + SHOWN + "\n<!-- ... existing text ... -->\n",
        "Here is the file:\n```markdown\nHow to write edits, for models.\n\n~~~\n" + block("a", "b") + "~~~\n```\n",
        "# ... existing code ...\nEDIT = '''\n" + block("a", "b") + "'''\n",
    ],
)
def test_a_text_that_shows_blocks_is_no_edit_in_blocks(edit: str) -> None:
    assert detect(edit) == "lazy"


@pytest.mark.parametrize(
    "edit",
    [
        "## What I changed\n\n- the name\n\n" + SHOWN + "\nAnd:\n\n" + SHOWN,
        "# src/x.py\n" + block("a", "b"),
        "README.md\n```markdown\n" + block("a", "b") + "```\n",
        block("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b", "*** Begin Patch"),
        block("{", '{"old_string": "a"'),
        block("a", "b") + "...\n" + block("c", "d"),
    ],
)
def test_blocks_among_talk_are_found(edit: str) -> None:
    assert detect(edit) == "search_replace"


# Properties.

WORDS = st.sampled_from(["", "}", "    return x", "x = 1", "=======", "<<<<<<< HEAD", "# “note”", "\tif a:", "    ..."])


@settings(max_examples=60)
@given(st.lists(WORDS, min_size=1, max_size=25), st.data())
def test_blocks_with_enough_context_give_exactly_the_new_text(body: list[str], data: st.DataObject) -> None:
    old: list[str] = []
    new: list[str] = []
    edit = ""
    for number, line in enumerate(body):
        # A line of its own in every block, so that each stands in one place.
        context = f"unique_line_{number} = {number}"
        written = [context, f"new_{number}()", *data.draw(st.lists(WORDS, max_size=3))]
        old += [context, line]
        if data.draw(st.booleans()):
            edit += search_replace(f"{context}\n{line}\n", "".join(one + "\n" for one in written))
            new += written
        else:
            new += [context, line]
    if edit:
        outcome = merge("".join(one + "\n" for one in old), parse(edit))
        assert isinstance(outcome, Merged)
        assert outcome.text == "".join(one + "\n" for one in new)


MARKERS = """<<<<<<< SEARCH
------- SEARCH
=======
>>>>>>> REPLACE
+++++++ REPLACE
:start_line:1
-------
\\=======
1 | a
2 | b
a.py
```
...
a

*** Begin Patch
@@ -1 +1 @@
{"old_str": 1}"""
PIECES = st.lists(st.sampled_from(MARKERS.split("\n")), max_size=14).map("\n".join)


@given(PIECES, PIECES)
def test_garbage_is_merged_or_refused(original: str, edit: str) -> None:
    try:
        files = parse_files(edit)
    except EditSyntaxError:
        return
    for file in files:
        assert isinstance(file, ParsedEdit)
        assert merge(original, file)


def test_lines_that_begin_with_a_number_and_a_bar_are_found_as_they_stand() -> None:
    """Found by the fuzzer: taken for a line number, the block changed line 1."""
    outcome = merge("x = 1\n1 | x = 1\n", parse(block("1 | x = 1", "1 | x = 2")))
    assert isinstance(outcome, Merged)
    assert outcome.text == "x = 1\n1 | x = 2\n"


CONFLICT = "<<<<<<< HEAD\na = 1\n=======\na = 2\n>>>>>>> feature\n"


@pytest.mark.parametrize(
    "edit",
    [
        CONFLICT,
        f"```python\n{CONFLICT}```\n",
        f"x.py\n{CONFLICT}",
        CONFLICT.replace("HEAD", "Current Change").replace("feature", "Incoming Change"),
        CONFLICT.replace("HEAD", "ours"),
    ],
)
def test_a_conflict_block_has_the_file_s_side_first(edit: str) -> None:
    (parsed,) = parse_files(edit, path="x.py")
    assert (parsed.format, parsed.old_lines, parsed.new_lines) == ("search_replace", ("a = 1",), ("a = 2",))


@pytest.mark.parametrize(
    "edit",
    [
        CONFLICT.replace("=======", "||||||| base\na = 0\n======="),
        f"b = 0\n{CONFLICT}",
        CONFLICT.replace("HEAD", "feature"),
        CONFLICT.partition(">>>>>>>")[0],
        CONFLICT.replace("a = 2", CONFLICT.rstrip()),
    ],
    ids=["with its base", "in code", "of other branches", "cut", "in itself"],
)
def test_a_conflict_that_leaves_open_what_is_meant_is_refused(edit: str) -> None:
    text = "a = 1\nb = 0\n"
    try:
        (parsed,) = parse_files(edit, path="x.py")
    except EditSyntaxError:
        return
    assert isinstance(merge(text, parsed, "python"), Unresolved)


def test_several_conflict_blocks_are_one_edit() -> None:
    (parsed,) = parse_files(CONFLICT + "\n" + CONFLICT.replace("a =", "b ="), path="x.py")
    assert parsed.new_lines == ("a = 2", "b = 2")
