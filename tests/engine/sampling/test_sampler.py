"""The token of one request follows the distribution that was asked for, whatever else is in the batch."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import NumericFault
from engine.sampling import BLOCK, Choice, Sampler, draw, uniform
from engine.types import GenerationRequest
from tests.engine.sampling import slow

NUM_DRAWS = 4000
LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.5, -3.0, 1.0, -0.2, 0.0])
VOCAB_SIZE = 60


def model(token_ids: list[int]) -> Tensor:
    """Logits [len(token_ids), VOCAB_SIZE] behind every token; each row depends on the last three ids."""
    padded = [0, 0, *token_ids]
    seeds = [padded[at] + 100 * padded[at + 1] + 10_000 * padded[at + 2] for at in range(len(token_ids))]
    return torch.stack([torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3 for seed in seeds])


def one_by_one(request: GenerationRequest, num_tokens: int) -> Choice:
    """A new sampler for every token, so that nothing is remembered."""
    ids, logprobs = [], []
    for _ in range(num_tokens):
        choice = Sampler(request).choose(model([*request.prompt_ids, *ids])[-1:], ids, [])
        ids += choice.token_ids
        logprobs += choice.logprobs
    return Choice(ids, tuple(logprobs))


requests = st.builds(
    slow.request,
    prompt=st.just([5, 6]),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    logit_bias=st.sampled_from([{}, {3: 4.0, 9: -2.0}]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@settings(max_examples=60)
@given(requests, st.data())
def test_the_same_tokens_under_any_verify_windows(request: GenerationRequest, data: st.DataObject) -> None:
    """Windows of any size over drafts that are right up to any place, with one sampler or a new one each time."""
    expected = one_by_one(request, 24)
    sampler, ids, logprobs = Sampler(request), [], []
    while len(ids) < 20:
        window, num_right = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
        draft = [
            token if place < num_right else (token + 1) % VOCAB_SIZE
            for place, token in enumerate(expected.token_ids[len(ids) : len(ids) + window])
        ]
        logits = model([*request.prompt_ids, *ids, *draft])[len(request.prompt_ids) + len(ids) - 1 :]
        choice = sampler.choose(logits, ids, draft)
        assert len(choice.token_ids) == min(num_right, len(draft)) + 1
        ids += choice.token_ids
        logprobs += choice.logprobs
    assert ids == expected.token_ids[: len(ids)]
    assert logprobs == list(expected.logprobs[: len(ids)])


@settings(max_examples=60)
@given(
    requests, st.lists(st.integers(1, 12), min_size=1), st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
)
def test_the_same_bits_however_the_rows_of_a_pass_are_split(
    request: GenerationRequest, sizes: list[int], dtype: torch.dtype
) -> None:
    """A draft that is right throughout, its rows given at once, and in groups that lie among other rows."""
    draft = one_by_one(request, 12).token_ids
    logits = model([*request.prompt_ids, *draft])[len(request.prompt_ids) - 1 :].to(dtype)
    together = Sampler(request).choose(logits, [], draft)
    ids: list[int] = []
    logprobs = []
    for size in itertools.cycle(sizes):
        part = torch.cat([logits[:3], logits[len(ids) : len(ids) + size], logits[:2]])[3:-2]
        if not len(part) or len(ids) >= len(together.token_ids):
            break
        choice = Sampler(request).choose(part, draft[: len(ids)], draft[len(ids) :])
        ids += choice.token_ids
        logprobs += choice.logprobs
    assert Choice(ids, tuple(logprobs)) == together


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.5},
        {"temperature": 3.0, "seed": 1},
        {"top_k": 3},
        {"top_p": 0.72},
        {"top_p": 0.95, "temperature": 2.0},
        {"min_p": 0.2},
        {"repetition_penalty": 1.5, "prompt": [0, 4]},
        {"logit_bias": {4: 4.0, 0: -1.0}},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2, "logit_bias": {1: 1.0}},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_tokens_are_drawn_with_the_probabilities_asked_for(changes: dict[str, object]) -> None:
    request = slow.request(**{"prompt": [7], "temperature": 1.0, **changes})
    draws = [Sampler(request).choose(LOGITS[None], [7] * at, []).token_ids[0] for at in range(NUM_DRAWS)]
    expected = slow.weights_of(changed(LOGITS.numpy(), request), request).astype(np.float64)
    counts = np.bincount(draws, minlength=len(LOGITS))
    assert not counts[expected == 0].any(), "a token was drawn that is cut"
    share = expected[expected > 0] / expected.sum() * NUM_DRAWS
    assert ((counts[expected > 0] - share) ** 2 / share).sum() < 24.3  # 99.9 %, at most 7 degrees of freedom


def changed(row: np.ndarray, request: GenerationRequest) -> np.ndarray:
    """Bias, then penalty on tokens of the prompt and token 7 (the output), one at a time."""
    row = row.copy()
    for token_id, bias in request.logit_bias.items():
        row[token_id] += np.float32(bias)
    for token_id in {*request.prompt_ids, 7}:
        factor = np.float32(request.repetition_penalty)
        row[token_id] = row[token_id] / factor if row[token_id] > 0 else row[token_id] * factor
    return row


def test_a_draw_is_the_inverse_of_the_cumulative_distribution_at_the_positions_number() -> None:
    logits = torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 3
    request = slow.request(temperature=0.8, top_p=0.9, seed=3)
    weights = slow.weights_of(logits.numpy(), request)
    for position in range(50):
        chosen = Sampler(request).choose(logits[None], range(position), []).token_ids
        assert chosen == [slow.draw(weights, uniform(3, position))]


def test_every_seed_draws_its_first_token_from_the_distribution() -> None:
    """A stream that is even along positions may still be uneven across seeds."""
    first = [
        Sampler(slow.request(temperature=1.0, seed=seed)).choose(LOGITS[None], [], []).token_ids[0]
        for seed in range(NUM_DRAWS)
    ]
    share = LOGITS.double().softmax(dim=0).numpy() * NUM_DRAWS
    assert ((np.bincount(first, minlength=len(LOGITS)) - share) ** 2 / share).sum() < 24.3


def test_rows_behind_a_departure_from_the_draft_are_not_looked_at() -> None:
    logits = torch.zeros(4, 8)
    logits[0, 3] = logits[1, 5] = 1.0
    logits[2:] = torch.nan
    assert Sampler(slow.request()).choose(logits, [], [3, 6, 0]).token_ids == [3, 5]


def test_a_draft_token_that_comes_again_is_penalized_in_the_row_behind_it() -> None:
    logits = torch.tensor([[2.0, 1.5, 0.0]]).repeat(3, 1)
    request = slow.request(prompt=[2], repetition_penalty=2.0)
    assert Sampler(request).choose(logits, [], [0, 1]).token_ids == [0, 1, 0]  # 2, then 1.5 over 1, then 1 over 0.75


def test_logits_are_not_written_to() -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    request = slow.request(temperature=1.0, repetition_penalty=2.0, logit_bias={1: 5.0}, top_k=3, logprobs=2)
    Sampler(request).choose(logits, [], [1, 1])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 5e-324])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature: float) -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)) * 20
    draft = logits.argmax(dim=-1).tolist()
    assert Sampler(slow.request(temperature=temperature)).choose(logits, [], draft).token_ids == draft


def test_temperature_zero_heeds_bias_and_penalty_and_no_cut() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert Sampler(slow.request(top_k=1, seed=5)).choose(logits, [], []).token_ids == [1]
    assert Sampler(slow.request(logit_bias={0: 2.5})).choose(logits, [], []).token_ids == [0]
    assert Sampler(slow.request(prompt=[1], repetition_penalty=2.0)).choose(logits, [], []).token_ids == [2]


def test_a_bias_is_added_before_the_penalty_is_taken() -> None:
    request = slow.request(prompt=[0], repetition_penalty=2.0, logit_bias={0: 1.0})
    logits = torch.tensor([[1.0, 1.25]])  # (1 + 1) / 2 = 1 loses, 1 / 2 + 1 would win
    assert Sampler(request).choose(logits, [], []).token_ids == [1]


def test_plain_greedy_asks_for_nothing_but_the_likeliest() -> None:
    assert Sampler(slow.request(top_p=0.5, top_k=3, min_p=0.1, seed=4)).is_plain_greedy
    others = [{"temperature": 0.1}, {"logprobs": 0}, {"logit_bias": {1: 0.5}}, {"repetition_penalty": 0.9}]
    assert not any(Sampler(slow.request(**changes)).is_plain_greedy for changes in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("bad", "what"), [(float("nan"), "not numbers"), (float("inf"), "infinite"), (-float("inf"), "all -inf")]
)
@pytest.mark.parametrize("changes", [{}, {"temperature": 1.0, "top_k": 2}, {"repetition_penalty": 1.5, "logprobs": 1}])
def test_logits_that_are_not_numbers_fail_by_position(
    changes: dict[str, object], bad: float, what: str, dtype: torch.dtype
) -> None:
    logits = torch.zeros(3, 8, dtype=dtype)
    logits[:, 5] = 20.0
    if bad == -float("inf"):
        logits[2] = bad
    else:
        logits[2, 6] = bad
    with pytest.raises(NumericFault, match=f"output token 6 are {what}") as fault:
        Sampler(slow.request(**changes)).choose(logits, [1] * 4, [5, 5])
    assert fault.value.row == 2


def test_a_token_that_cannot_be_is_no_fault() -> None:
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf]])
    for changes in (
        {},
        {"temperature": 2.0},
        {"temperature": 2.0, "top_k": 2, "top_p": 0.9, "repetition_penalty": 2.0},
    ):
        assert Sampler(slow.request(**changes)).choose(logits, [], []).token_ids == [1]


def test_no_rows_choose_nothing() -> None:
    assert Sampler(slow.request(repetition_penalty=2.0)).choose(torch.zeros(0, 8), [], []) == Choice([])


# The random stream is even along positions and across seeds.


positive = st.floats(2.0**-20, 1, width=32)


def deviation(numbers: list[float], num_bins: int) -> float:
    """Chi square of numbers in [0, 1) against equal shares."""
    counts = np.bincount((np.array(numbers) * num_bins).astype(int), minlength=num_bins)
    expected = len(numbers) / num_bins
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_stream_is_even_along_positions() -> None:
    assert deviation([uniform(3, position) for position in range(20_000)], 16) < 37.7  # 99.9 %, 15 degrees of freedom


def test_the_stream_is_even_across_seeds() -> None:
    assert deviation([uniform(seed, 0) for seed in range(20_000)], 16) < 37.7


def test_neighbouring_positions_are_independent() -> None:
    numbers = [uniform(5, position) for position in range(20_001)]
    pairs = [(int(a * 4) * 4 + int(b * 4)) / 16 for a, b in pairwise(numbers)]
    assert deviation(pairs, 16) < 37.7


def test_the_stream_is_what_it_was() -> None:
    """Seeds are promises: the same text after an update."""
    assert [uniform(7, position) for position in (0, 1, 1000)] == [
        0.000772745446342952,
        0.919768592376734,
        0.8140915476607169,
    ]


@given(
    st.lists(st.one_of(st.just(0.0), positive), min_size=1, max_size=30).filter(any),
    st.floats(0, 1),
    st.integers(0, 3 * BLOCK),
)
def test_a_draw_lays_the_weights_side_by_side(some: list[float], number: float, num_zeros: int) -> None:
    weights = np.array([*some, *[0.0] * num_zeros, *some[::-1]], dtype=np.float32)
    place = draw(weights, number)
    assert weights[place] > 0
    total = weights.sum(dtype=np.float64)
    before = weights[:place].sum(dtype=np.float64) / total
    assert before - 1e-12 <= number <= before + weights[place] / total + 1e-12


def test_a_draw_from_a_vocabulary_is_that_of_adding_the_weights_one_by_one() -> None:
    weights = np.exp(np.random.default_rng(0).normal(size=10_007).astype(np.float32) * 4 - 16)
    weights[np.random.default_rng(1).random(len(weights)) < 0.3] = 0
    for position in range(300):
        assert draw(weights, uniform(0, position)) == slow.draw(weights, uniform(0, position))


def test_weights_that_vanish_beside_a_large_one_in_float32_have_their_share() -> None:
    small = 2.0**-34  # 512 of them are below half a unit of 1 in its last place
    weights = np.full(20 * BLOCK, small, dtype=np.float32)
    weights[0] = 1.0
    total = float(weights.sum(dtype=np.float64))
    for place in (1, 700, len(weights) - 1):
        assert draw(weights, (1 + (place - 0.5) * small) / total) == place


@pytest.mark.parametrize("size", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_the_ends_of_the_stream_draw_the_first_and_the_last_token_that_have_a_weight(size: int) -> None:
    weights = np.zeros(size + 2 * BLOCK, dtype=np.float32)
    weights[BLOCK : BLOCK + size] = 0.3
    assert draw(weights, 0.0) == BLOCK
    assert draw(weights, 1.0) == BLOCK + size - 1
