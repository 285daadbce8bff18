"""What of a file an edit can touch: nothing that may be meant is left out, and nothing outside ever changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor.formats import parse
from editor.merge import merge
from editor.scope import Region, Scope, cut, join_lines, splice, split_lines
from editor.scope.parts import Change, Part
from editor.scope.regions import (
    MAX_LINES,
    MAX_REGIONS,
    SMALL_FILE,
    assign_change,
    build_whole_scope,
    check_region_kept,
    find_regions,
    find_touched_spans,
)
from editor.types import Candidate, FormatName, Unresolved

NAMES = [f"step_{number}" for number in range(60)]


def function(name: str, indent: str = "", body: str = "total") -> str:
    rows = [
        f"def {name}(value):",
        f'    """What {name} does."""',
        f"    {body} = value * {len(name)}",
        "    if value:",
        f"        {body} += count_of_{name}(value)",
        f"    return {body}",
    ]
    return "".join(f"{indent}{row}\n" for row in rows)


FUNCTIONS = "import os\nimport sys\n\n\n" + "\n\n".join(function(name) for name in NAMES)
CLASS = "import os\n\n\nclass Store:\n" + "\n".join(function(name, "    ") for name in NAMES)


def scope_of(text: str, edit: str, form: FormatName | None = None, language: str = "python") -> Scope:
    parsed = parse(edit, form or "auto")
    return find_regions(text, parsed, merge(text, parsed, language), language)


def search(before: str, after: str) -> str:
    return f"<<<<<<< SEARCH\n{before}=======\n{after}>>>>>>> REPLACE\n"


def holds(scope: Scope, text: str, result: str) -> bool:
    """Tell whether a result can be written with the scope's regions."""
    return splice(text, scope.regions, cut(text, result, scope.regions)) == result


CHANGE = search("    total = value * 7\n    if value:\n        total += count_of_step_30(value)\n", "    total = 1\n")


def test_a_change_in_a_function_gives_the_function_with_margins_and_the_rest_as_an_outline() -> None:
    scope = scope_of(FUNCTIONS, CHANGE)
    (region,) = scope.regions
    assert not scope.whole
    assert function("step_30") in region.text
    assert region.text.startswith(function("step_29")), "a margin is a whole definition, if it is a short one"
    assert region.text.endswith(function("step_31"))
    assert region.num_above > 0 < region.num_below
    assert "def step_28(value):" in scope.outline
    assert "def step_30(value):" not in scope.outline
    assert len(scope.outline.split("\n")) <= MAX_LINES
    assert region.edit is None, "it is given the edit as it was sent"


def test_the_region_does_not_grow_with_the_file() -> None:
    long = FUNCTIONS + "\n\n" + "\n\n".join(function(f"other_{number}") for number in range(1300))
    assert long.count("\n") > 10_000
    small, large = scope_of(FUNCTIONS, CHANGE), scope_of(long, CHANGE)
    assert [region.text for region in large.regions] == [region.text for region in small.regions]
    assert len(large.outline.split("\n")) <= MAX_LINES


def test_a_class_that_holds_the_region_comes_first_in_the_outline() -> None:
    only = search('        """What step_5 does."""\n', '        """Nothing."""\n')
    assert scope_of(CLASS, only).outline.startswith("class Store:\n    def step_")


@pytest.mark.parametrize("text", ["", "\n", "a = 1", "x" * 100_000 + "\n", "a = 1\n" * (SMALL_FILE - 1)])
def test_a_small_file_is_given_whole(text: str) -> None:
    scope = scope_of(text, "# ... existing code ...\n\ndef more():\n    return 2\n")
    assert scope.whole
    assert scope.outline == ""
    (region,) = scope.regions
    assert splice(text, scope.regions, [region.text]) == text


IMPORT_AND_CHANGE = """import os
import re
import sys

# ... existing code ...

def step_40(value):
    \"\"\"What step_40 does.\"\"\"
    total = re.sub("a", "b", value)
    return total

# ... existing code ...
"""


