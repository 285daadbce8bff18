"""Cases that rules decide, and what their answer is worth: the editor's benchmark and the pipeline's judge alike."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case
from benchmarks.edit_formats import render_blocks


def case(search: str, replace: str, original: str, expected: str, path: str = "x.txt", **more: Any) -> Case:
    """One SEARCH/REPLACE block as a case."""
    edit = render_blocks([(search, replace)])
    return Case("x", "aider", "search_replace", path, original, edit, expected, **more)


_DONE = "a\nnew line here\nb\n"
ANSWERS = [
    (case("b\n", "c\n", "a\nb\n", "a\nc\n"), "exact", False),
    (case("b\n", "c\n", "a\nb\n", "a\nd\n"), "wrong", True),
    (case("b\n", "c\n", "a\nb\n", "a\nc", inexact=True), "exact", False),
    (case("first line\n", "c\n", "first line\nfirst line\n", "c\nfirst line\n"), "first_candidate", False),
    (case("first line\n", "c\n", "first line\nfirst line\n", "first line\nc\n"), "any_candidate", False),
    (case("zzz\n", "c\n", "a\nb\n", "a\nc\n"), "refused", False),
    (case("zzz\n", "c\n", "a\nb\n", "a\nb\n", expects="refusal"), "refused", False),
    (case("b\n", "c\n", "a\nb\n", "a\nb\n", expects="refusal"), "wrong", True),
    (case("b\n", "b\n", "a\nb\n", "a\nb\n", expects="nothing_to_do"), "refused", False),
    (case("b\n", "c\n", "a\r\nb\r\n", "a\r\nc\r\n"), "exact", False),
    (case("old line here\n", "new line here\n", _DONE, _DONE), "exact", False),
    (case("old line here\n", "new line here\n", _DONE, "a\nb\n"), "wrong", True),
    (case("old line here\n", "new line here\n", _DONE, _DONE, expects="refusal"), "wrong", True),
    (case("old line here\n", "new line here\n", _DONE, _DONE, expects="nothing_to_do"), "refused", False),
]
"""(case, outcome, whether it is wrong and claimed certain)"""
