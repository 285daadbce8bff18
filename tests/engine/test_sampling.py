"""Sampling: the distribution is the model's, the nucleus is the smallest, and a seed decides everything.

The random stream is a hash of seed and position, so these statistics come out the same on every run.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.sampling import Sampler

NUM_DRAWS = 20_000
LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.5, -3.0, 1.0, -0.2, 0.0])


def frequencies(logits: Tensor, temperature: float, top_p: float, seed: int = 0) -> Tensor:
    chosen = Sampler(temperature, top_p, seed).choose(logits.expand(NUM_DRAWS, -1), first_position=0)
    return torch.bincount(chosen, minlength=len(logits)) / NUM_DRAWS


def chi_square(observed: Tensor, expected: Tensor) -> float:
    return float((NUM_DRAWS * (observed - expected).square() / expected).sum())


def nucleus(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """The likeliest tokens one after the other until they reach `top_p`, scaled to sum to 1."""
    probabilities = (logits.double() / temperature).softmax(dim=0)
    kept, mass = torch.zeros_like(probabilities), 0.0
    for token_id in sorted(range(len(logits)), key=lambda token_id: -float(probabilities[token_id])):
        if mass >= top_p:
            break
        kept[token_id] = probabilities[token_id]
        mass += float(probabilities[token_id])
    return kept / kept.sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_are_drawn_with_the_probabilities_of_softmax(temperature: float, seed: int) -> None:
    expected = (LOGITS.double() / temperature).softmax(dim=0)
    observed = frequencies(LOGITS, temperature, 1.0, seed)
    assert chi_square(observed, expected) < 24.3  # the 99.9 % point for 7 degrees of freedom


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.72, 0.95])
def test_top_p_draws_from_the_smallest_set_that_reaches_it(top_p: float) -> None:
    expected = nucleus(LOGITS, 1.0, top_p)
    observed = frequencies(LOGITS, 1.0, top_p)
    assert (observed[expected == 0] == 0).all()
    inside = expected > 0
    assert chi_square(observed[inside], expected[inside]) < 24.3


def test_every_seed_draws_its_first_token_from_the_distribution() -> None:
    """A stream that is even along positions may still be uneven across seeds."""
    first = [int(Sampler(1.0, 1.0, seed).choose(LOGITS[None], first_position=0)) for seed in range(4000)]
    observed = torch.bincount(torch.tensor(first), minlength=len(LOGITS)) / len(first)
    expected = LOGITS.double().softmax(dim=0)
    assert float((len(first) * (observed - expected).square() / expected).sum()) < 24.3


def test_neighbouring_positions_are_drawn_independently() -> None:
    chosen = Sampler(1.0, 1.0, 3).choose(torch.zeros(NUM_DRAWS, 4), first_position=0)
    pairs = torch.bincount(chosen[:-1] * 4 + chosen[1:], minlength=16) / (NUM_DRAWS - 1)
    assert chi_square(pairs, torch.full((16,), 1 / 16)) < 37.7  # 15 degrees of freedom


def test_a_position_draws_the_same_however_many_are_drawn_with_it() -> None:
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(0)) * 3
    together = Sampler(0.8, 0.9, 11).choose(logits, first_position=7)
    alone = [int(Sampler(0.8, 0.9, 11).choose(logits[[row]], first_position=7 + row)) for row in range(40)]
    assert together.tolist() == alone


def test_another_seed_and_another_position_draw_otherwise() -> None:
    logits = torch.zeros(50, 1000)
    drawn = {tuple(Sampler(1.0, 1.0, seed).choose(logits, at).tolist()) for seed in (0, 1) for at in (0, 50)}
    assert len(drawn) == 4


def test_temperature_zero_is_greedy_whatever_the_seed() -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Sampler(0.0, 0.1, 5).choose(logits, 0), logits.argmax(dim=-1))


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 5e-324])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature: float) -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)) * 20
    assert torch.equal(Sampler(temperature, 1.0, 0).choose(logits, 0), logits.argmax(dim=-1))


def test_a_tiny_top_p_is_greedy() -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Sampler(1.0, 1e-9, 0).choose(logits, 0), logits.argmax(dim=-1))


def test_bf16_logits_are_drawn_from_in_float32() -> None:
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(Sampler(1.0, 0.9, 2).choose(logits, 0), Sampler(1.0, 0.9, 2).choose(logits.float(), 0))
