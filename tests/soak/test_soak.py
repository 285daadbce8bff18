"""A short soak passes, and each of its checks finds the fault that it is made for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.types import GenerationRequest, GenerationResult, GenerationStep, GenerationUsage
from tests.engine.tiny import tiny_engine
from tests.soak.ledger import MOST_KEPT, NOISE, Finished, Ledger, replay
from tests.soak.soak import BOUND_BYTES, Report, bound, growth, of_requests, soak
from tests.soak.traffic import OUTCOMES, TINY, Call, Setting, Traffic, setting

REQUEST = GenerationRequest((1, 2, 3), 4)
RESULT = GenerationResult((5, 6), b"fg", "length", GenerationUsage(prompt=3, completion=2))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Waking a second one takes longer than the tiny model's matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def short_soak(soaked: Setting, **changes: Any) -> Report:
    options: dict[str, Any] = {"seconds": 60.0, "seed": 1, "patience_s": 60.0, "most_calls": 600}
    return soak(soaked, **options | changes, say=lambda line: None)


def test_a_short_soak_finds_nothing_and_meets_all_that_it_is_for() -> None:
    soaked = setting(TINY)
    with soaked.engine:
        report = short_soak(soaked)
    assert report.failures == []
    assert report.requests == sum(report.outcomes.values()) == 600
    assert set(report.outcomes) == set.union(*map(set, OUTCOMES.values())) | {"queue_full"}
    assert min(report.preempted, report.evicted_pages, report.hit_rate) > 0
    assert sum(report.replayed.values()) == MOST_KEPT


def test_a_request_that_takes_too_long_is_stuck() -> None:
    soaked = setting(TINY)
    with soaked.engine:
        report = short_soak(soaked, patience_s=0.0)
    assert any(failure.startswith("stuck for") for failure in report.failures)


def test_a_model_that_answers_otherwise_alone_is_found() -> None:
    with tiny_engine() as before, tiny_engine(seed=1) as other:
        kept = [Finished(REQUEST, before.run(REQUEST))]
        found: list[str] = []
        assert replay(before, kept, found.append) == {"equal": 1}
        assert not found
        assert replay(other, kept, found.append) == {"different": 1}
        assert found[0].startswith("alone it is")


@pytest.mark.parametrize(
    ("logprob_off", "expected"), [(0.0, "equal"), (5e-5, "equal"), (5e-4, "different")], ids=["same", "rounding", "off"]
)
def test_replayed_logprobs_may_differ_by_rounding_only(logprob_off: float, expected: str) -> None:
    request = replace(REQUEST, logprobs=0)
    with tiny_engine() as engine:
        result = engine.run(request)
        moved = tuple(replace(each, logprob=each.logprob + logprob_off) for each in result.logprobs)
        assert replay(engine, [Finished(request, replace(result, logprobs=moved))], lambda _: None) == {expected: 1}


@pytest.mark.parametrize(("apart", "expected"), [(NOISE, "tipped"), (20 * NOISE, "different")])
def test_greedy_outputs_may_part_where_two_tokens_are_as_good(apart: float, expected: str) -> None:
    """The bias brings the second best token of the first place `apart` below the best."""
    with tiny_engine() as engine:
        top = engine.run(replace(REQUEST, logprobs=2)).logprobs[0].top
        (_, best), (second, runner_up) = top
        request = replace(REQUEST, logit_bias={second: best - runner_up - apart})
        result = engine.run(request)
        other = replace(result, token_ids=(second, *result.token_ids[1:]))
        assert other != result
        assert replay(engine, [Finished(request, result)], lambda _: None) == {"equal": 1}
        assert replay(engine, [Finished(request, other)], lambda _: None) == {expected: 1}


def test_sampled_outputs_may_part_where_the_draw_falls_on_a_border() -> None:
    """Found by a soak: the number of the third token lies 1.7e-8 beside the border of tokens 38 and 39."""
    prompt = (38, 29, 22, 17, 14, 13, 24, 11, 0)
    request = GenerationRequest(prompt, 3, temperature=1.3, seed=867782382, repetition_penalty=1.1)
    with tiny_engine() as engine:
        result = engine.run(request)
        for third, expected in ((77 - result.token_ids[2], "tipped"), (40, "different")):
            other = replace(result, token_ids=(*result.token_ids[:2], third))
            assert replay(engine, [Finished(request, other)], lambda _: None) == {expected: 1}


def test_an_output_that_is_only_shorter_is_different() -> None:
    with tiny_engine() as engine:
        result = engine.run(REQUEST)
        shorter = replace(result, token_ids=result.token_ids[:-1])
        assert replay(engine, [Finished(REQUEST, shorter)], lambda _: None) == {"different": 1}


def test_steps_that_are_not_the_result_are_found() -> None:
    right = [GenerationStep((5,), b"f"), GenerationStep((6,), b"g")]
    for steps, result, ok in (
        (right, RESULT, True),
        (right[:1], RESULT, False),
        ([*right, GenerationStep((), b"h")], RESULT, False),
        (right, replace(RESULT, usage=GenerationUsage(prompt=3, completion=3)), False),
        (right, replace(RESULT, usage=GenerationUsage(prompt=3, completion=2, cached=3)), False),
        (right, replace(RESULT, usage=GenerationUsage(prompt=3, completion=2, accepted=1)), False),
        (right, replace(RESULT, usage=GenerationUsage(prompt=2, completion=2)), False),
    ):
        ledger = Ledger(0)
        call = Call(REQUEST, "read", "none", seed=0)
        ledger.begin(call)
        ledger.end(call, "finished", steps, result)
        assert (ledger.failures == []) is ok, (steps, result)


@pytest.mark.parametrize("ending", OUTCOMES)
def test_an_outcome_that_nobody_provoked_is_a_failure(ending: Any) -> None:
    for outcome in (*set.union(*map(set, OUTCOMES.values())), "queue_full", "EngineFault: no memory"):
        ledger, call = Ledger(0), Call(REQUEST, ending, "none", seed=0)
        ledger.begin(call)
        ledger.end(call, outcome, [], None)
        allowed = outcome in OUTCOMES[ending] or (outcome == "queue_full" and ending != "refuse")
        assert (ledger.failures == []) is allowed


def test_kept_requests_are_a_fair_sample() -> None:
    ledger = Ledger(0)
    calls = [Call(replace(REQUEST, seed=number), "read", "none", seed=0) for number in range(2000)]
    for call in calls:
        ledger.begin(call)
        ledger.end(call, "finished", [GenerationStep((5, 6), b"fg")], RESULT)
    seeds = [each.request.seed for each in ledger.kept]
    assert len(set(seeds)) == MOST_KEPT
    assert 700 < sum(seeds) / MOST_KEPT < 1300


def test_memory_is_judged_behind_the_warm_up() -> None:
    def over(seconds: int, size: Any) -> list[tuple[float, int]]:
        return [(float(at), size(at / seconds)) for at in range(seconds + 1)]

    assert growth(over(600, lambda share: 100 if share < 0.2 else 200 if share < 0.8 else 300)) == (200, 300)
    assert growth(over(600, lambda share: 300 if share < 0.15 else 200)) == (200, 200)
    assert growth(over(599, lambda share: 200)) is None
    assert growth([]) is None
    assert bound(10**6) == BOUND_BYTES
    assert bound(10**10) == 2 * 10**8


def test_objects_of_a_request_are_seen_while_it_lives() -> None:
    with tiny_engine() as engine:
        before = of_requests()
        stream = engine.generate(REQUEST)
        assert (of_requests() - before)["Stream"] == 1
        stream.close()
        del stream
        engine.stats()  # behind it the cancellation is done
        assert of_requests() <= before


def test_traffic_repeats_with_its_seed_and_ends() -> None:
    with tiny_engine() as engine:
        soaked = Setting(engine, range(400), (b"a",), 0.01)
        first, second, other = (Traffic(soaked, seed, most=30) for seed in (1, 1, 2))
        drawn = [first.draw() for _ in range(31)]
        assert drawn == [second.draw() for _ in range(31)]
        assert drawn != [other.draw() for _ in range(31)]
        assert drawn[-1] is None
        assert None not in drawn[:-1]
        endless = Traffic(soaked, 1)
        endless.draw()
        endless.stop()
        assert endless.draw() is None
