"""The comparison of tools: what counts as right, and the tools that are here."""

from __future__ import annotations

import pytest

from benchmarks.cases import Case
from benchmarks.tools import judge, merge_by_rule, merge_with_git

DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 2\n b = 1\n"


def make_case(original: str, edit: str = DIFF) -> Case:
    return Case("x", "explicit", "udiff", "a.py", original, edit, "a = 2\nb = 1\n")


@pytest.mark.parametrize(
    ("merged", "right", "outcome"),
    [
        (None, ("a\n",), "refused"),
        ("a\n", ("a\n",), "right"),
        ("a\r\n", ("b\n", "a\n"), "right"),
        ("c\n", ("a\n",), "wrong"),
        ("old\n", ("a\n",), "refused"),
        ("old\n", (), "refused"),
        ("c\n", (), "wrong"),
    ],
)
def test_a_text_is_right_refused_or_wrong(merged: str | None, right: tuple[str, ...], outcome: str) -> None:
    assert judge(merged, right, "old\n") == outcome


@pytest.mark.parametrize("tool", [merge_by_rule, merge_with_git])
def test_a_diff_is_applied_and_one_that_does_not_fit_is_refused(tool: object) -> None:
    assert callable(tool)
    assert list(tool([make_case("a = 1\nb = 1\n"), make_case("x = 1\n")])) == ["a = 2\nb = 1\n", None]
