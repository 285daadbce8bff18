"""Recorded edits of real models, and readings of lazy snippets.

No recorded edit is merged wrongly by rule, and no check fails on a right result. The reading that a person would make
comes first, and a file's own bytes are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.edit.run import measure
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.reader.reader import MAX_CANDIDATES, read_snippet
from editor.types import AlreadyApplied, Merged, ParsedEdit, Sketch, Unresolved
from editor.verify import verify
from tests.editor.recorded import (
    Recorded,
    aider_cases,
    aider_refused_cases,
    continue_cases,
    morph_cases,
    replacement_cases,
    rows,
    search_replace,
    session_cases,
)
from tests.editor.recorded import cases as recorded

Cases = Callable[[], Iterator[Recorded]]


def _modulo_blanks(text: str) -> str:
    """The data's PROVENANCE: final newlines and spaces on blank lines are not exact."""
    return "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n"))


@pytest.mark.parametrize(
    ("cases", "num_merged"),
    [(continue_cases, 4), (morph_cases, 5), (aider_cases, 120), (session_cases, 116)],
    ids=["continue", "morph", "aider", "sessions"],
)
def test_merged_by_rule_is_always_the_expected_text(cases: Cases, num_merged: int) -> None:
    outcomes: Counter[str] = Counter()
    for case in cases():
        outcome = merge(case.original, parse(case.edit))
        outcomes[type(outcome).__name__] += 1
        if isinstance(outcome, Merged):
            assert case.expected is not None
            assert _modulo_blanks(outcome.text) == _modulo_blanks(case.expected), case.name
    assert outcomes["Merged"] >= num_merged
    assert not outcomes["AlreadyApplied"]


@pytest.mark.parametrize("cases", [continue_cases, morph_cases, aider_cases, session_cases])
def test_no_check_fails_on_a_right_result(cases: Cases) -> None:
    for case in cases():
        assert case.expected is not None
        checks = verify(case.original, case.expected, parse(case.edit), find_language(case.path))
        # Some expected texts have other spaces in blank lines than their files (PROVENANCE).
        failed = [check for check in checks if not check.ok and {line.kind for line in check.lines} != {"blank_lines"}]
        assert failed == [], case.name


@pytest.mark.parametrize("cases", [continue_cases, morph_cases])
def test_an_edit_is_not_applied_twice(cases: Cases) -> None:
    for case in cases():
        edit = parse(case.edit)
        outcome = merge(case.original, edit)
        if isinstance(outcome, Merged):
            again = merge(outcome.text, edit)
            assert not isinstance(again, Merged) or again.text == outcome.text, case.name


@pytest.mark.parametrize(
    ("cases", "num_done"),
    [(aider_cases, 118), (session_cases, 109), (replacement_cases, 109)],
    ids=["aider", "blocks", "calls"],
)
def test_an_explicit_edit_sent_twice_is_done_or_refused(cases: Cases, num_done: int) -> None:
    outcomes: Counter[str] = Counter()
    for case in cases():
        edit = parse(case.edit)
        outcome = merge(case.original, edit, find_language(case.path))
        if isinstance(outcome, Merged):
            again = merge(outcome.text, edit, find_language(case.path))
            outcomes[type(again).__name__] += 1
            assert not isinstance(again, Unresolved) or again.suggestion, case.name
    assert not outcomes["Merged"]
    assert outcomes["AlreadyApplied"] >= num_done


def test_blocks_that_aider_refused_are_refused() -> None:
    for case in aider_refused_cases():
        outcome = merge(case.original, parse(case.edit))
        assert not isinstance(outcome, Merged | AlreadyApplied), case.name
        assert outcome.code == "not_found"
        assert outcome.nearest, case.name


def test_an_edit_that_changes_nothing_is_told() -> None:
    row = rows("agent_sessions/failed_edits.jsonl")[-1]
    outcome = merge(row["original"], parse(search_replace(row["old_text"], row["new_text"])))
    assert isinstance(outcome, AlreadyApplied)


@pytest.mark.parametrize(
    ("folder", "goal"),
    [("aider_chat_history", 120), ("agent_sessions", 117), ("codex_apply_patch", 15), ("continue_lazy_edit", 16)],
)
def test_the_goals_of_the_benchmark_hold(folder: str, goal: int) -> None:
    """Exact, or for lazy snippets the first candidate; nothing wrong is certain, and what must be refused is."""
    found = Counter[str]()
    for case in recorded(folder):
        row = measure(case, repeats=0)
        assert row.outcome != "wrong", row
        assert row.expects == "text" or row.outcome == "refused", row
        found[row.outcome] += 1
    first = found["first_candidate"] if folder == "continue_lazy_edit" else 0
    assert found["exact"] + first >= goal


CASES = sorted((Path(__file__).parent / "lazy_cases").glob("*.txt"))


