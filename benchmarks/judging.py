"""What an answer to a case is worth: the exclusive outcomes of interfaces.md, and when two texts count as the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from benchmarks.cases import Case

Outcome = Literal["exact", "first_candidate", "any_candidate", "refused", "wrong"]
OUTCOMES: tuple[Outcome, ...] = ("exact", "first_candidate", "any_candidate", "refused", "wrong")


def judge(case: Case, merged: str | None, *, claims_done: bool, candidates: Sequence[str] = ()) -> Outcome:
    """Say what an answer is worth: a merged text, the claim that the edit is done already, or candidates, or nothing.

    A merge that a check rejects is a refusal: it is given as nothing.
    """
    if case.expects != "text":
        return "wrong" if merged is not None or (claims_done and case.expects == "refusal") else "refused"
    if merged is None and not claims_done:
        found = [same(text, case.expected, inexact=case.inexact) for text in candidates]
        return "first_candidate" if found[:1] == [True] else "any_candidate" if any(found) else "refused"
    text = case.original if merged is None else merged
    return "exact" if same(text, case.expected, inexact=case.inexact) else "wrong"


def same(text: str, expected: str, *, inexact: bool) -> bool:
    """Tell whether two texts are equal; inexact data counts modulo spaces at line ends and blank lines at the end."""
    return text == expected or (inexact and _plain(text) == _plain(expected))


def same_but_blank_lines(text: str, expected: str) -> bool:
    """Tell whether two texts have the same lines, blank ones and spaces at line ends aside."""
    return _shown(text) == _shown(expected)


def _shown(text: str) -> list[str]:
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def _plain(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
