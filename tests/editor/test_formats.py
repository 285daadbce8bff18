"""Edits as text to the intermediate form: what is understood, what is refused, and in which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.placeholders import holds_placeholder, is_placeholder, may_be_placeholder
from editor.types import Replacement, Sketch


def replacements(edit: str) -> tuple[Replacement, ...]:
    parsed = parse(edit)
    assert parsed.format == "search_replace"
    assert not isinstance(parsed.changes, Sketch)
    return parsed.changes


def sketch(edit: str) -> Sketch:
    parsed = parse(edit)
    assert isinstance(parsed.changes, Sketch)
    return parsed.changes


ONE = (Replacement(("a",), ("b",)),)


@pytest.mark.parametrize(
    "edit",
    [
        "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE",
        "<<<<<<< SEARCH\r\na\r\n=======\r\nb\r\n>>>>>>> REPLACE\r\n",
        "<<<<< SEARCH\na\n=====\nb\n>>>>> REPLACE\n",
        "<<<<<<<<< SEARCH\na\n=========\nb\n>>>>>>>>> REPLACE\n",
        "------- SEARCH\na\n=======\nb\n+++++++ REPLACE\n",
        "Here it is:\n\nsrc/x.py\n```python\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```\nDone.",
    ],
)
def test_one_block_in_all_its_spellings(edit: str) -> None:
    assert replacements(edit) == ONE


def test_several_blocks_and_empty_parts() -> None:
    edit = "<<<<<<< SEARCH\na\n\n=======\n>>>>>>> REPLACE\nand\n<<<<<<< SEARCH\n=======\nb\n>>>>>>> REPLACE\n"
    assert replacements(edit) == (Replacement(("a", ""), ()), Replacement((), ("b",)))


def test_a_text_that_holds_markers_is_edited_with_longer_ones() -> None:
    edit = "<<<<<<<< SEARCH\n<<<<<<< HEAD\na\n=======\nb\n>>>>>>> REPLACE\n========\na\n>>>>>>>> REPLACE\n"
    assert replacements(edit) == (Replacement(("<<<<<<< HEAD", "a", "=======", "b", ">>>>>>> REPLACE"), ("a",)),)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("<<<<<<< SEARCH\na\n>>>>>>> REPLACE", "no divider"),
        ("<<<<<<< SEARCH\na\n=======\nb\n", "no end line"),
        ("<<<<<<< SEARCH\na\n=======\nb\n=======\nc\n>>>>>>> REPLACE", "divided at lines 3, 5"),
        ("<<<<<<< SEARCH\na\n<<<<<<< SEARCH\nb\n=======\nc\n>>>>>>> REPLACE", "opens a block inside"),
        ("<<<<<<< SEARCH\na\n======\nb\n>>>>>>> REPLACE", "no divider line '======='"),
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n>>>>>>> REPLACE", "was not opened"),
    ],
)
def test_a_block_that_would_have_to_be_guessed_is_refused(edit: str, says: str) -> None:
    with pytest.raises(EditSyntaxError, match=says) as caught:
        parse(edit)
    assert caught.value.code == "malformed"
    assert caught.value.suggestion


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        ("", "empty_edit"),
        (" \n\t\n", "empty_edit"),
        ("```python\n```", "empty_edit"),
        ("<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE", "empty_edit"),
        ("// ... existing code ...", "only_markers"),
        ("# ...\n\n# ... rest of the file ...\n", "only_markers"),
    ],
)
def test_an_edit_without_code_is_refused(edit: str, code: str) -> None:
    with pytest.raises(EditSyntaxError) as caught:
        parse(edit)
    assert caught.value.code == code


def test_a_format_that_is_asked_for_is_not_guessed() -> None:
    with pytest.raises(EditSyntaxError, match="no SEARCH block"):
        parse("a = 1\n", "search_replace")
    assert parse("<<<<<<< SEARCH\n", "lazy").format == "lazy"


PLACEHOLDERS = """
// ... existing code ...
  # ...
/* ... */
{/* ... existing code ... */}
<!-- ... rest of the file ... -->
-- ... existing code ...
; ... rest ...
% ... unchanged ...
' ... existing code ...
(* ... existing code ... *)
# … existing code …
// existing code...
# rest of the function remains the same ...
// ... same ...
// ... (rest of the code remains the same)
// rest of code unchanged
// [... existing code ...]
// ... other methods ...
// other methods remain unchanged
// existing code
/* ... existing styles ... */
// The rest of the file remains unchanged.
# (same as before)
// same as before
// unchanged
// no changes
// ... no changes ...
# no changes here
// code omitted for brevity
// [...]
// (...)
// ... snip ...
// keep existing code
// implementation unchanged
// ... implementation ...
// ... body ...
// ... (lines 10-50) ...
<!-- rest of the page remains unchanged -->
... existing code ...
[... rest of the code ...]
"""
TEXT_LINES = """
foo(...args)
    ...
