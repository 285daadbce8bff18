"""KL, agreement and the recovered share of an edit's effect, against torch and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.reuse.quality.divergence import Divergence, Spread, recovered


def logits(seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(5, 40, generator=torch.Generator().manual_seed(seed))


def test_kl_is_torchs_and_points_from_full_to_the_other() -> None:
    full, other = logits(1), logits(2)
    found = Divergence.of(full, other)
    wanted = F.kl_div(other.double().log_softmax(-1), full.double().log_softmax(-1), log_target=True, reduction="none")
    assert found.kl == pytest.approx(wanted.sum(-1).numpy(), rel=1e-5)
    assert not np.allclose(found.kl, Divergence.of(other, full).kl)


def test_equal_logits_have_no_divergence() -> None:
    found = Divergence.of(logits(1), logits(1))
    assert found.kl.tolist() == [0.0] * 5
    assert found.first_departure() is None
    shifted = Divergence.of(logits(1).bfloat16(), logits(1).bfloat16() + 0.0)
    assert shifted.kl.max() == 0.0


def test_the_first_departure_is_that_of_the_likeliest_token() -> None:
    full = torch.zeros(4, 3)
    full[:, 1] = 5.0
    other = full.clone()
    other[2, 0] = 9.0
    found = Divergence.of(full, other)
    assert found.same_top.tolist() == [True, True, False, True]
    assert found.first_departure() == 2


def test_what_is_recovered_is_one_less_the_ratio_of_the_sums() -> None:
    def of(*kl: float) -> Divergence:
        return Divergence(np.array(kl), np.ones(len(kl), np.bool_))

    stale = [of(3.0, 1.0), of(0.0, 0.0)]
    assert recovered([of(0.0, 0.0), of(0.0, 0.0)], stale) == 1.0
    assert recovered(stale, stale) == 0.0
    assert recovered([of(0.5, 0.0), of(0.5, 0.0)], stale) == 0.75


def test_the_spread_is_over_all_tokens() -> None:
    first = Divergence(np.array([0.0, 1.0]), np.array([True, False]))
    second = Divergence(np.array([2.0, 5.0, 0.0, 0.0]), np.array([True, True, True, True]))
    spread = Spread.over([first, second])
    assert (spread.num_tokens, spread.mean, spread.p50, spread.largest) == (6, 8 / 6, 0.5, 5.0)
    assert spread.top1 == 5 / 6
