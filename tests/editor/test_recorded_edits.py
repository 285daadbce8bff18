"""Recorded edits of real models: nothing is merged wrongly by rule, and no check fails on a right result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from benchmarks.edit.run import measure
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.types import AlreadyApplied, Merged, Unresolved
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
