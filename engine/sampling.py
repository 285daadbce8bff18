"""Chooses tokens from logits: greedily, or by a random stream that belongs to the position, not to the pass."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor


class Sampler:
    """One request's choice of tokens.

    The random number of a position depends on the seed and the position alone, so a seeded request gives the same
    text however many tokens each pass verifies. Accepting draft tokens while they equal what the stream draws keeps
    the model's distribution exactly (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318;
    with a deterministic draft, drawing y ~ p and comparing is their rule).
    """

    def __init__(self, temperature: float, top_p: float, seed: int) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._seed = seed

    def choose(self, logits: Tensor, first_position: int) -> Tensor:
        """The next token behind each row: logits [num_tokens, vocab_size] -> int64 [num_tokens].

        Row i chooses the output token number `first_position + i` of the request.
        """
        if self._temperature == 0.0:
            return logits.argmax(dim=-1)
        draws = [self._uniform(first_position + row) for row in range(len(logits))]
        wide = logits.to(torch.float32)
        below_best = wide - wide.amax(dim=-1, keepdim=True)  # at most 0: a tiny temperature overflows to -inf, not inf
        scaled = below_best / max(self._temperature, 1e-30)
        return _draw(scaled, self._top_p, torch.tensor(draws, dtype=torch.float64))

    def _uniform(self, position: int) -> float:
        """A number in [0, 1) that only (seed, position) decide."""
        digest = blake2b(f"{self._seed}:{position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2.0**64


def _draw(logits: Tensor, top_p: float, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling from the nucleus (Holtzman et al. 2020, arXiv 1904.09751), a row each."""
    probabilities, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    cumulative = probabilities.to(torch.float64).cumsum(dim=-1)
    nucleus = (cumulative - probabilities < top_p).sum(dim=-1, keepdim=True)  # always holds the likeliest token
    mass = cumulative.gather(-1, nucleus - 1)
    chosen = torch.searchsorted(cumulative, uniforms.to(cumulative)[:, None] * mass, right=True)
    return order.gather(-1, torch.minimum(chosen, nucleus - 1))[:, 0]
