"""`python -m benchmarks.train_reader`: planted weights are found, confidence rises, bars hold what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cases import Case
from benchmarks.train_reader.__main__ import READER, WEIGHTS, answer_held_out, compute_figures
from benchmarks.train_reader.order import (
    Answer,
    Floats,
    Labelled,
    bin_answers,
    calibrate,
    compute_confidence,
    find_bar,
    fit_order,
    hash_folders,
    label_cases,
    minimise,
)
from editor.reader.features import FEATURES
from editor.types import ParsedEdit

_PLANTED = np.array([2.0, -1.0, 0.0])


@dataclass(frozen=True)
class _Toy:
    text: str
    features: Sequence[float]


def _case(number: int, features: Floats, right: int | None) -> Labelled:
    labels = np.arange(len(features)) == (-1 if right is None else right)
    return Labelled(
        str(number), "a/b", f"{number}.py", "minimal", False, features, labels, labels, np.arange(len(features)), 1.0
    )


def _planted(num_cases: int, seed: int) -> list[Labelled]:
    """Cases of four readings, the right one drawn by planted weights; none of them has weight 1."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(num_cases):
        features = rng.normal(size=(4, 3))
        powers = np.exp(np.append(features @ _PLANTED, 0.0))
        right = int(rng.choice(5, p=powers / powers.sum()))
        found.append(_case(number, features, None if right == 4 else right))
    return found


def test_a_fit_finds_planted_weights_and_the_score_of_none() -> None:
    order = fit_order(_planted(4000, 0), l2=1e-4)
    assert order.weights == pytest.approx(_PLANTED, abs=0.15)
    assert order.none == pytest.approx(0.0, abs=0.15)


def test_probabilities_and_that_of_none_add_up() -> None:
    order = fit_order(_planted(200, 1), l2=1e-2)
    features = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = order.probabilities(features)
    powers = np.exp(np.append(order.scores(features), order.none))
    assert found == pytest.approx(powers[:2] / powers.sum())
    assert found.sum() < 1


def test_a_reading_with_other_blank_lines_is_right_where_no_exact_one_is_among_them() -> None:
    features = np.eye(2)
    nearly = Labelled(
        "0", "a/b", "x.py", "", False, features, np.array([False, False]), np.array([True, False]), np.arange(2), 1.0
    )
    order = fit_order([nearly] * 20, l2=1e-3)
    assert order.probabilities(features)[0] > 0.9


def test_made_cases_count_as_much_as_they_are_said_to() -> None:
    real = [_case(at, np.eye(2), 0) for at in range(10)]
    made = [
        Labelled("m", "a/b", "x.py", "", True, np.eye(2), *[np.array([False, True])] * 2, np.arange(2), 1.0)
        for _ in range(10)
    ]
    assert fit_order([*real, *made], 1e-3, made_weight=0.2).probabilities(np.eye(2))[0] > 0.7


def test_the_search_finds_the_bottom_of_a_long_valley() -> None:
    def loss(at: Floats) -> tuple[float, Floats]:
        x, y = at
        slope = np.array([-400 * x * (y - x * x) - 2 * (1 - x), 200 * (y - x * x)])
        return float(100 * (y - x * x) ** 2 + (1 - x) ** 2), slope

    assert minimise(loss, np.array([-1.2, 1.0]), 500) == pytest.approx([1.0, 1.0], abs=1e-2)


def test_confidence_rises_with_the_probability_and_is_the_share_that_is_right() -> None:
    rng = np.random.default_rng(0)
    found = [Answer(p, right, right) for p in rng.random(4000) for right in [bool(rng.random() < p * p)]]
    line = calibrate(found)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(line))
    assert [compute_confidence(p, line) for p in (0.3, 0.6, 0.9)] == pytest.approx([0.09, 0.36, 0.81], abs=0.1)
    bins = bin_answers(found, np.array([compute_confidence(one.probability, line) for one in found]))
    assert sum(one["n"] for one in bins) == len(found)
    assert all(abs(one["confidence"] - one["right"]) < 0.08 for one in bins)


def test_above_a_bar_no_more_is_wrong_than_said() -> None:
    found = (
        [Answer(0.9, True, True)] * 98
        + [Answer(0.8, False, False)]
        + [Answer(0.7, True, True), Answer(0.6, False, False)]
    )
    assert find_bar(found, 0.0) == 0.9
    assert find_bar(found, 0.01) == 0.7
    assert find_bar(found, 0.5) == 0.6
    assert find_bar([Answer(0.9, False, False)], 0.01) == 2.0


def test_answers_of_one_probability_are_above_a_bar_together() -> None:
    assert find_bar([Answer(0.9, True, True)] * 9 + [Answer(0.9, False, False)], 0.0) == 2.0


def test_readings_are_labelled_and_kept(tmp_path: Path) -> None:
    calls = []

    def read(text: str, edit: ParsedEdit, language: str | None, said: tuple[str, ...]) -> list[_Toy]:
        calls.append((text, language, said))
        return [_Toy("a\nc\n", (1.0, 0.0)), _Toy("a\n\nc\n", (0.0, 1.0)), _Toy("b\nc\n", (0.0, 0.0))]

    case = Case("x", "lazy", "lazy", "x.py", "a\nb\n", "a\nc\n", "a\nc\n", instruction="Use c", repo="a/b")
    cache = tmp_path / "readings.jsonl"
    (first,) = label_cases([case], read, 2, cache)
    (again,) = label_cases([case], read, 2, cache)
    assert calls == [("a\nb\n", "python", ("Use c",))]
    assert first.exact.tolist() == [True, False, False]
    assert first.modulo.tolist() == [True, True, False]
    assert again.features.tolist() == first.features.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert first.group == "a/b/x.py"


def test_a_case_is_answered_by_weights_that_never_saw_its_group() -> None:
    """What is right in one group is wrong in another: who did not see the group takes the other's."""
    cases = [_case(at, np.eye(4, len(FEATURES))[[at % 4, 3 - at % 4]], 0) for at in range(4) for _ in range(3)]
    answers = answer_held_out(cases, lambda case: case.id, 1e-3, 1.0, folds=0)
    assert len(answers) == 4
    assert not any(one.exact for one in answers.values())
    assert np.argmax(fit_order(cases[:3], 1e-3).probabilities(cases[0].features)) == 0


def test_figures_count_what_is_answered_above_a_bar() -> None:
    cases = [_case(at, np.eye(3)[:2], 0) for at in range(3)] + [_case(3, np.zeros((0, 3)), None)]
    answers = {"0": Answer(0.9, True, True), "1": Answer(0.8, False, True), "2": Answer(0.7, False, False)}
    answers["3"] = Answer(0.0, False, False)
    found = compute_figures(cases, answers, {"certain": 0.85, "likely": 0.65})
    assert found["n"] == 4
    assert (found["certain"]["n"], found["certain"]["wrong"]) == (1, 0)
    assert (found["likely"]["n"], found["likely"]["wrong"]) == (3, 1)
    assert found["first"].startswith("25.0%")
    assert found["first_modulo"].startswith("50.0%")
    assert found["among"].startswith("75.0%")


def test_the_weights_of_the_reader_are_written_where_it_reads_them() -> None:
    assert WEIGHTS.is_file()


def test_readings_of_another_reader_or_other_weights_are_not_taken_from_the_cache(tmp_path: Path) -> None:
    for name in ("reader.py", "weights.json"):
        (tmp_path / name).write_text("1")
        before = hash_folders(READER, tmp_path)
        (tmp_path / name).write_text("2")
        assert hash_folders(READER, tmp_path) != before