def readings(original: str, snippet: str, path: str = "file.py") -> tuple[str, ...]:
    """Return the candidates' texts, the certain merge alone if there is one."""
    outcome = merge(original, parse(snippet, "lazy"), find_language(path))
    assert not isinstance(outcome, AlreadyApplied), outcome
    return (outcome.text,) if isinstance(outcome, Merged) else tuple(one.text for one in outcome.candidates)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_the_reading_that_is_meant_comes_first(case: Path) -> None:
    """One file a case: the original, the snippet and what is meant, parted by lines of tildes."""
    original, snippet, meant = case.read_text("utf-8").split("~~~~\n")
    assert readings(original, snippet, case.stem)[0] == meant


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_without_a_grammar_nothing_wrong_is_certain(case: Path) -> None:
    original, snippet, meant = case.read_text("utf-8").split("~~~~\n")
    outcome = merge(original, parse(snippet, "lazy"))
    assert not isinstance(outcome, Merged) or outcome.text == meant


def test_scores_fall_and_sum_to_one() -> None:
    original = "def a():\n    return 1\n\n\ndef b():\n    return 2\n\n\ndef c():\n    return 3\n"
    snippet = "def a():\n    return 1\n\n\ndef c():\n    return 4\n"
    outcome = merge(original, parse(snippet, "lazy"), "python")
    assert isinstance(outcome, Unresolved)
    scores = [one.score for one in outcome.candidates]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1.0, abs=0.01)
    assert len({one.text for one in outcome.candidates}) == len(scores) == outcome.num_candidates


def test_a_snippet_without_markers_is_read_as_a_part_and_not_as_all_that_is_to_stay() -> None:
    original = "def a():\n    return 1\n\n\ndef b():\n    return 2\n\n\ndef c():\n    return 3\n"
    snippet = "def b():\n    return 20\n"
    part = original.replace("return 2", "return 20")
    assert readings(original, snippet)[0] == part
    assert snippet not in readings(original, snippet)


def test_definitions_left_out_between_shown_ones_may_stay_or_go() -> None:
    original = (
        "class A {\n  a() {\n    return 1;\n  }\n\n  b() {\n    return 2;\n  }\n\n  c() {\n    return 3;\n  }\n}\n"
    )
    snippet = "class A {\n  // ...\n  a() {\n    return 10;\n  }\n\n  c() {\n    return 30;\n  }\n}\n"
    changed = original.replace("return 1;", "return 10;").replace("return 3;", "return 30;")
    without_b = changed.replace("  b() {\n    return 2;\n  }\n\n", "")
    assert set(readings(original, snippet, "a.js")[:2]) == {changed, without_b}


def test_the_rest_of_a_class_stays_where_no_closing_line_shows_its_end() -> None:
    original = "class A:\n    def a(self):\n        return 1\n\n    def b(self):\n        return 2\n\n\nx = 1\n"
    snippet = "class A:\n    # ...\n    def a(self):\n        return 10\n"
    assert readings(original, snippet)[0] == original.replace("return 1", "return 10")


def test_comments_above_a_definition_stay_if_the_snippet_shows_none() -> None:
    original = "# Adds.\ndef add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"
    snippet = "# ... existing code ...\ndef add(a, b):\n    total = a + b\n    return total\n# ... existing code ...\n"
    meant = original.replace("    return a - b\n\n\ndef sub", "    total = a + b\n    return total\n\n\ndef sub")
    assert readings(original, snippet)[0] == meant


def test_a_block_out_of_a_loop_is_placed_by_its_lines() -> None:
    original = "".join(
        f"def f{n}(items):\n    for item in items:\n        use{n}(item)\n        log(item)\n\n\n" for n in range(9)
    )
    snippet = "# ...\n        use4(item)\n        check(item)\n        log(item)\n# ...\n"
    assert readings(original, snippet)[0] == original.replace("use4(item)\n", "use4(item)\n        check(item)\n")


def test_what_a_snippet_does_not_touch_keeps_its_bytes() -> None:
    original = (
        "a = 1  \n\t\nclass A:\n\tdef f(self):\n\t\treturn 1\t\n\n\n\n\tdef g(self):\n\t\treturn 2\n\x0c\nlast = 3 \n"
    )
    snippet = "class A:\n    # ...\n    def g(self):\n        return 20\n    # ...\n"
    first = readings(original, snippet)[0]
    assert first == original.replace("return 2\n", "return 20\n")


LINES = st.lists(
    st.sampled_from(
        [
            "class A:",
            "    def f(self):",
            "        return 1",
            "    x = 1",
            "",
            "}",
            "f() {",
            "  g();",
            "# ...",
            "import a",
        ]
    ),
    max_size=14,
)


@given(LINES, LINES)
def test_readings_never_crash_and_never_write_a_marker(file: list[str], snippet: list[str]) -> None:
    blocks = tuple((line,) for line in snippet if line.strip() and line != "# ...")
    if not blocks:
        return
    text = "".join(line + "\n" for line in file if line != "# ...")
    for sketch in (Sketch(blocks, True, True), Sketch(blocks, False, False), Sketch((sum(blocks, ()),), False, True)):
        found = read_snippet(text, ParsedEdit("lazy", sketch, ""), "python").candidates
        assert len(found) <= MAX_CANDIDATES
        for one in found:
            assert 0 < one.score <= 1
            assert "..." not in one.text