def test_an_import_above_and_a_change_far_below_are_two_regions_each_with_its_part() -> None:
    scope = scope_of(FUNCTIONS, IMPORT_AND_CHANGE)
    above, below = scope.regions
    assert above.first_line == 0
    assert above.num_above == 0
    assert "def step_40" in below.text
    assert above.edit is not None
    assert below.edit is not None
    assert [line for line in above.edit.new_lines if line] == ["import os", "import re", "import sys"]
    assert "import re" not in below.edit.new_lines
    right = FUNCTIONS.replace("import sys", "import re\nimport sys").replace(
        function("step_40"),
        'def step_40(value):\n    """What step_40 does."""\n    total = re.sub("a", "b", value)\n    return total\n',
    )
    assert holds(scope, FUNCTIONS, right)


def test_blocks_far_apart_are_regions_of_their_own_and_near_ones_share_one() -> None:
    blocks = [search(f"count_of_step_{number}(value)\n", f"{number}\n") for number in (3, 4, 50)]
    edit = "".join(block.replace("count", "        total += count").replace("\n=", "\n=") for block in blocks)
    scope = scope_of(FUNCTIONS, edit)
    near, far = scope.regions
    assert near.edit is not None
    assert far.edit is not None
    assert isinstance(near.edit.changes, tuple)
    assert isinstance(far.edit.changes, tuple)
    assert (len(near.edit.changes), len(far.edit.changes)) == (2, 1)


def test_an_ambiguous_block_is_one_region_of_all_its_places() -> None:
    twice = FUNCTIONS.replace("count_of_step_12", "same").replace("count_of_step_20", "same")
    scope = scope_of(twice, search("        total += same(value)\n", "        total += other(value)\n"))
    (region,) = scope.regions
    assert region.text.count("same(value)") == 2
    assert len(region.candidates) == 2
    assert region.edit is None


def test_an_ambiguous_block_all_over_the_file_makes_it_whole() -> None:
    assert scope_of(FUNCTIONS, search("    if value:\n", "    if value is not None:\n")).whole


def test_a_block_that_stands_nowhere_makes_it_whole() -> None:
    assert scope_of(FUNCTIONS, search("completely other text 123\nand more of it 456\n", "x = 1\n")).whole


def test_a_block_with_a_typo_is_looked_for_where_it_nearly_stands() -> None:
    text = FUNCTIONS.replace("count_of_step_33(value)", "sum(map(abs, [value, limit]))")
    edit = search("        total += sum(map(abs, [valu, limit]))\n    return totl\n", "    return 0\n")
    scope = scope_of(text, edit)
    assert not scope.whole
    assert "sum(map(abs" in scope.regions[0].text


def test_a_new_definition_is_given_the_place_that_the_best_reading_has_for_it() -> None:
    edit = f"# ... existing code ...\n\n{function('added')}\n# ... existing code ...\n"
    scope = scope_of(FUNCTIONS, edit)
    assert not scope.whole
    assert function("added") in scope.regions[0].candidates[0]


def test_text_added_at_the_end_reaches_the_end_of_the_file() -> None:
    edit = f"# ... existing code ...\n\n{function('step_59')}\n\ndef more():\n    return 2\n"
    scope = scope_of(FUNCTIONS, edit)
    assert scope.regions[-1].end_line == scope.num_lines
    assert scope.regions[-1].num_below == 0
    assert holds(scope, FUNCTIONS, FUNCTIONS + "\n\ndef more():\n    return 2\n")


def test_a_deletion_lies_in_the_region() -> None:
    edit = search(function("step_9") + "\n\n" + function("step_10"), function("step_9"))
    scope = scope_of(FUNCTIONS, edit)
    assert not scope.whole
    assert holds(scope, FUNCTIONS, FUNCTIONS.replace("\n\n" + function("step_10"), "", 1))


def test_a_snippet_without_markers_is_given_as_a_part_and_not_as_the_file() -> None:
    scope = scope_of(FUNCTIONS, function("step_15", body="result"))
    (region,) = scope.regions
    assert region.edit is not None
    assert region.edit.changes.opens_elided  # type: ignore[union-attr]
    assert region.edit.changes.closes_elided  # type: ignore[union-attr]
    assert region.num_lines < 30


