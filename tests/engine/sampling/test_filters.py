"""The cuts leave what sorting everything would leave, and what transformers leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.sampling.logits import LIKELY, Row, min_p, top_k, top_p
from engine.sampling.sampler import distribution
from engine.types import GenerationRequest
from tests.engine.sampling import slow

few_values = st.lists(st.sampled_from([-9.0, -3.0, -0.5, 0.0, 0.25, 2.0, 4.0]), min_size=1, max_size=40)
any_values = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)
rows = st.one_of(few_values, any_values).map(lambda values: np.array(values, dtype=np.float32))
requests = st.builds(
    slow.request,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 10, 39, 40, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


def wide(row: Row, request: GenerationRequest) -> Row:
    """The weights of `distribution`, 0 for the tokens that are cut."""
    ids, weights = distribution(row, request)
    cut = np.zeros(len(row), dtype=np.float32)
    cut[slice(None) if ids is None else ids] = weights
    return cut


@given(rows, requests)
@example(np.zeros(40, dtype=np.float32), slow.request(temperature=1.0, top_p=0.5))  # all equal: the first ones stay
@example(np.array([1, 0, 1, 1], dtype=np.float32), slow.request(temperature=1.0, top_k=2))  # three equal the second
def test_the_cuts_leave_what_sorting_the_whole_row_leaves(row: Row, request: GenerationRequest) -> None:
    assert wide(row, request).tolist() == slow.weights_of(row, request).tolist()


@pytest.mark.parametrize("temperature", [0.2, 1.0, 10.0])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.9999])
def test_a_nucleus_of_few_and_of_most_of_a_real_vocabulary(temperature: float, share: float) -> None:
    """A few of 20,000 at 0.2; at 10 nearly all, most of them likely."""
    row = np.random.default_rng(0).normal(size=20_000).astype(np.float32) * 3
    request = slow.request(temperature=temperature, top_p=share)
    assert wide(row, request).tolist() == slow.weights_of(row, request).tolist()


def test_a_nucleus_that_reaches_below_the_likely_is_found_whole() -> None:
    weights = np.full(10_001, LIKELY / 2, dtype=np.float32)
    weights[77] = 1.0  # of a mass of 6, so that 0.5 of it needs 4,000 of the others
    places = top_p(weights, 0.5)
    assert places.tolist() == sorted([77, *[each for each in range(len(places)) if each != 77]])
    mass = weights[places].sum(dtype=np.float64)
    assert mass - LIKELY / 2 < 0.5 * weights.sum(dtype=np.float64) <= mass


def test_all_of_a_row_stays_when_rounding_hides_the_last_of_its_mass() -> None:
    weights = np.full(3, 0.1, dtype=np.float32)
    weights[0] = 1.0
    assert top_p(weights, np.nextafter(1.0, 0.0)).tolist() == [0, 1, 2]


def test_top_k_keeps_what_equals_the_last_and_all_of_a_short_row() -> None:
    scores = np.array([5, 1, 3, 3, 0], dtype=np.float32)
    assert top_k(scores, 2).tolist() == [0, 2, 3]
    assert top_k(scores, 5).tolist() == [0, 1, 2, 3, 4]
    assert top_k(scores, 6).tolist() == [0, 1, 2, 3, 4]


def test_min_p_keeps_what_is_exactly_at_the_border() -> None:
    assert min_p(np.array([1, 0.5, 0.25], dtype=np.float32), 0.5).tolist() == [0, 1]


WARPERS = {
    "temperature": ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
    "top-k": ({"top_k": 40}, [TopKLogitsWarper(40)]),
    "top-p": ({"top_p": 0.9}, [TopPLogitsWarper(0.9)]),
    "min-p": ({"min_p": 0.02}, [MinPLogitsWarper(0.02)]),
    "all": (
        {"temperature": 1.5, "top_k": 50, "top_p": 0.8, "min_p": 0.05},
        [TemperatureLogitsWarper(1.5), TopKLogitsWarper(50), TopPLogitsWarper(0.8), MinPLogitsWarper(0.05)],
    ),
}


@pytest.mark.parametrize("name", WARPERS)
def test_the_distribution_is_that_of_transformers(name: str) -> None:
    changes, warpers = WARPERS[name]
    logits = torch.randn(20, 3000, generator=torch.Generator().manual_seed(1)) * 4
    expected = LogitsProcessorList(warpers)(None, logits.clone()).softmax(dim=-1)
    for row, theirs in zip(logits.numpy(), expected, strict=True):
        weights = torch.from_numpy(wide(row, slow.request(**{"temperature": 1.0, **changes})))
        assert torch.equal(weights > 0, theirs > 0), "other tokens are left"
        torch.testing.assert_close(weights / weights.sum(), theirs, rtol=1e-4, atol=1e-7)
