"""Smoke: one edit of each format through parse and merge."""

from __future__ import annotations

from editor.formats import parse
from editor.merge import merge
from editor.types import Merged


def test_search_replace_block_is_merged() -> None:
    edit = "<<<<<<< SEARCH\nb = 2\n=======\nb = 3\n>>>>>>> REPLACE\n"
    assert merge("a = 1\nb = 2\n", parse(edit)) == Merged("a = 1\nb = 3\n", "exact")
