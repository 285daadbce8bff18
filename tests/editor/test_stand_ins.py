"""New comments that may stand for lines which an explicit edit takes away, and those that just are comments."""

from __future__ import annotations

import json

import pytest

from editor.formats import parse
from editor.merge import merge
from editor.types import FormatName, Merged, Unresolved

BODY = ["    a()", "    b()", "    c()"]
ORIGINAL = "\n".join(["def f():", *BODY, "    return 1", ""])
STAND_INS = (
    "# existing logic",
    "# (same as before)",
    "# unchanged",
    "# as above",
    "# ... and so on",
    "# keep the rest as is",
    "# previous code",
)


def hunk(*added: str) -> str:
    return "\n".join(
        [" def f():", *(f"-{line}" for line in BODY), *(f"+{line}" for line in added), "     return 1", ""]
    )


def edits(*added: str) -> dict[FormatName, str]:
    """Return one change, the body of `f` for other lines, in every explicit format."""
    old, new = "\n".join(BODY), "\n".join(added)
    return {
        "udiff": f"@@ -1,5 +1,{2 + len(added)} @@\n{hunk(*added)}",
        "v4a": f"*** Begin Patch\n*** Update File: x.py\n@@\n{hunk(*added)}*** End Patch\n",
        "search_replace": f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n",
        "replace": json.dumps({"old_string": old, "new_string": new}),
        "lines": json.dumps({"start_line": 2, "end_line": 4, "old": old, "new": new}),
        "whole": "\n".join(["def f():", *added, "    return 1", ""]),
    }


@pytest.mark.parametrize("format_name", edits(""))
@pytest.mark.parametrize("comment", STAND_INS)
def test_a_comment_in_place_of_lines_is_refused(format_name: FormatName, comment: str) -> None:
    outcome = merge(ORIGINAL, parse(edits("    " + comment, "    c(1)")[format_name], format_name), "python")
    assert isinstance(outcome, Unresolved), outcome
    assert outcome.code == "open_intent"
    assert comment in outcome.reason
    assert "Write out all lines" in outcome.suggestion or "lazy" in outcome.suggestion


@pytest.mark.parametrize("format_name", edits(""))
@pytest.mark.parametrize(
    "added",
    [
        (*BODY, "    # existing callers rely on this: they pass no arguments, and want the number one"),
        ("    # existing logic", *BODY),
        (
            "    # call the others in the existing order that the tests of the module rely on",
            "    a(1)",
            "    b(1)",
            "    c(1)",
        ),
        ("    # Calls a, b, and c.", "    # It does the same as before.", "    a(1)"),
        ("    # call once", "    a(1)"),
        ("    # the code of a", "    a(1)", "    b(1)", "    c(1)"),
    ],
)
def test_a_comment_beside_lines_that_stay_is_a_comment(format_name: FormatName, added: tuple[str, ...]) -> None:
    outcome = merge(ORIGINAL, parse(edits(*added)[format_name], format_name), "python")
    assert isinstance(outcome, Merged), outcome
    assert outcome.text == "\n".join(["def f():", *added, "    return 1", ""])


def test_a_whole_file_in_which_a_comment_stands_for_functions_is_refused() -> None:
    functions = [f"def f{at}():\n    return {at}\n" for at in range(6)]
    sent = "\n\n".join([functions[0], "# the others as above\n", functions[5]])
    outcome = merge("\n\n".join(functions), parse(sent, "whole"), "python")
    assert isinstance(outcome, Unresolved)
    assert "# the others as above" in outcome.reason


def test_a_comment_that_the_file_has_already_is_no_stand_in() -> None:
    edit = parse(json.dumps({"old_string": "a()\nb()", "new_string": "# existing logic\na(b)"}))
    assert isinstance(merge("# existing logic\nx()\na()\nb()\n", edit), Merged)