def test_pieces_far_apart_in_a_snippet_without_markers_are_all_in() -> None:
    pieces = '    """What step_3 does, now."""\n    total = value * 8\n\n        total += count_of_step_50(value) + 1\n'
    scope = scope_of(FUNCTIONS, "def step_3(value):\n" + pieces + "    return total\n\n\ndef step_51(value):\n")
    right = FUNCTIONS.replace("count_of_step_50(value)", "count_of_step_50(value) + 1")
    assert scope.whole or holds(scope, FUNCTIONS, right)


def test_a_whole_file_is_a_whole_file() -> None:
    assert scope_of(FUNCTIONS, FUNCTIONS.replace("step_1", "stage_1"), "whole").whole


def test_regions_that_hold_most_of_the_file_are_the_whole_file() -> None:
    edit = "".join(search(f"        total += count_of_{name}(value)\n", "        pass\n") for name in NAMES)
    scope = scope_of(FUNCTIONS, edit)
    assert scope.whole
    assert len(scope.regions) == 1


def test_many_hunks_share_a_bounded_number_of_regions() -> None:
    long = FUNCTIONS + "\n\n" + "\n\n".join(function(f"other_{number}") for number in range(400))
    edit = "".join(
        search(f"        total += count_of_other_{at}(value)\n", "        pass\n") for at in range(5, 200, 15)
    )
    scope = scope_of(long, edit)
    assert 1 < len(scope.regions) <= MAX_REGIONS
    assert sum(len(region.edit.changes) for region in scope.regions if region.edit) == 13  # type: ignore[arg-type]


def test_line_numbers_without_old_lines_are_not_divided() -> None:
    edit = json.dumps(
        [
            {"path": "a.py", "start_line": 20, "end_line": 20, "new": "    total = 2"},
            {"path": "a.py", "start_line": 300, "end_line": 300, "new": "    total = 3"},
        ]
    )
    assert scope_of(FUNCTIONS, edit).whole


def test_a_long_definition_is_cut_to_a_window() -> None:
    body = "".join(f"    line_{number} = {number}\n" for number in range(2000))
    scope = scope_of(f"def long():\n{body}    return 0\n", search("    line_1000 = 1000\n", "    line_1000 = 0\n"))
    (region,) = scope.regions
    assert region.num_lines < 80
    assert scope.outline == "def long():"


def test_without_a_grammar_there_is_a_window_and_no_outline() -> None:
    parsed = parse(CHANGE)
    scope = find_regions(FUNCTIONS, parsed, merge(FUNCTIONS, parsed), None)
    assert not scope.whole
    assert scope.regions[0].num_lines < 70
    assert scope.outline == ""


def test_an_edit_that_is_applied_already_is_looked_at_where_it_stands() -> None:
    done = FUNCTIONS.replace(
        "    total = value * 7\n    if value:\n        total += count_of_step_30(value)\n", "    total = 1  # now\n"
    )
    edit = CHANGE.replace("total = 1\n", "total = 1  # now\n")
    scope = scope_of(done, edit)
    assert "total = 1  # now" in scope.regions[0].text
    assert not scope.whole


@st.composite
def _edits(draw: st.DrawFn) -> tuple[str, str, str]:
    """A file, an edit of some of its functions as blocks or as a snippet, and the right result."""
    text = draw(st.sampled_from([FUNCTIONS, CLASS, FUNCTIONS.removesuffix("\n")]))
    indent = "    " if text is CLASS else ""
    names = sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3)), key=NAMES.index)
    kind = draw(st.sampled_from(["changed", "deleted", "grown"]))
    result, blocks, snippet = text, "", [f"{indent}# ... existing code ..."]
    for name in names:
        line = f"{indent}        total += count_of_{name}(value)\n"
        new = {"changed": line.replace("+=", "-="), "deleted": "", "grown": line + line.replace("count", "again")}[kind]
        result = result.replace(line, new)
        blocks += search(f"{indent}    if value:\n{line}", f"{indent}    if value:\n{new}")
        body = function(name, indent).replace(line, new)
        snippet += ["", body.removesuffix("\n"), "", f"{indent}# ... existing code ..."]
    return text, draw(st.sampled_from([blocks, "\n".join(snippet) + "\n"])), result


