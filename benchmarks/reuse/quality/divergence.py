"""How far a model's next-token distributions are from those of a full recompute, along one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Divergence:
    """Of one text, a value a token: KL(full || other) in nats, and whether both find the same token likeliest."""

    kl: NDArray[np.float64]
    same_top: NDArray[np.bool_]

    @classmethod
    def of(cls, full: Tensor, other: Tensor) -> Divergence:
        """Of logits [num_tokens, vocab_size], a row at a time: what is worked on stays in the processor's cache."""
        assert full.shape == other.shape, "both must be of the same text"
        kl = [_kl(row, its) for row, its in zip(full, other, strict=True)]
        return cls(np.array(kl), (full.argmax(-1) == other.argmax(-1)).numpy())

    def first_departure(self) -> int | None:
        """The first token at which the likeliest ones differ."""
        return None if self.same_top.all() else int(self.same_top.argmin())


def _kl(full: Tensor, other: Tensor) -> float:
    """In float32, exact to some 1e-6: what bfloat16 makes of two exact runs is hundreds of times as far off."""
    log_full, log_other = (torch.log_softmax(each.to(torch.float32), -1) for each in (full, other))
    return max(0.0, float((log_full.exp() * (log_full - log_other)).sum()))


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many tokens' KL: mean, percentiles and largest; how many are compared, and share with the same likeliest."""

    num_tokens: int
    mean: float
    p50: float
    p90: float
    p99: float
    largest: float
    top1: float

    @classmethod
    def over(cls, found: Sequence[Divergence]) -> Spread:
        """Over all tokens of these texts; at least one."""
        kl = np.concatenate([each.kl for each in found])
        top = np.concatenate([each.same_top for each in found])
        p50, p90, p99 = np.percentile(kl, [50, 90, 99]).tolist()
        return cls(len(kl), float(kl.mean()), p50, p90, p99, float(kl.max()), float(top.mean()))


def recovered(approximate: Sequence[Divergence], stale: Sequence[Divergence]) -> float:
    """The share of an edit's effect that an approximation has: 1 - KL(full || approximate) / KL(full || stale).

    Of sums over all texts: a ratio of one text is anything where the edit has next to no effect on it.
    """
    effect = sum(float(each.kl.sum()) for each in stale)
    return 1.0 - sum(float(each.kl.sum()) for each in approximate) / effect if effect else 1.0
