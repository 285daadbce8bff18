"""Searches without a card: a wrong variant never wins, an interrupted search resumes, halving finds the fastest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.op import Shape, Variant
from kernels.tuner.search import (
    FINAL_REPEATS,
    FIRST_REPEATS,
    MAX_PROOFS,
    NUM_FINALISTS,
    CardFailed,
    NoCorrectVariant,
    Timing,
    get_variant_key,
    group_targets,
    halve,
    list_valid_variants,
    list_variants,
    select_proof_shapes,
)
from kernels.tuner.store import Store, Versions
from tests.kernels.tuner.planted import (
    BEST,
    CARD,
    DEFAULT,
    SHAPES,
    VERSIONS,
    PlantedOp,
    PlantedTimer,
    planted_cost,
    right,
    search,
    target,
    variants,
)


class CountedCheck:
    """Right but for some variants, or for all at some shapes; raises `fault` at the variant number `at`."""

    def __init__(self, wrong: list[Variant] | None = None, fault: BaseException | None = None, at: int = 0) -> None:
        self.checked: Counter[str] = Counter()
        self._wrong, self._fault, self._at = wrong or [], fault, at

    def __call__(self, variant: Variant, shape: Shape) -> float:
        self.checked[get_variant_key(variant)] += 1
        if self._fault is not None and len(self.checked) == self._at:
            raise self._fault
        return float("nan") if variant in self._wrong else 1e-4


def test_the_best_of_the_planted_costs_wins_and_the_store_has_its_numbers(tmp_path: Path) -> None:
    timer = PlantedTimer(planted_cost, noise=0.05)
    winner = search(tmp_path, timer=timer).run()
    assert winner.best.variant == BEST
    assert winner.is_complete
    assert winner.default is not None
    assert winner.default.variant == DEFAULT
    assert winner.default.score > winner.best.score
    assert winner.best.score == pytest.approx((1e-5 * 4e-5) ** 0.5, rel=0.2)
    assert winner.outcomes == {"admitted": len(variants())}
    assert winner.shapes == tuple(SHAPES)
    assert Store(tmp_path, CARD).read_winners() == {"swiglu bfloat16 rows=64": winner}


@settings(max_examples=8)
@given(st.lists(st.sampled_from(variants()), max_size=60, unique_by=get_variant_key))
def test_what_is_not_right_never_wins_however_fast_it_is(
    tmp_path_factory: pytest.TempPathFactory, wrong: list[Variant]
) -> None:
    """Against the obvious search, which times all that are right."""
    wrong = [variant for variant in [*wrong, BEST] if variant != DEFAULT]
    fastest = min((variant for variant in variants() if variant not in wrong), key=planted_cost)
    timer = PlantedTimer(planted_cost)
    winner = search(tmp_path_factory.mktemp("store"), check=CountedCheck(wrong), timer=timer).run()
    assert planted_cost(winner.best.variant) == planted_cost(fastest)
    assert winner.outcomes["wrong"] == len({get_variant_key(variant) for variant in wrong})
    assert all(timer.num_samples[get_variant_key(variant)] == 0 for variant in wrong)


def test_what_is_wrong_at_full_size_only_does_not_win(tmp_path: Path) -> None:
    def check(variant: Variant, shape: Shape) -> float:
        return 1.0 if variant == BEST and shape == SHAPES[1] else 1e-4

    winner = search(tmp_path, check=check).run()
    assert winner.best.variant != BEST
    assert BEST not in [each.variant for each in winner.runners_up]
    assert winner.outcomes["wrong"] == 1


def test_a_shape_whose_reference_is_too_large_is_not_proved_and_that_is_said(tmp_path: Path) -> None:
    def check(variant: Variant, shape: Shape) -> float:
        if shape == SHAPES[1]:
            raise MemoryError
        return 1e-4

    said: list[str] = []
    winner = search(tmp_path, check=check, say=said.append).run()
    assert winner.best.variant == BEST
    assert any("cannot hold the reference" in line and "2048" in line for line in said)


def test_a_variant_that_could_be_proved_nowhere_is_not_timed(tmp_path: Path) -> None:
    def check(variant: Variant, shape: Shape) -> float:
        if variant == BEST:
            raise MemoryError
        return 1e-4

    winner = search(tmp_path, check=check).run()
    assert winner.best.variant != BEST
    assert winner.outcomes["the reference is too large"] == 1


def test_what_does_not_launch_is_counted(tmp_path: Path) -> None:
    timer = PlantedTimer(planted_cost, launches=lambda variant: variant["num_stages"] < 3)
    winner = search(tmp_path, timer=timer).run()
    assert winner.best.variant == BEST | {"num_stages": 2}
    assert winner.outcomes["does not launch"] == sum(variant["num_stages"] == 3 for variant in variants())


def test_an_op_without_a_right_variant_has_no_winner(tmp_path: Path) -> None:
    with pytest.raises(NoCorrectVariant, match=f"{len(variants())} wrong"):
        search(tmp_path, check=lambda variant, shape: 1.0).run()
    assert Store(tmp_path, CARD).read_winners() == {}


def test_a_wrong_default_is_no_hindrance(tmp_path: Path) -> None:
    winner = search(tmp_path, check=CountedCheck([DEFAULT])).run()
    assert winner.best.variant == BEST
    assert winner.default is None


@pytest.mark.parametrize("at", [1, 2, 40])
def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path, at: int) -> None:
    first = CountedCheck(fault=KeyboardInterrupt(), at=at)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, check=first).run()
    second, said = CountedCheck(), list[str]()
    winner = search(tmp_path, check=second, say=said.append).run()
    assert winner.best.variant == BEST
    assert winner.outcomes == {"admitted": len(variants())}
    proved = [key for key, times in second.checked.items() if times > len(SHAPES)]  # finalists are looked at once more
    assert len(proved) == len(variants()) - (at - 1)
    assert bool(said and "not proved again" in said[0]) == (at > 1)
    third = CountedCheck()
    search(tmp_path, check=third).run()
    assert len(third.checked) == len(variants()), "a search that came to its end is not gone on with"


def test_a_variant_that_failed_the_card_is_not_tried_again(tmp_path: Path) -> None:
    first = CountedCheck(fault=CardFailed("an illegal memory access"), at=7)
    with pytest.raises(CardFailed):
        search(tmp_path, check=first).run()
    (failed,) = [key for key, times in first.checked.items() if times == 1]
    second = CountedCheck()
    winner = search(tmp_path, check=second).run()
    assert failed not in second.checked
    assert winner.outcomes == {"admitted": len(variants()) - 1, "failed the card": 1}


def test_a_kernel_that_has_changed_is_proved_anew(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, check=CountedCheck(fault=KeyboardInterrupt(), at=40)).run()
    check = CountedCheck()
    search(tmp_path, check=check, versions=Versions("another kernel", "550.1", "2.13.0", "3.9.0")).run()
    assert len(check.checked) == len(variants())


def test_a_search_whose_time_is_over_says_so_and_is_gone_on_with(tmp_path: Path) -> None:
    short = search(tmp_path, budget_seconds=50).run()
    assert not short.is_complete
    assert 0 < short.outcomes["not tried"] < len(variants())
    assert short.best.score <= short.default.score if short.default else False
    check = CountedCheck()
    whole = search(tmp_path, check=check).run()
    assert whole.is_complete
    assert whole.best.variant == BEST
    assert search(tmp_path, budget_seconds=50).run() == whole, "a short search does not replace a whole one's winner"
    assert Store(tmp_path, CARD).read_winners()[whole.key] == whole


def test_long_searches_tell_how_far_they_are(tmp_path: Path) -> None:
    said: list[str] = []
    search(tmp_path, say=said.append).run()
    assert f"of {len(variants())} tried" in said[0]
    assert said[-1] == f"{target().key}: timing {len(variants())} variants"


def test_the_space_is_what_is_declared_less_what_is_not_valid() -> None:
    op = PlantedOp()
    found = variants()
    assert len(list_variants(op.space)) == 75
    assert len(found) == 72
    assert all(op.is_valid(variant, shape) for variant in found for shape in SHAPES)
    assert [variant for variant in found if variant == DEFAULT] == [DEFAULT]


def test_a_default_that_is_not_declared_is_tried_as_well() -> None:
    op = PlantedOp(space={"block": (16,), "num_warps": (4,), "num_stages": (1,)})
    assert list_valid_variants(target(op)) == [{"block": 16, "num_warps": 4, "num_stages": 1}, DEFAULT]


def test_a_variant_that_needs_more_than_the_card_has_is_not_tried() -> None:
    class Sized(PlantedOp):
        def count_shared_bytes(self, variant: Variant, shape: Shape, dtype: object) -> int:
            return variant["block"] * variant["num_stages"] * shape["size"]

    found = list_valid_variants(target(Sized()), shared_bytes=2048 * 256)
    assert 0 < len(found) < len(variants())
    assert found == [each for each in variants() if each["block"] * each["num_stages"] <= 256]


def test_shapes_are_searched_by_class() -> None:
    op = PlantedOp()
    shapes: list[Shape] = [{"rows": 1, "size": 4}, {"rows": 64, "size": 4}, {"rows": 1, "size": 8}]
    found = group_targets(op, target().dtype, shapes)
    assert [each.shapes for each in found] == [(shapes[0], shapes[2]), (shapes[1],)]


def test_proofs_are_of_the_class_first_and_filled_up_where_small_shapes_are_few() -> None:
    sizes = [*range(1, 20)]
    random = Random(0)
    random.shuffle(sizes)
    many = PlantedOp(parity_shapes=[{"rows": size % 2 * 64, "size": size} for size in sizes])
    assert {shape["rows"] for shape in select_proof_shapes(target(many), BEST)} == {64}
    assert len(select_proof_shapes(target(many), BEST)) == MAX_PROOFS
    few = PlantedOp(parity_shapes=[{"rows": 1, "size": 1}])
    assert select_proof_shapes(target(few), BEST) == [{"rows": 1, "size": 1}, *SHAPES]


def test_checks_are_asked_of_the_right_thing(tmp_path: Path) -> None:
    """Every variant at every proof, and the finalists at every shape."""
    asked: set[tuple[str, str]] = set()

    def check(variant: Variant, shape: Shape) -> float:
        asked.add((get_variant_key(variant), get_variant_key(shape)))
        return right(variant, shape)

    winner = search(tmp_path, check=check).run()
    assert {
        (get_variant_key(variant), get_variant_key(shape))
        for variant in variants()
        for shape in PlantedOp().parity_shapes
        if PlantedOp().is_valid(variant, shape)
    } <= asked
    for timed in (winner.best, *winner.runners_up):
        assert {(get_variant_key(timed.variant), get_variant_key(shape)) for shape in SHAPES} <= asked
    assert winner.versions == VERSIONS


def prepared(timer: PlantedTimer) -> list[Variant]:
    found = variants()
    for variant in found:
        timer.prepare(variant)
    return found


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.05]), st.sampled_from([0.0, 1e-3]))
def test_the_best_of_a_planted_cost_is_found_under_noise_and_drift(seed: int, noise: float, drift: float) -> None:
    """The drift doubles all times within a thousand samples."""
    timer = PlantedTimer(planted_cost, noise=noise, drift=drift, seed=seed)
    found = halve(prepared(timer), timer.sample, Random(seed))
    assert found[0].variant == BEST
    assert [each.score for each in found] == sorted(each.score for each in found)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(0, 2**32))
def test_without_noise_it_is_the_fastest_of_all(costs: list[int], seed: int) -> None:
    candidates = [{"number": number} for number in range(len(costs))]
    found = halve(candidates, lambda variant: (costs[variant["number"]],), Random(seed))
    assert found[0].seconds == (min(costs),)


def test_most_samples_go_to_the_finalists() -> None:
    timer = PlantedTimer(planted_cost, noise=0.05)
    candidates = prepared(timer)
    found = halve(candidates, timer.sample, Random(1))
    assert len(found) == NUM_FINALISTS
    assert all(each.num_samples >= FINAL_REPEATS for each in found)
    assert sorted(timer.num_samples.values())[0] == FIRST_REPEATS
    assert timer.num_samples.total() < len(candidates) * FINAL_REPEATS / 3


def test_a_round_times_each_once_in_an_order_of_its_own() -> None:
    timed: list[int] = []

    def sample(variant: Variant) -> tuple[float, ...]:
        timed.append(variant["number"])
        return (1.0 + variant["number"],)

    halve([{"number": number} for number in range(5)], sample, Random(1))
    rounds = [tuple(timed[start : start + 5]) for start in range(0, len(timed), 5)]
    assert len(rounds) == FINAL_REPEATS
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in rounds)
    assert len(set(rounds)) > FINAL_REPEATS / 2, "of 120 orders"


def test_the_baseline_comes_to_the_end_however_slow_it_is() -> None:
    def cost(variant: Variant) -> tuple[float, ...]:
        return (1.0,) if variant == DEFAULT else planted_cost(variant)[:1]

    timer = PlantedTimer(cost)
    found = halve(prepared(timer), timer.sample, Random(1), baseline=DEFAULT)
    assert found[0].variant == BEST
    assert found[-1] == Timing(DEFAULT, (1.0,), found[0].num_samples)


def test_what_is_dropped_is_said_once_and_not_timed_again() -> None:
    timer = PlantedTimer(planted_cost)
    candidates = prepared(timer)
    found = halve(candidates, timer.sample, Random(1), on_drop=timer.release)
    assert len(timer.prepared) == len(found)


@pytest.mark.parametrize("num_rounds", [1, 2, 5, 12])
def test_when_the_time_is_over_all_that_are_left_were_timed_alike(num_rounds: int) -> None:
    rounds = iter(range(1000))
    timer = PlantedTimer(planted_cost, noise=0.05)
    found = halve(prepared(timer), timer.sample, Random(1), is_expired=lambda: next(rounds) >= num_rounds)
    assert len({each.num_samples for each in found}) == 1
    assert found[0].num_samples <= num_rounds + 1
    assert found[0].variant == BEST


@given(st.lists(st.tuples(st.floats(1e-6, 1e-3), st.floats(1e-6, 1e-3)), min_size=9, max_size=9))
def test_times_are_medians_by_shape(drawn: list[tuple[float, float]]) -> None:
    samples = iter(drawn * 100)
    rounds = iter(range(1000))
    (found,) = halve([{"number": 0}], lambda variant: next(samples), Random(1), is_expired=lambda: next(rounds) >= 8)
    assert found.seconds == (median(first for first, _ in drawn), median(second for _, second in drawn))


def test_a_tenth_off_a_short_shape_counts_as_a_tenth_off_a_long_one() -> None:
    assert Timing({}, (0.9e-6, 1e-3), 1).score == pytest.approx(Timing({}, (1e-6, 0.9e-3), 1).score)


def test_nothing_to_time_is_no_winner() -> None:
    assert halve([], lambda variant: (1.0,), Random(1)) == []
