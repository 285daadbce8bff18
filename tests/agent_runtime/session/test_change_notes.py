"""Notes on a file: applied to what was first sent, they give the file as it is now, after any chain of edits."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.session.change_notes import (
    LineEdit,
    apply_edits,
    diff_lines,
    find_new_edits,
    merge_edits,
    render_note,
    split_lines,
)

TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n", "\n", "```\n", "é\r\n"]), max_size=14).flatmap(
    lambda lines: st.sampled_from(["", "x"]).map(lambda last: "".join(lines) + last)
)
OLD = [f"line {number}\n" for number in range(1, 11)]


@given(TEXTS, TEXTS)
def test_edits_give_the_new_text(old: str, new: str) -> None:
    edits = diff_lines(split_lines(old), split_lines(new))
    assert "".join(apply_edits(split_lines(old), edits)) == new
    assert all(one.end < other.first for one, other in pairwise(edits))


@settings(max_examples=300)
@given(TEXTS, st.lists(TEXTS, max_size=6), st.integers(1, 3))
def test_what_is_said_turn_by_turn_gives_the_text_of_every_turn(first: str, versions: list[str], context: int) -> None:
    """A reader who puts the lines of each edit in place of those that it names has the file as it is now."""
    old = split_lines(first)
    said: tuple[LineEdit, ...] = ()
    read = {line: [text] for line, text in enumerate(old)}  # by line of the first version: what stands for it
    for version in versions:
        wanted = diff_lines(old, split_lines(version))
        news = find_new_edits(old, said, wanted, context)
        said = merge_edits(said, news)
        assert "".join(apply_edits(old, said)) == version
        assert find_new_edits(old, said, wanted, context) == ()
        assert all(one.end <= other.first for one, other in pairwise(said))
        for edit in news:
            assert edit.end > edit.first or not old
            read.update({line: [] for line in range(edit.first, edit.end)})
            read[edit.first] = list(edit.lines)
        assert "".join(line for number in sorted(read) for line in read[number]) == version


def test_a_later_edit_of_the_same_lines_replaces_the_earlier_one() -> None:
    said = find_new_edits(OLD, (), [LineEdit(2, 3, ("x\n",))], 1)
    assert said == (LineEdit(1, 4, ("line 2\n", "x\n", "line 4\n")),)
    news = find_new_edits(OLD, said, [LineEdit(2, 3, ("y\n",)), LineEdit(8, 9, ("z\n",))], 1)
    assert news[0] == LineEdit(0, 5, ("line 1\n", "line 2\n", "y\n", "line 4\n", "line 5\n"))
    assert merge_edits(said, news) == news
    assert len(news) == 2


def test_what_was_said_already_is_not_said_again() -> None:
    wanted = [LineEdit(1, 2, ("x\n",)), LineEdit(8, 9, ("z\n",))]
    said = find_new_edits(OLD, (), wanted[:1])
    assert find_new_edits(OLD, said, wanted) == (LineEdit(6, 10, ("line 7\n", "line 8\n", "z\n", "line 10\n")),)


def test_what_was_taken_back_is_said_to_read_as_at_first() -> None:
    said = find_new_edits(OLD, (), [LineEdit(4, 5, ("x\n",))], 1)
    assert find_new_edits(OLD, said, (), 1) == (LineEdit(2, 7, tuple(OLD[2:7])),)


def test_near_changes_are_one_note() -> None:
    near = [LineEdit(2, 3, ("x\n",)), LineEdit(5, 6, ("y\n",))]
    assert find_new_edits(OLD, (), near, 1) == (LineEdit(1, 7, ("line 2\n", "x\n", *OLD[3:5], "y\n", "line 7\n")),)


def test_a_note_names_the_lines_that_it_shows() -> None:
    (edit,) = find_new_edits(OLD, (), [LineEdit(4, 5, ("five\n",))])
    assert render_note("src/a.py", edit) == (
        "src/a.py was edited after it was shown. This supersedes lines 3-7 of src/a.py, which now read:\n"
        "```\nline 3\nline 4\nfive\nline 6\nline 7\n```\n"
    )
    alone = render_note("a.py", LineEdit(0, 1, ("```\n", "b")))
    assert "supersedes line 1 of a.py" in alone
    assert "````\n```\nb\n````\n" in alone
    assert "which were deleted" in render_note("a.py", LineEdit(0, 1, ()))
    assert "was empty" in render_note("a.py", LineEdit(0, 0, ("b\n",)))
