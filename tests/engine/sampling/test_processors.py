"""Bias and repetition penalty: equal to transformers', and to starting afresh."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from engine.errors import RequestError
from engine.sampling.logits import LogitBias, RepetitionPenalty, Row

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
