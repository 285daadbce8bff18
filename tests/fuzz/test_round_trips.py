"""apply(diff(a, b), a) == b: texts built from bytes, so that a failure shrinks; many more of them in `test-long`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cases import DEFAULT_CASES, load_cases_at
from editor.types import FormatName
from tests.fuzz.round_trips import WAYS, Failure, make_pair, run_round_trip, run_round_trips
from tests.fuzz.targets import ByteRandom


@pytest.mark.parametrize("name", WAYS)
@settings(max_examples=120)
@given(st.binary(max_size=300))
def test_a_difference_in_any_format_leads_to_the_second_text(name: FormatName, data: bytes) -> None:
    result = run_round_trip(name, *make_pair(ByteRandom(data), ()))
    assert not isinstance(result, Failure), result


FOUND: list[tuple[FormatName, str, str]] = [
    ("search_replace", "// ... existing code ...\n    return x\n", "    // ... existing code ...\n        return x\n"),
    ("search_replace", "a\nb\n# rest of the file unchanged\nc\n", "    a\n    // ... existing code ...\nc\n"),
    ("search_replace", "a\n# rest of the file unchanged\n", "b\n# rest of-the file unchanged\n"),
]


@pytest.mark.parametrize(("name", "before", "after"), FOUND)
def test_what_was_found_before_is_not_merged_wrong_again(name: FormatName, before: str, after: str) -> None:
    assert not isinstance(run_round_trip(name, before, after), Failure)


@pytest.mark.parametrize("name", [name for name in WAYS if name != "lazy"])
def test_a_plain_change_comes_back_exactly(name: FormatName) -> None:
    before = "def a():\n    return 1\n\n\ndef b():\n    return 2\n\n\ndef c():\n    return 3\n"
    after = before.replace("return 2", "return 20")
    assert run_round_trip(name, before, after) == "exact"


@pytest.mark.long
def test_a_hundred_thousand_round_trips() -> None:
    cases = load_cases_at(DEFAULT_CASES).cases if DEFAULT_CASES.exists() else ()
    counts, failures = run_round_trips(100_000, 0, cases)
    assert failures[:3] == []
    assert all(found["exact"] > 500 for found in counts.values())
