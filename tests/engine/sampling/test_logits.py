"""Reading, biasing, cutting and scoring one row of logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.errors import RequestError
from engine.sampling import (
    LIKELY,
    LogitBias,
    RepetitionPenalty,
    Row,
    Sampler,
    compute_distribution,
    hide_unlikely,
    min_p,
    read_row,
    token_logprob,
    top_k,
    top_p,
)
from engine.types import GenerationRequest
from tests.engine.sampling import slow

# A row is read in float32, value for value, from any dtype and any strides.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_value_of_a_half_type_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)[None]
    assert np.array_equal(read_row(values, 0), values[0].float().numpy(), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_row_of_a_strided_tensor_is_its_own(dtype: torch.dtype) -> None:
    logits = torch.arange(60.0).view(6, 10).to(dtype)
    row = read_row(logits[::2, 1::3], 1)
    assert row.dtype == np.float32
    assert row.tolist() == [21, 24, 27]


# Bias and repetition penalty equal transformers', and equal starting afresh.


VOCAB_SIZE = 50
token_ids = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20)


def logits(seed: int) -> Row:
    return np.random.default_rng(seed).normal(size=VOCAB_SIZE).astype(np.float32) * 5


def penalized(penalty: RepetitionPenalty, seed: int) -> Row:
    row = logits(seed)
    penalty.apply(row)
    return row


@given(token_ids.filter(len), token_ids, st.sampled_from([0.5, 1.3, 7.0]))
def test_the_penalty_is_that_of_transformers(prompt: list[int], output: list[int], factor: float) -> None:
    penalty = RepetitionPenalty(factor, prompt)
    penalty.follow(output, VOCAB_SIZE)
    theirs = RepetitionPenaltyLogitsProcessor(factor)(
        torch.tensor([prompt + output]), torch.from_numpy(logits(1))[None]
    )
    assert np.array_equal(penalized(penalty, 1), theirs[0].numpy())


@given(token_ids.filter(len), st.lists(st.tuples(token_ids, token_ids), max_size=5))
def test_what_was_marked_before_leaves_no_trace(prompt: list[int], calls: list[tuple[list[int], list[int]]]) -> None:
    """Outputs that go on, are other ones, or are shorter than what a draft had marked."""
    used = RepetitionPenalty(1.5, prompt)
    for output, draft in calls:
        used.follow(output, VOCAB_SIZE)
        used.extend(draft)
        fresh = RepetitionPenalty(1.5, prompt)
        fresh.follow(output + draft, VOCAB_SIZE)
        assert np.array_equal(penalized(used, 2), penalized(fresh, 2))


def test_an_output_that_goes_on_is_followed_with_its_accepted_draft() -> None:
    penalty = RepetitionPenalty(2.0, (1,))
    for output in ([], [4, 5], [4, 5, 6]):
        penalty.follow(output, VOCAB_SIZE)
        assert sorted(np.flatnonzero(penalized(penalty, 0) != logits(0))) == sorted({1, *output})
        penalty.extend([9])  # not accepted


def test_a_bias_is_added_to_its_tokens_only() -> None:
    row = logits(0)
    LogitBias({3: 2.5, 7: -100.0}).apply(row)
    expected = logits(0)
    expected[3] += np.float32(2.5)
    expected[7] -= np.float32(100)
    assert np.array_equal(row, expected)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_a_bias_on_a_token_that_is_none_is_refused(token_id: int) -> None:
    with pytest.raises(RequestError, match="outside"):
        LogitBias({0: 1.0, token_id: 1.0}).apply(logits(0))


# Top-k, top-p and min-p leave what sorting everything leaves, and what transformers leaves.


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
    ids, weights = compute_distribution(row, request)
    cut = np.zeros(len(row), dtype=np.float32)
    cut[slice(None) if ids is None else ids] = weights
    return cut


@given(rows, requests)
@example(np.zeros(40, dtype=np.float32), slow.request(temperature=1.0, top_p=0.5))  # all equal: the first ones stay
@example(np.array([1, 0, 1, 1], dtype=np.float32), slow.request(temperature=1.0, top_k=2))  # three equal the second
@example(np.array([0, 2.0**-52], dtype=np.float32), slow.request(temperature=0.3, top_p=0.5))  # one weight, two logits
def test_the_cuts_leave_what_sorting_the_whole_row_leaves(row: Row, request: GenerationRequest) -> None:
    assert wide(row, request).tolist() == slow.weights_of(row, request).tolist()


@given(rows, st.lists(requests, min_size=1, max_size=4))
@example(np.zeros(40, dtype=np.float32), [slow.request(temperature=1.0, top_p=0.5)])
@example(np.array([1, 0, 1, 1], dtype=np.float32), [slow.request(temperature=1.0, top_k=2)])
@example(np.array([0, 2.0**-52], dtype=np.float32), [slow.request(temperature=0.3, top_p=0.5)])
def test_a_card_hides_what_the_cuts_leave_out(row: Row, several: list[GenerationRequest]) -> None:
    logits = torch.from_numpy(row).repeat(len(several), 1)
    hide_unlikely(logits, several)
    for found, request in zip(logits.numpy(), several, strict=True):
        stays = found > -np.inf
        assert found[stays].tolist() == row[stays].tolist()
        uncut = slow.weights_of(row, slow.request(temperature=request.temperature))
        assert (wide(row, request) > 0).tolist() == (stays & (uncut > 0)).tolist()


def test_a_row_that_is_no_number_is_hidden_nowhere() -> None:
    rows = torch.tensor([[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3])
    hidden = rows.clone()
    hide_unlikely(hidden, [slow.request(temperature=1.0, top_k=1, top_p=0.5, min_p=0.1)] * 3)
    torch.testing.assert_close(hidden, rows, equal_nan=True)


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


# Log-probabilities are torch's, after bias and penalty, with the likeliest tokens in order.


spread_rows = st.lists(st.sampled_from([-200.0, -3.0, 0.0, 1.5, 80.0]), min_size=1, max_size=30)


@given(spread_rows, st.integers(0, 40), st.data())
def test_the_likeliest_come_best_first_and_of_equals_the_first(
    values: list[float], num_top: int, data: st.DataObject
) -> None:
    row = np.array(values, dtype=np.float32)
    token_id = data.draw(st.integers(0, len(row) - 1))
    expected = torch.from_numpy(row).double().log_softmax(dim=0).tolist()
    found = token_logprob(row, token_id, num_top)
    assert found.token_id == token_id
    assert found.logprob == pytest.approx(expected[token_id], rel=1e-6, abs=1e-6)
    best_first = sorted(range(len(row)), key=lambda each: (-row[each], each))[:num_top]
    assert [each for each, _ in found.top] == best_first
    assert [logprob for _, logprob in found.top] == pytest.approx([expected[each] for each in best_first], abs=1e-6)


def test_a_token_that_cannot_be_has_minus_infinity() -> None:
    row = np.array([0.0, -np.inf], dtype=np.float32)
    assert token_logprob(row, 0, 2).top == ((0, 0.0), (1, -np.inf))


def test_temperature_and_cuts_leave_them_as_they_are_and_bias_and_penalty_do_not() -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(0)) * 3
    request = slow.request(
        prompt=[4],
        temperature=3.0,
        top_k=2,
        top_p=0.6,
        min_p=0.3,
        logit_bias={8: 3.0},
        repetition_penalty=2.0,
        logprobs=5,
    )
    choice = Sampler(request).choose(logits, [], [])
    processed = logits[0].double()
    processed[8] += 3.0
    processed[4] = processed[4] / 2 if processed[4] > 0 else processed[4] * 2
    expected = processed.log_softmax(dim=0)
    (logprob,) = choice.logprobs
    assert [logprob.token_id] == choice.token_ids
    assert logprob.logprob == pytest.approx(float(expected[logprob.token_id]), abs=1e-5)
    assert [each for each, _ in logprob.top] == expected.topk(5).indices.tolist()
    assert [each for _, each in logprob.top] == pytest.approx(expected.topk(5).values.tolist(), abs=1e-5)


def test_each_row_has_one_as_far_as_tokens_were_chosen() -> None:
    logits = torch.tensor([[0.0, 1.0], [3.0, 0.0], [0.0, 1.0]])
    choice = Sampler(slow.request(logprobs=0)).choose(logits, [], [1, 1])
    assert choice.token_ids == [1, 0]
    assert [each.token_id for each in choice.logprobs] == [1, 0]
    assert [each.top for each in choice.logprobs] == [(), ()]
    assert Sampler(slow.request()).choose(logits, [], [1, 1]).logprobs == ()