@settings(deadline=None, max_examples=60)
@given(_edits())
def test_the_right_result_and_the_readings_can_be_written_and_nothing_else_changes(made: tuple[str, str, str]) -> None:
    text, edit, result = made
    parsed = parse(edit)
    outcome = merge(text, parsed, "python")
    scope = find_regions(text, parsed, outcome, "python")
    assert holds(scope, text, result)
    assert splice(text, scope.regions, [region.text for region in scope.regions]) == text
    assert splice(text, scope.regions, cut(text, text, scope.regions)) == text
    best = outcome.candidates[0].text if isinstance(outcome, Unresolved) else getattr(outcome, "text", text)
    assert splice(text, scope.regions, [region.candidates[0] for region in scope.regions]) == best
    marked = splice(text, scope.regions, ["<>\n"] * len(scope.regions))
    outside = [
        line for at, line in enumerate(split_lines(text)) if not any(_in(at, region) for region in scope.regions)
    ]
    assert [line for line in split_lines(marked) if line != "<>"] == outside


def _in(line: int, region: Region) -> bool:
    return region.first_line <= line < region.end_line


_LINES = st.lists(st.sampled_from(["a", "b", "", "    c"]), max_size=12)


@given(_LINES, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3), st.data())
def test_what_is_cut_out_and_put_back_is_the_same(lines: list[str], ends: list[tuple[int, int]], data: Any) -> None:
    borders = sorted({min(end, len(lines)) for pair in ends for end in pair})
    spans = [(first, end) for first, end in zip(borders[::2], borders[1::2], strict=False) if first < end]
    text = join_lines(lines)
    pieces = [Region(first, end, join_lines(lines[first:end])) for first, end in spans]
    assert splice(text, pieces, cut(text, text, pieces)) == text
    answers = [join_lines(data.draw(_LINES)) for _ in pieces]
    changed = splice(text, pieces, answers)
    at, by_hand = 0, ""
    for piece, answer in zip(pieces, answers, strict=True):  # the slow way, by characters
        by_hand += join_lines(lines[at : piece.first_line]) + answer
        at = piece.end_line
    assert changed == by_hand + join_lines(lines[at:])


def test_changes_at_the_very_border_of_a_region_are_cut_with_it() -> None:
    text = "a\nb\nc\nd\n"
    region = Region(1, 3, "b\nc\n")
    assert cut(text, "a\nx\nb\nc\ny\nd\n", [region]) == ("x\nb\nc\ny\n",)
    assert cut(text, "a\nd\n", [region]) == ("",)
    assert cut(text, "z\nb\nc\nd\n", [region]) == ("b\nc\n",)


def test_a_file_without_final_newline_stays_so_and_an_answer_without_one_is_given_it() -> None:
    assert splice("a\nb", [Region(1, 2, "b\n")], ["c\n"]) == "a\nc"
    assert splice("a\nb\nc\n", [Region(1, 2, "b\n")], ["x"]) == "a\nx\nc\n"
    assert splice("a\nb\nc\n", [Region(1, 2, "b\n")], [""]) == "a\nc\n"
    assert splice("", build_whole_scope("", parse("x = 1\n"), merge("", parse("x = 1\n"))).regions, ["x\n"]) == "x"


@pytest.mark.parametrize(
    ("answer", "ok"),
    [
        ("a\nX\nd\n", True),
        ("a\nd\n", True),
        ("X\nd\n", False),
        ("a\nX\n", False),
        ("a\n", False),
        ("", False),
        ("a\nb\nc\nd\ne\n", False),
    ],
)
def test_an_answer_must_keep_the_lines_at_the_ends_of_its_region(answer: str, ok: bool) -> None:
    region = Region(3, 7, "a\nb\nc\nd\n", num_above=1, num_below=1)
    assert check_region_kept([region], [answer]).ok is ok


def test_at_the_ends_of_the_file_nothing_has_to_be_kept() -> None:
    region = Region(0, 4, "a\nb\nc\nd\n", num_above=0, num_below=1)
    assert check_region_kept([region], ["X\nd\n"]).ok
    assert not check_region_kept([region, replace(region, first_line=9)], ["X\nd\n", "X\n"]).ok


