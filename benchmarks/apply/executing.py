"""Whether a merged text passes its case's own tests, counted apart from whether it is the expected one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Literal

from benchmarks.apply.sandbox import Verdict, sandbox
from benchmarks.cases import CODE, AnyCase, Case

Execution = Literal["", "passed", "failed", "timeout", "unavailable", "invalid"]
"""What came of a case's tests. "": there are none, or nothing was merged; `invalid`: they fail on the expected result
itself; `unavailable`: a program that they need is not on this machine."""


def has_tests(case: AnyCase) -> bool:
    """Tell whether a case says how its result is tested."""
    return bool(case.test if isinstance(case, Case) else case.test_command)


def execute(case: AnyCase, merged: str | Mapping[str, str] | None) -> tuple[Execution, str]:
    """Run the case's tests on the expected result, and on what was merged: a text, a folder's files, or nothing.

    Return what came of it, and the end of what was printed.
    """
    expected = run(case, case.expected)
    if expected.outcome != "passed":
        return "unavailable" if expected.outcome == "unavailable" else "invalid", expected.output
    if merged is None:
        return "", ""
    found = run(case, merged)
    return found.outcome, found.output


def run(case: AnyCase, result: str | Mapping[str, str]) -> Verdict:
    """Run a case's tests on one result."""
    if not isinstance(case, Case):
        assert not isinstance(result, str)
        return sandbox().run(result, case.test_command)
    # Only the last line of the tests knows the word: code that ends the program early has not passed.
    assert isinstance(result, str)
    word = secrets.token_hex(8)
    program = f"{case.test.replace(CODE, result)}\nprint({word!r})\n"
    found = sandbox().run({"program.py": program}, ["python", "program.py"])
    if found.outcome == "passed" and not found.output.rstrip().endswith(word):
        return Verdict("failed", found.output)
    return found
