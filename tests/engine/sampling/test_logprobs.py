"""Log-probabilities: those of torch, of what the model says after bias and penalty, and the likeliest in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling import Sampler
from engine.sampling.logits import token_logprob
from tests.engine.sampling import slow

rows = st.lists(st.sampled_from([-200.0, -3.0, 0.0, 1.5, 80.0]), min_size=1, max_size=30)


@given(rows, st.integers(0, 40), st.data())
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
