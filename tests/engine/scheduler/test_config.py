"""Limits that make no sense are refused with a word on what to do."""

from __future__ import annotations

from typing import Any

import pytest

from engine.scheduler import SchedulerConfig


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"max_batched_tokens": 0}, "max_batched_tokens is 0; it must be at least 1"),
        ({"prefill_beside_decodes": 0}, "prefill_beside_decodes is 0"),
        ({"prefill_in_idle_time": 0}, "prefill_in_idle_time is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"least_shared": 0}, "least_shared is 0"),
        ({"max_drafted": -1}, "max_drafted is -1"),
        ({"max_overtaken": -1}, "max_overtaken is -1"),
        ({"max_num_seqs": 9, "max_batched_tokens": 8}, "raise the second or lower the first"),
        ({"aging_s": 0.0}, "aging_s is 0.0"),
        ({"aging_s": float("nan")}, "aging_s is nan"),
        ({"aging_s": float("inf")}, "aging_s is inf; .* None for no aging"),
    ],
)
def test_refusals(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SchedulerConfig(**fields)


def test_what_is_just_allowed() -> None:
    assert SchedulerConfig(1, 1, 1, 1, 0, None).max_num_seqs == 1
    assert SchedulerConfig(max_num_seqs=8, max_batched_tokens=8, aging_s=1e9).aging_s == 1e9
