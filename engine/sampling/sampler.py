"""Samples one request's tokens from its logits with a random stream of its own.

A row goes through these steps, in the order of transformers' `generate` (`_get_logits_processor`):

1. logit bias, then repetition penalty, in float32. Log-probabilities are those of this distribution.
2. greedy (temperature 0): the largest logit is chosen, the first of equal ones. Otherwise
3. temperature, top-k, top-p of what top-k has left, min-p of what top-p has left (relative to the most likely).
4. a draw in the order of the ids, by the number of the request's random stream for this position.

If the request forces a token, it replaces the choice of steps 2-4; its log-probability is that of step 1.

vLLM v1 (`v1/sample/sampler.py`) does the same, except that its min-p comes before its top-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from torch import Tensor

from engine.sampling.logits import (
    Ids,
    LogitBias,
    RepetitionPenalty,
    Row,
    check_largest,
    min_p,
    read_row,
    token_logprob,
    top_k,
    top_p,
)
from engine.types import GenerationRequest, TokenLogprob

BLOCK = 512
"""Weights that are summed as one, before the block that holds the token is searched."""


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1] that depends on the seed and the output token's number only."""
    digest = blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


def draw(weights: Row, number: float) -> int:
    """Return the index that `number` in [0, 1] falls on when the weights are laid side by side.

    A weight of 0 is never drawn. Example: of weights [1, 0, 3] the numbers below 0.25 draw 0, the others 2.
    """
    ends = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK), dtype=np.float64).cumsum()
    target = number * ends[-1]
    block = min(int(ends.searchsorted(target, side="right")), int(ends.searchsorted(ends[-1])))
    inside = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    begin = ends[block - 1] if block else 0.0
    place = min(int(inside.searchsorted(target - begin, side="right")), int(inside.searchsorted(inside[-1])))
    return block * BLOCK + place


LEAST_TEMPERATURE = 1e-30
"""Below this, float32 would divide by zero; any temperature so small is greedy."""


def distribution(row: Row, request: GenerationRequest) -> tuple[Ids | None, Row]:
    """Return the ids that may be drawn, ascending (None: all), and their weights; the most likely one has 1.

    row: logits [vocab_size], the largest finite. Top-k is applied first, before the exponentials are taken: temperature
    does not change which logits are largest.
    """
    ids = top_k(row, request.top_k) if 0 < request.top_k < len(row) else None
    scores = row if ids is None else row[ids]
    with np.errstate(over="ignore"):  # to -inf, whose weight is 0
        below_best = (scores - scores.max()) / np.float32(max(request.temperature, LEAST_TEMPERATURE))
    weights: Row = np.exp(below_best)
    if request.top_p < 1.0:
        ids, weights = _keep(ids, weights, top_p(weights, request.top_p))
    if request.min_p > 0.0:
        ids, weights = _keep(ids, weights, min_p(weights, request.min_p))
    return ids, weights


def _keep(ids: Ids | None, weights: Row, places: Ids) -> tuple[Ids, Row]:
    return places if ids is None else ids[places], weights[places]


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen tokens, in the order of the rows, and the log-probability of each if the request asks for it."""

    token_ids: list[int]
    logprobs: tuple[TokenLogprob, ...] = ()


class Sampler:
    """Chooses a request's tokens from its rows of logits.

    The random number of a position depends on the seed and the position only, so a seeded request gives the same text
    however many tokens each pass verifies and whatever else runs. Accepting draft tokens while they equal what the
    stream draws keeps the model's distribution exactly (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023,
    arXiv 2302.01318; with a deterministic draft, drawing y ~ p and comparing is their rule).
    """

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._bias = LogitBias(request.logit_bias) if request.logit_bias else None
        penalty = request.repetition_penalty
        self._penalty = RepetitionPenalty(penalty, request.prompt_ids) if penalty != 1.0 else None

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the most likely token of each row is all that the request needs, after forced ones."""
        request = self._request
        return request.temperature == 0.0 and request.logprobs is None and not (self._bias or self._penalty)

    def choose(self, logits: Tensor, output_ids: Sequence[int], draft: Sequence[int]) -> Choice:
        """Return the next token after each row, as far as they follow the draft, and the first one that differs from
        it.

        logits: [num_rows, vocab_size] in any float dtype; row i follows `output_ids + draft[:i]`, so row 0 chooses
        output token number len(output_ids). Rows after a rejection follow tokens that were not written: they are not
        read, and the choice is shorter than `logits`. Raises NumericFault if a row's largest logit is no number: `row`
        says which.
        """
        assert len(draft) >= len(logits) - 1, "every row but the first follows a draft token"
        if self._penalty:
            self._penalty.follow(output_ids, logits.shape[-1])
        token_ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        for index in range(len(logits)):
            position = len(output_ids) + index
            row = self._process(read_row(logits, index))
            check_largest(float(row.max()), index, f"output token {position}")
            token_ids.append(self._pick(row, position))
            if self._request.logprobs is not None:
                logprobs.append(token_logprob(row, token_ids[-1], self._request.logprobs))
            if list(draft[index : index + 1]) != token_ids[-1:]:
                break
            if self._penalty:
                self._penalty.extend(token_ids[-1:])
        return Choice(token_ids, tuple(logprobs))

    def get_forced_ids(self, position: int, num_rows: int) -> list[int]:
        """Return the tokens from output token number `position` on, at most `num_rows`, that need no logits.

        These are forced tokens, unless the request asks for log-probabilities.
        """
        asked = self._request.logprobs is not None
        return [] if asked else list(self._request.forced_ids[position : position + num_rows])

    def _process(self, row: Row) -> Row:
        if not (self._bias or self._penalty):
            return row
        row = row.copy()
        if self._bias:
            self._bias.apply(row)
        if self._penalty:
            self._penalty.apply(row)
        return row

    def _pick(self, row: Row, position: int) -> int:
        if position < len(self._request.forced_ids):
            return self._request.forced_ids[position]
        if self._request.temperature == 0.0:
            return int(row.argmax())
        ids, weights = distribution(row, self._request)
        place = draw(weights, uniform(self._request.seed, position))
        return place if ids is None else int(ids[place])
