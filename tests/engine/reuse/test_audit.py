"""Audits: the divergence, the sample of audited requests, and the budgets that follow from the results."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reuse.idle_queue import AuditClass, AuditConfig, AuditPolicy, Comparison, compare
from engine.types import TokenLogprob

FAST = AuditClass("model", "fast", "one tenant's")
GOOD, BAD = Comparison(100, 100, 0.0), Comparison(100, 90, 0.0)


def token(chances: dict[int, float], token_id: int = 0) -> TokenLogprob:
    """A token and the likeliest ones with their probabilities."""
    best = sorted(((each, math.log(chance)) for each, chance in chances.items()), key=lambda each: -each[1])
    return TokenLogprob(token_id, math.log(chances[token_id]), tuple(best))


def distribution(random: Random, size: int) -> list[float]:
    weights = [random.random() ** 4 + 1e-6 for _ in range(size)]
    return [each / sum(weights) for each in weights]


def likeliest(chances: list[float], count: int) -> TokenLogprob:
    best = sorted(range(len(chances)), key=lambda each: -chances[each])[:count]
    return TokenLogprob(0, math.log(chances[0]), tuple((each, math.log(chances[each])) for each in best))


def test_a_worked_example() -> None:
    """0.5 and 0.25 against 0.25 and 0.5, with 0.25 of others on both sides."""
    found = compare([token({0: 0.5, 1: 0.25})], [token({1: 0.5, 0: 0.25})])
    assert found.num_tokens == 1
    assert found.num_agreed == 0
    assert found.kl == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5))


def test_a_near_tie_is_no_difference_of_opinion() -> None:
    """0.4 and 0.35 are 0.13 nats apart, 0.4 and 0.3 0.29; a token that the exact run does not name is far from it."""
    exact = [token({0: 0.4, 1: 0.35}), token({0: 0.4, 1: 0.3}), token({0: 0.4, 1: 0.35})]
    other = [token({1: 0.4, 0: 0.35}), token({1: 0.4, 0: 0.3}), token({2: 0.4, 0: 0.35})]
    assert compare(exact, other).num_agreed == 1


def test_tokens_that_one_side_does_not_name_count_with_the_others() -> None:
    found = compare([token({0: 0.5, 1: 0.4})], [token({0: 0.5, 2: 0.4})])
    assert found.num_agreed == 1
    assert found.kl == pytest.approx(0.0, abs=1e-12)


@given(seed=st.integers(0, 1 << 30), size=st.integers(2, 60))
def test_at_most_the_true_divergence_and_that_where_all_are_named(seed: int, size: int) -> None:
    random = Random(seed)
    one, other = distribution(random, size), distribution(random, size)
    true = sum(p * math.log(p / q) for p, q in zip(one, other, strict=True))
    assert 0.0 <= compare([likeliest(one, 20)], [likeliest(other, 20)]).kl <= true + 1e-6
    assert compare([likeliest(one, size)], [likeliest(other, size)]).kl == pytest.approx(true, abs=1e-6)
    assert compare([likeliest(one, 20)], [likeliest(one, 20)]).kl == pytest.approx(0.0, abs=1e-9)


def test_runs_of_other_tokens_are_not_compared() -> None:
    with pytest.raises(AssertionError, match="different runs"):
        compare([token({0: 0.5, 1: 0.4}, 0)], [token({0: 0.5, 1: 0.4}, 1)])


@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
def test_the_sample_has_its_share_and_is_the_same_again(share: float) -> None:
    policy, again = AuditPolicy(AuditConfig(share, seed=5)), AuditPolicy(AuditConfig(share, seed=5))
    drawn = [policy.is_drawn() for _ in range(10_000)]
    assert drawn == [again.is_drawn() for _ in range(10_000)]
    assert sum(drawn) == pytest.approx(share * 10_000, rel=0.2)
    other = AuditPolicy(AuditConfig(share, seed=6))
    assert share in (0.0, 1.0) or drawn != [other.is_drawn() for _ in range(10_000)]


def policy(**fields: float) -> AuditPolicy:
    settings = {"fewest_tokens": 150, "step_up": 0.05, "step_down": 0.02, "min_agreement": 0.99, "max_kl": 0.01}
    return AuditPolicy(AuditConfig(**(settings | fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize("far", [BAD, Comparison(100, 100, 1.01)])
def test_what_is_too_far_raises_the_budget_of_its_class_alone(far: Comparison) -> None:
    own = policy()
    own.book(FAST, far)
    assert own.get_extra_budget(FAST) == 0.0, "too few tokens to tell"
    own.book(FAST, far)
    assert own.get_extra_budget(FAST) == 0.05
    for other in (AuditClass("model", "fast"), AuditClass("model", "turbo", FAST.root)):
        assert own.get_extra_budget(other) == 0.0
    assert own.estimates()[FAST].num_tokens == 0, "what was found told of the budget before"
    assert own.estimates()[FAST].num_audits == 2


def test_what_is_near_enough_changes_nothing() -> None:
    own = policy()
    for _ in range(100):
        own.book(FAST, Comparison(100, 100, 0.99))
    found = own.estimates()[FAST]
    assert (found.raised_by, found.agreement) == (0.0, 1.0)
    assert found.kl == pytest.approx(0.0099)


def test_it_is_lowered_slowly_and_never_below_where_it_began() -> None:
    own = policy(calm_factor=5, step_down=0.02)
    for _ in range(4):
        own.book(FAST, BAD)
    assert own.get_extra_budget(FAST) == 0.1
    seen = []
    for _ in range(100):
        own.book(FAST, GOOD)
        seen.append(own.get_extra_budget(FAST))
    assert seen[:7] == [0.1] * 7, "750 tokens are asked for, older ones counting less"
    assert seen == sorted(seen, reverse=True)
    assert all(before - after <= 0.0201 for before, after in pairwise(seen))
    assert seen[-1] == 0.0


def test_what_is_only_just_near_enough_does_not_lower_it() -> None:
    own = policy()
    own.book(FAST, BAD)
    own.book(FAST, BAD)
    for _ in range(100):
        own.book(FAST, Comparison(1000, 993, 0.0))
    assert own.get_extra_budget(FAST) == 0.05


def test_a_full_prefill_is_the_end_of_it() -> None:
    own = policy()
    for _ in range(100):
        own.book(FAST, BAD)
    assert own.get_extra_budget(FAST) == 1.0


def test_older_comparisons_count_less() -> None:
    own = policy(half_life=100, min_agreement=0.5, max_kl=10.0)
    own.book(FAST, Comparison(100, 0, 0.0))
    own.book(FAST, Comparison(100, 100, 0.0))
    assert own.estimates()[FAST].agreement == pytest.approx(100 / 150)


def test_no_tenant_raises_the_budget_of_another() -> None:
    own = policy()
    for _ in range(2):
        own.book(FAST, BAD)
    assert own.get_extra_budget(FAST) > 0
    other = AuditClass("model", "fast", "another's")
    assert own.get_extra_budget(other) == 0.0
    own.book(other, BAD)
    assert other in own.estimates()


def test_of_very_many_tenants_the_last_ones_share_a_budget() -> None:
    own = policy()
    for number in range(5000):
        own.book(AuditClass("model", "fast", f"tenant {number}"), BAD)
    assert len(own.estimates()) <= 4097
    assert (
        own.get_extra_budget(AuditClass("model", "fast", "tenant 4999"))
        == own.get_extra_budget(AuditClass("model", "fast"))
        > 0
    )


@pytest.mark.parametrize(
    "fields",
    [{"share": 1.5}, {"min_agreement": -0.1}, {"max_kl": 0.0}, {"max_kl": math.nan}, {"fewest_tokens": 0}],
)
def test_numbers_that_make_no_sense_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        AuditConfig(**fields)  # type: ignore[arg-type]
