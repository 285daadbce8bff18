"""Three-way merges against git, on real commits, and by their laws."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor.diff import LineOp, line_opcodes
from editor.three_way import check_three_way, merge_three_way
from tests.models import SHARED_DATA

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "}"]), max_size=12).map("\n".join)
BASE = "one\ntwo\nthree\nfour\nfive\nsix\n"


def apply_ops(old: str, new: str, ops: Sequence[LineOp]) -> str:
    """The lines that the ops say: equal ones of `old`, changed ones of `new`."""
    before, after = old.split("\n"), new.split("\n")
    parts = [before[op.a_start : op.a_end] if op.equal else after[op.b_start : op.b_end] for op in ops]
    return "\n".join(line for part in parts for line in part)


@given(TEXTS, TEXTS)
def test_where_one_side_has_not_changed_the_other_one_is_the_merge(base: str, other: str) -> None:
    for current, edited in ((base, other), (other, base), (other, other)):
        merge = merge_three_way(base, current, edited)
        assert (merge.text, merge.conflicts) == (other, ())


@given(TEXTS, TEXTS, TEXTS)
def test_sides_that_swap_conflict_in_as_many_places_and_else_merge_to_the_same(base: str, one: str, two: str) -> None:
    merge, swapped = merge_three_way(base, one, two), merge_three_way(base, two, one)
    assert len(merge.conflicts) == len(swapped.conflicts)
    if not merge.conflicts:
        assert merge.text == swapped.text


@given(TEXTS, TEXTS, TEXTS)
def test_the_ops_lead_from_the_current_text_to_the_merged_one(base: str, current: str, edited: str) -> None:
    merge = merge_three_way(base, current, edited)
    assert apply_ops(current, merge.text, merge.ops) == merge.text
    assert all(not op.equal or op.a_end - op.a_start == op.b_end - op.b_start for op in merge.ops)


def test_changes_with_a_line_between_them_merge_and_such_that_touch_conflict() -> None:
    apart = merge_three_way(BASE, BASE.replace("two", "TWO"), BASE.replace("four", "FOUR"))
    assert (apart.text, apart.conflicts) == (BASE.replace("two", "TWO").replace("four", "FOUR"), ())
    touching = merge_three_way(BASE, BASE.replace("two", "TWO"), BASE.replace("three", "THREE"))
    assert [tuple(conflict) for conflict in touching.conflicts] == [(1, 3)]


def test_a_conflict_stands_between_markers_with_the_lines_of_the_base() -> None:
    merge = merge_three_way(BASE, BASE.replace("two", "mine\n2"), BASE.replace("two", "mine\nzwei"))
    assert merge.text == BASE.replace(
        "two", "mine\n<<<<<<< the file now\n2\n||||||| the base\ntwo\n=======\nzwei\n>>>>>>> the edit"
    )


def split_commit(before: str, after: str, choose: random.Random) -> tuple[str, str] | None:
    """A commit's changes dealt to two sides, None where it has just one."""
    old, new = before.split("\n"), after.split("\n")
    ops = line_opcodes(old, new)
    changes = [op for op in ops if not op.equal]
    if len(changes) < 2:
        return None
    first = {op for op in changes if choose.random() < 0.5} or {changes[0]}
    first = first if len(first) < len(changes) else {changes[0]}

    def take(mine: set[LineOp]) -> str:
        parts = (new[op.b_start : op.b_end] if op in mine else old[op.a_start : op.a_end] for op in ops)
        return "\n".join(line for part in parts for line in part)

    return take(first), take(set(changes) - first)


def test_a_commit_in_two_halves_merges_to_itself_or_conflicts_as_in_git(tmp_path: Path) -> None:
    path = SHARED_DATA / "commits" / "languages.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there: real commits")
    with gzip.open(path, "rt") as lines:
        pairs = [json.loads(line) for line in lines]
    choose = random.Random(1)
    merged = 0
    for pair in choose.sample(pairs, 300):
        base, whole = pair["original"], pair["expected"]
        sides = split_commit(base, whole, choose)
        if sides is None:
            continue
        merge = merge_three_way(base, *sides)
        for name, text in zip("cbe", (sides[0], base, sides[1]), strict=True):
            (tmp_path / name).write_text(text, newline="")
        command = ["git", "merge-file", "-p", *(str(tmp_path / name) for name in "cbe")]
        git = subprocess.run(command, capture_output=True, check=False)
        assert bool(git.returncode) == bool(merge.conflicts), pair["path"]
        if not merge.conflicts:
            assert merge.text == whole == git.stdout.decode(), pair["path"]
        merged += not merge.conflicts
    assert merged > 100


def test_two_definitions_of_one_name_fail_the_check() -> None:
    base = "def a():\n    return 1\n\n\ndef z():\n    return 26\n"
    current, edited = "def b():\n    return 2\n\n\n" + base, base + "\n\ndef b():\n    return 3\n"
    merge = merge_three_way(base, current, edited)
    assert merge.conflicts == ()
    check = check_three_way(merge.text, current, edited, "python")
    assert (check.ok, check.detail) == (False, "the file and the edit both add: b")
    assert check_three_way(current, current, base, "python").ok


def test_lines_that_do_not_parse_together_fail_the_check() -> None:
    base = "x = [\n    1,\n    2,\n]\n"
    current, edited = base.replace("[", "([").replace("]", "])"), base.replace("2,\n]", "2,\n    3,\n]")
    assert check_three_way(current, current, edited, "python").ok
    check = check_three_way(current.replace("])", "]"), current, edited, "python")
    assert (check.ok, check.detail.split(";")[0]) == (False, "1 syntax errors, 0 in a side")


@pytest.mark.parametrize("language", [None, "python"])
def test_a_merge_that_fits_holds(language: str | None) -> None:
    assert check_three_way("x = 1\ny = 2\n", "x = 1\n", "y = 2\n", language).ok
