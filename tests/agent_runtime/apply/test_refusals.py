"""Refusals as they leave: candidates as small diffs, cut with a word on it."""

from __future__ import annotations

import pytest

from agent_runtime.apply.result import MAX_DIFF_LINES, MAX_READINGS, build_reason, find_refusal
from agent_runtime.types import Mode, Options
from editor.formats import parse_files
from editor.types import Candidate, Unresolved

ORIGINAL = "".join(f"line {number}\n" for number in range(100))


def test_a_candidate_is_told_by_its_difference_to_the_original() -> None:
    changed = ORIGINAL.replace("line 50\n", "new\n")
    reason = build_reason(
        Unresolved("ambiguous", "two", 2, candidates=(Candidate(changed, 0.7, "why"),)), ORIGINAL, "a"
    )
    assert reason.candidates[0].diff == "@@ -50,3 +50,3 @@\n line 49\n-line 50\n+new\n line 51"
    assert (reason.path, reason.num_candidates) == ("a", 2)


def test_long_diffs_and_lines_and_many_candidates_are_cut_and_say_so() -> None:
    long = Candidate(ORIGINAL.replace("line", "x" * 1000), 0.5, "long")
    reason = build_reason(Unresolved("ambiguous", "many", candidates=(long,) * 8), ORIGINAL, "a")
    lines = reason.candidates[0].diff.split("\n")
    assert len(lines) == MAX_DIFF_LINES + 1
    assert lines[-1] == f"({201 - MAX_DIFF_LINES} lines more)"
    assert len(reason.candidates) == MAX_READINGS
    assert reason.num_candidates == 8
    cut = build_reason(Unresolved("stale", "", candidates=(Candidate("y" * 900 + "\n", 1.0, ""),)), "x\n", "a")
    assert cut.candidates[0].diff.endswith("(701 more)")


LAZY, BLOCK = "# ...\ndef h():\n    return 3\n", "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    ("edit", "mode", "suggestion", "told"),
    [
        (LAZY, "deterministic", "Show more lines.", "Use mode 'model' or 'auto', or show more lines."),
        (LAZY, "deterministic", "", "Use mode 'model' or 'auto'."),
        (BLOCK, "deterministic", "Show more lines.", "Show more lines."),
        (BLOCK, "auto", "Show more lines.", "Show more lines."),
    ],
)
def test_another_mode_is_suggested_where_it_would_help(edit: str, mode: Mode, suggestion: str, told: str) -> None:
    (parsed,) = parse_files(edit, "auto", "a.py")
    open_edit = Unresolved("open_intent", "It is open.", suggestion=suggestion)
    reason = find_refusal(open_edit, parsed, Options(mode=mode), ORIGINAL, "a.py")
    assert reason is not None
    assert reason.suggestion == told