# wait for the other threads...
// TODO: handle this ...
// keep going until the queue is empty...
# the same as above but slower
return ...
// Loading...
# same
# rest api handler
// Remaining items
# keep this in sync
// other settings
# Previous implementation was slower ...
print("...")
 * unchanged.
--hidden
# existing logic
[...rest]
[... args]
"""
MAYBE = """
# existing logic
<!-- existing content -->
// leave the rest unchanged
// no change
# same
[rest of function]
(unchanged)
"""


@pytest.mark.parametrize("line", PLACEHOLDERS.strip("\n").split("\n"))
def test_placeholder(line: str) -> None:
    assert is_placeholder(line)


@pytest.mark.parametrize("line", TEXT_LINES.strip("\n").split("\n"))
def test_a_comment_that_trails_off_is_text(line: str) -> None:
    assert not is_placeholder(line)
    assert not holds_placeholder(line)


@pytest.mark.parametrize("line", (PLACEHOLDERS + MAYBE).strip("\n").replace("\n\n", "\n").split("\n"))
def test_what_may_be_a_placeholder(line: str) -> None:
    assert may_be_placeholder(line)


@pytest.mark.parametrize("line", ["x = 1", "// adds two numbers", "[...rest]", "'existing': 1,", "#include <a.h>"])
def test_what_is_no_placeholder_at_all(line: str) -> None:
    assert not may_be_placeholder(line)


def test_a_placeholder_behind_code_is_seen() -> None:
    assert holds_placeholder("f(); // ... existing code ...")


def test_sketch_blocks_and_elided_ends() -> None:
    assert sketch("import a\n# ...\n\n# ... more code ...\nb = 1\n# ...\n") == Sketch(
        (("import a",), ("b = 1",)), False, True, marker_indents=(("", ""), ("",))
    )


def test_a_sketch_knows_how_far_its_markers_are_indented() -> None:
    text = "class A:\n    # ...\n    x = 1\n    # ...\n# ... rest of the file ...\n"
    assert sketch(text).marker_indents == (("    ",), ("    ", ""))


def test_dots_alone_are_a_placeholder_at_column_0_and_between_braces_only() -> None:
    assert sketch("def f(self):\n    ...\n...\ng()\n").blocks == (("def f(self):", "    ..."), ("g()",))
    assert sketch("class A {\n  ...\n  b() {}\n}\n").blocks == (("class A {",), ("  b() {}", "}"))


@pytest.mark.parametrize(
    "edit",
    [
        "```python\na = 1\n# ...\n```",
        "Here is the updated code:\n\n```\na = 1\n# ...\n```\n\nIt adds a.",
        "~~~py\na = 1\n# ...\n~~~\n",
    ],
)
def test_the_outer_fence_is_taken_off(edit: str) -> None:
    assert sketch(edit).blocks == (("a = 1",),)


@pytest.mark.parametrize(
    ("edit", "lines"),
    [
        ("```sh\nx\n```\ntext\n```sh\ny\n```", ("```sh", "x", "```", "text", "```sh", "y", "```")),
        ("# Tool\n\n```sh\nnpm i\n```\n\nRun it.", ("# Tool", "", "```sh", "npm i", "```", "", "Run it.")),
        (
            'def f():\n    """\n    ```\n    x\n    ```\n    """',
            ("def f():", '    """', "    ```", "    x", "    ```", '    """'),
        ),
        ("```markdown\n# T\n```sh\nx\n```\n```", ("# T", "```sh", "x", "```")),
    ],
)
def test_fences_of_the_text_stay(edit: str, lines: tuple[str, ...]) -> None:
    assert sketch(edit).blocks == (lines,)


GARBAGE = st.lists(
    st.sampled_from(
        ["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```", "```py", "# ...", "...", "a", "", " b", "…", "}"]
    )
).map("\n".join)


@given(GARBAGE | st.text())
def test_garbage_is_parsed_or_refused(edit: str) -> None:
    try:
        parsed = parse(edit)
    except EditSyntaxError:
        return
    assert parsed.detected
