"""The order of files: what is chosen is the best of all orders, and nothing moves for less than it costs."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.session.file_order import (
    PRIOR_CHANCE,
    ChangeRates,
    FileCost,
    choose_order,
    estimate_prefill,
    find_cheapest_order,
)

NAMES = "abcde"
COSTS = st.builds(FileCost, st.integers(1, 500), st.floats(0.0, 0.95))
FILES = st.lists(COSTS, min_size=1, max_size=5).map(lambda costs: dict(zip(NAMES, costs, strict=False)))


def brute_expected(order: tuple[str, ...], files: dict[str, FileCost]) -> float:
    """Over all sets of files that change: everything from the first of them on."""
    total = 0.0
    for changed in range(1 << len(order)):
        chance, first = 1.0, len(order)
        for place in reversed(range(len(order))):
            hit = changed >> place & 1
            chance *= files[order[place]].chance if hit else 1 - files[order[place]].chance
            first = place if hit else first
        total += chance * sum(files[path].num_tokens for path in order[first:])
    return total


def cost(
    order: tuple[str, ...], old: list[str], files: dict[str, FileCost], cached: int, behind: int, horizon: float
) -> float:
    same = 0
    for one, other in zip(order, old, strict=False):
        if one != other:
            break
        same += files[one].num_tokens
    same, whole = min(same, cached), sum(file.num_tokens for file in files.values())
    return (0 if same == whole else whole - same + behind) + horizon * estimate_prefill(order, files)


@given(FILES)
def test_expected_prefill_is_the_mean_over_all_that_may_happen(files: dict[str, FileCost]) -> None:
    assert estimate_prefill(list(files), files) == pytest.approx(brute_expected(tuple(files), files))


@given(FILES)
def test_no_order_is_cheaper_than_the_cheapest(files: dict[str, FileCost]) -> None:
    least = min(estimate_prefill(order, files) for order in permutations(files))
    assert estimate_prefill(find_cheapest_order(files), files) == pytest.approx(least)


@given(FILES, st.data())
def test_the_next_order_is_the_best_of_all(files: dict[str, FileCost], data: st.DataObject) -> None:
    old = data.draw(st.permutations(list(files)).map(lambda order: order[: data.draw(st.integers(0, len(order)))]))
    cached = data.draw(st.integers(0, sum(files[path].num_tokens for path in old)))
    behind = data.draw(st.integers(0, 2000))
    horizon = data.draw(st.sampled_from([0.0, 1.0, 10.0, 1000.0]))
    chosen = choose_order(old, files, num_cached=cached, num_behind=behind, horizon=horizon)
    assert sorted(chosen) == sorted(files)
    least = min(cost(order, old, files, cached, behind, horizon) for order in permutations(files))
    assert cost(tuple(chosen), old, files, cached, behind, horizon) == pytest.approx(least)


def test_a_file_moves_when_that_pays_within_the_horizon_and_not_before() -> None:
    files = {"hot": FileCost(100, 0.5), "cold": FileCost(1000, 0.01)}
    arguments = {"num_cached": 1100, "num_behind": 4000}
    # Each turn behind `hot` costs 500 tokens more than before it; to change places costs 5,100 once.
    assert choose_order(["hot", "cold"], files, horizon=10, **arguments) == ["hot", "cold"]
    assert choose_order(["hot", "cold"], files, horizon=11, **arguments) == ["cold", "hot"]


def test_behind_a_change_the_order_is_free() -> None:
    files = {"a": FileCost(50, 0.0001), "b": FileCost(100, 0.5), "c": FileCost(1000, 0.01)}
    assert choose_order(["a", "b", "c"], files, num_cached=50, num_behind=10**6, horizon=1) == ["a", "c", "b"]


def test_new_files_stand_behind_those_that_are_cached() -> None:
    files = {"a": FileCost(1000, 0.05), "b": FileCost(1000, 0.05), "new": FileCost(10, 0.01)}
    assert choose_order(["b", "a"], files, num_cached=2000, num_behind=3000) == ["b", "a", "new"]


def test_rates_follow_what_is_seen_and_fade() -> None:
    rates = ChangeRates()
    assert rates.estimate_chance("a") == pytest.approx(PRIOR_CHANCE)
    for turn in range(20):
        rates.observe(["a", "b"], {"a"} if turn % 2 else ())
    assert rates.estimate_chance("b") < PRIOR_CHANCE < 0.2 < rates.estimate_chance("a") < 0.5
    often, seldom = rates.estimate_chance("a"), rates.estimate_chance("b")
    for _ in range(20):
        rates.observe(["b"], {"b"})
    assert rates.estimate_chance("b") > 0.4
    assert PRIOR_CHANCE < rates.estimate_chance("a") < often
    assert seldom < PRIOR_CHANCE


@given(st.lists(st.sets(st.sampled_from(NAMES)), max_size=60))
def test_chances_lie_between_nothing_and_certainty(turns: list[set[str]]) -> None:
    rates = ChangeRates()
    for changed in turns:
        rates.observe(NAMES, changed)
        assert all(0.0 < rates.estimate_chance(path) < 1.0 for path in NAMES)
