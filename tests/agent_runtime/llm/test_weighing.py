"""How readings are weighed: what the rules and the model hold of each, and when neither is sure enough."""

from __future__ import annotations

import math

import pytest

from agent_runtime.llm.scorer import LEAST_LOGPROB, LEAST_WEIGHT, LOGPROB_WEIGHT, pick_reading, score_readings
from agent_runtime.types import ScoredReading
from editor.types import Candidate

LIKELY, UNLIKELY = (-0.01,) * 5, (-0.01, -9.0, -0.01)


def candidates(*scores: float) -> list[Candidate]:
    return [Candidate(f"text {number}", score, f"reading {number}") for number, score in enumerate(scores)]


def test_weights_are_the_rules_score_times_the_models_probability() -> None:
    readings = score_readings(candidates(0.6, 0.4), [[(-1.0, -2.0), (-0.5,)]])
    first, second = 0.6 * math.exp(LOGPROB_WEIGHT * -3.0), 0.4 * math.exp(LOGPROB_WEIGHT * -0.5)
    assert [each.score for each in readings] == pytest.approx([first / (first + second), second / (first + second)])
    assert [each.logprob for each in readings] == [-1.5, -0.5]
    assert [each.least_logprob for each in readings] == [-2.0, -0.5]
    assert [each.why for each in readings] == ["reading 0", "reading 1"]


def test_several_regions_add_up() -> None:
    apart = score_readings(candidates(0.5, 0.5), [[(-1.0,), (-2.0,)], [(), ()], [(-3.0,), (-0.1,)]])
    together = score_readings(candidates(0.5, 0.5), [[(-1.0, -3.0), (-2.0, -0.1)]])
    assert apart == together


def test_one_unlikely_token_is_not_lost_among_many_likely_ones() -> None:
    """The first drops lines at one token and copies 400 others; the mean of its tokens is the better one."""
    dropped, kept = score_readings(candidates(0.5, 0.5), [[(-6.0, *(-0.001,) * 400), (-0.02,) * 20]])
    assert kept.logprob < dropped.logprob
    assert kept.score > dropped.score


def test_the_model_can_overrule_the_rules() -> None:
    readings = score_readings(candidates(0.66, 0.34), [[UNLIKELY, LIKELY]])
    assert pick_reading(readings) == 1


def test_the_rules_can_overrule_a_model_that_is_not_sure() -> None:
    readings = score_readings(candidates(0.95, 0.05), [[(-1.5,), (-0.9,)]])
    assert pick_reading(readings) == 0


def test_two_that_are_nearly_as_good_are_both_in_doubt() -> None:
    assert pick_reading(score_readings(candidates(0.5, 0.5), [[LIKELY, LIKELY]])) is None


def test_what_the_model_would_not_write_is_in_doubt_be_it_the_only_reading() -> None:
    assert pick_reading(score_readings(candidates(1.0), [[UNLIKELY]])) is None
    assert pick_reading(score_readings(candidates(1.0), [[LIKELY]])) == 0
    assert pick_reading(score_readings(candidates(1.0), [[()]])) == 0, "nothing differs, nothing is unlikely"


def test_the_borders_are_where_they_are_said_to_be() -> None:
    assert pick_reading([ScoredReading("", LEAST_WEIGHT, -1.0, LEAST_LOGPROB)]) == 0
    assert pick_reading([ScoredReading("", LEAST_WEIGHT - 1e-6, -1.0, LEAST_LOGPROB)]) is None
    assert pick_reading([ScoredReading("", LEAST_WEIGHT, -1.0, LEAST_LOGPROB - 1e-6)]) is None


def test_hopeless_readings_do_not_underflow() -> None:
    readings = score_readings(candidates(0.5, 0.5), [[(-5000.0,), (-9000.0,)]])
    assert [each.score for each in readings] == [1.0, 0.0]