def test_a_region_ends_where_a_long_definition_begins_or_ends() -> None:
    long = "".join(f"    line_{number} = {number}\n" for number in range(80))
    text = "".join(f"def {name}():\n{long.replace('line', name)}\n\n" for name in "abcd").removesuffix("\n\n")
    (region,) = scope_of(text, search("    b_40 = 40\n", "    b_40 = 0\n")).regions
    assert region.text == f"def b():\n{long.replace('line', 'b')}"
    assert (region.num_above, region.num_below) == (0, 0)


def test_a_block_that_stands_nowhere_beside_one_that_stands_makes_it_whole() -> None:
    lost = search("completely other text 123\nand more of it 456\n", "x = 1\n")
    assert scope_of(FUNCTIONS, CHANGE + lost).whole


def test_quoted_line_ranges_far_apart_are_not_divided_either() -> None:
    lines = split_lines(FUNCTIONS)
    edit = [
        {"path": "a.py", "start_line": at + 1, "end_line": at + 1, "old": lines[at], "new": "    total = 0"}
        for at in (lines.index("    total = value * 6"), len(lines) - 4)
    ]
    assert scope_of(FUNCTIONS, json.dumps(edit)).whole
    assert not scope_of(FUNCTIONS, json.dumps(edit[:1])).whole


def test_a_piece_of_a_snippet_that_no_reading_places_is_in_all_the_same() -> None:
    head = function("step_3", body="result").replace("result = value", "result = 2 * value")
    piece = '\n\n    """What step_41 does."""\n    total = value * 70\n'
    scope = scope_of(FUNCTIONS, head + piece)
    right = FUNCTIONS.replace(
        '"""What step_41 does."""\n    total = value * 7\n', '"""What step_41 does."""\n    total = value * 70\n'
    )
    assert holds(scope, FUNCTIONS, right)


@pytest.mark.parametrize(
    ("change", "told", "owners"),
    [
        (Change(0, (10, 11), frozenset({"a"})), True, [0]),
        (Change(0, (10, 11), frozenset()), True, [0]),
        (Change(0, (10, 11), frozenset({"b"})), False, [0]),
        (Change(0, (50, 50), frozenset({"b"})), True, [1]),
        (Change(0, (50, 50), frozenset({"c"})), False, [1, 2]),
        (Change(0, (50, 52), frozenset()), False, [0, 1, 2]),
        (Change(0, (50, 52), frozenset({"d"})), False, [0, 1, 2]),
    ],
)
def test_a_change_is_of_the_part_that_it_stands_at_and_that_brings_its_lines(
    change: Change, told: bool, owners: list[int]
) -> None:
    parts = [
        Part(frozenset("a"), ((10, 12),)),
        Part(frozenset("bc"), ((30, 32),)),
        Part(frozenset("c"), ()),
    ]
    assert assign_change(change, parts) is told
    assert [number for number, part in enumerate(parts) if part.changes] == owners


@pytest.mark.parametrize(("score", "num_given"), [(0.0001, 1), (0.2, 2)])
def test_a_reading_that_is_next_to_impossible_widens_nothing(score: float, num_given: int) -> None:
    edit = "# ... existing code ...\n    if value:\n        total += 1\n    return total\n# ... existing code ...\n"
    texts = [FUNCTIONS.replace(f"count_of_{name}(value)", "1") for name in ("step_10", "step_50")]
    found = Unresolved("open_intent", "", candidates=(Candidate(texts[0], 0.8, ""), Candidate(texts[1], score, "")))
    scope = find_regions(FUNCTIONS, parse(edit, "lazy"), found, "python")
    assert holds(scope, FUNCTIONS, texts[0])
    assert sum(holds(scope, FUNCTIONS, text) for text in texts) == num_given
    assert (sum(region.end_line - region.first_line for region in scope.regions) < 60) == (num_given == 1)


@pytest.mark.parametrize(("is_sure", "num_found"), [(True, 1), (False, 0)])
def test_without_a_reading_a_place_has_to_be_sure(is_sure: bool, num_found: int) -> None:
    part = Part(frozenset("a"), ((3, 5),), is_sure=is_sure)
    assert len(find_touched_spans(["x"] * 9, [part], [], certain=False)) == num_found
