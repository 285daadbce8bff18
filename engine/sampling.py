"""Samples one request's tokens from its logits with a random stream of its own.

A row goes through these steps, in the order of transformers' `generate` (`_get_logits_processor`):

1. logit bias, then repetition penalty, in float32. Log-probabilities are those of this distribution.
2. greedy (temperature 0): the largest logit is chosen, the first of equal ones. Otherwise
3. temperature, top-k, top-p of what top-k has left, min-p of what top-p has left (relative to the most likely).
4. a draw in the order of the ids, by the number of the request's random stream for this position.

If the request forces a token, it replaces the choice of steps 2-4; its log-probability is that of step 1.

vLLM v1 (`v1/sample/sampler.py`) does the same, except that its min-p comes before its top-p.

Sampling works on one row at a time, in numpy and on one thread: numpy sorts and partitions float32 with vector
instructions (151,936 values in 0.3 ms, where torch.sort takes 20), no sum depends on the number of threads or on other
rows, and no row waits for a second thread on a busy machine (which cost up to 20 ms a row).

Each filter takes one number for each token and returns the indices of those that stay, ascending. None of them sorts
the vocabulary's ids: a border value is found by partition or by sorting values alone, and the rest is a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import NumericFault, RequestError
from engine.types import GenerationRequest, TokenLogprob
from kernels.accept import TopTokens
from kernels.op import upload

Row = NDArray[np.float32]
"""One number for each token: [vocab_size], or those that a filter has left."""
Ids = NDArray[np.intp]
"""Token ids, or indices into a `Row`, ascending."""


def read_row(logits: Tensor, index: int) -> Row:
    """Return row `index` of logits [num_rows, vocab_size] as float32; it may share the logits' memory and must not be
    written to.
    """
    row = logits[index].detach().cpu()
    if row.dtype != torch.bfloat16:
        return row.numpy().astype(np.float32, copy=False)
    bits = row.view(torch.uint16).numpy().astype(np.uint32)
    bits <<= 16  # bfloat16 is the upper half of float32
    return bits.view(np.float32)


def check_largest(largest: float, row: int, place: str) -> None:
    """Raise NumericFault unless the largest logit of a row is a number; it is NaN if any of them is."""
    if np.isfinite(largest):
        return
    what = "all -inf" if largest == -np.inf else "not numbers" if np.isnan(largest) else "infinite"
    raise NumericFault(
        f"the logits of {place} are {what}: the weights are damaged, or their dtype overflows (float32 does not)", row
    )


LIKELY = 1e-3
"""The nucleus is searched among tokens at least this likely, relative to the most likely one, and only
then among all."""


def top_k(scores: Row, num_kept: int) -> Ids:
    """Return the `num_kept` largest and those equal to the least of them (Fan et al. 2018, arXiv 1805.04833)."""
    if num_kept >= len(scores):
        return np.arange(len(scores))
    border = np.partition(scores, len(scores) - num_kept)[-num_kept]
    return np.flatnonzero(scores >= border)


def min_p(weights: Row, share: float) -> Ids:
    """Return those at least `share` times as likely as the most likely one (Nguyen et al. 2024, arXiv 2407.01082).

    weights: the most likely token has 1.
    """
    return np.flatnonzero(weights >= np.float32(share))


def top_p(weights: Row, share: float) -> Ids:
    """Return the nucleus: the most likely tokens until their mass reaches `share` of all (Holtzman et al. 2020, arXiv
    1904.09751).

    Of equally likely tokens at its border the first ones are in it. weights: in [0, 1], the most likely has 1. Example:
    weights [0.2, 1, 0.8] and share 0.7: 1 + 0.8 is the first sum to reach 0.7 * 2, so indices [1, 2] stay.
    """
    needed = share * float(weights.sum(dtype=np.float64))
    for floor in (LIKELY, 0.0):
        descending = np.sort(weights[weights >= np.float32(floor)])[::-1]
        mass = descending.cumsum(dtype=np.float64)
        if mass[-1] >= needed:
            break
    num_kept = min(int(mass.searchsorted(needed)) + 1, len(mass))
    border = descending[num_kept - 1]
    stays = weights > border
    num_equal = num_kept - int(np.count_nonzero(stays))
    stays[np.flatnonzero(weights == border)[:num_equal]] = True
    return np.flatnonzero(stays)


class LogitBias:
    """Adds to the logits of some tokens (as `logit_bias` of OpenAI's API)."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = np.fromiter(bias.keys(), dtype=np.intp)
        self._values = np.fromiter(bias.values(), dtype=np.float32)

    def apply(self, row: Row) -> None:
        """Add to `row` in place. Raises RequestError if the vocabulary has no such token."""
        if self._ids.min() < 0 or self._ids.max() >= len(row):
            raise RequestError(f"logit_bias holds a token id outside [0, {len(row)})")
        row[self._ids] += self._values

    def apply_rows(self, logits: Tensor) -> None:
        """Add to all rows of logits [num_rows, vocab_size] in place, on any device."""
        logits[:, upload(torch.from_numpy(self._ids), logits.device)] += upload(
            torch.from_numpy(self._values), logits.device
        )


class RepetitionPenalty:
    """Makes tokens of prompt and output less likely, once each (CTRL: Keskar et al. 2019, arXiv 1909.05858, 4.1).

    Their logits are divided by the penalty if positive and multiplied if not, as in vLLM and transformers. Keeps a mark
    for each token of the vocabulary; tokens marked for the last output are not marked again for a longer one.
    """

    def __init__(self, penalty: float, prompt_ids: Sequence[int]) -> None:
        self._penalty = np.float32(penalty)
        self._prompt_ids = np.asarray(prompt_ids, dtype=np.intp)
        self._marked: list[int] = []
        self._seen: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)  # [vocab_size], known with the first row

    def follow(self, output_ids: Sequence[int], vocab_size: int) -> None:
        """Set the output that the next row follows."""
        if not len(self._seen) or list(output_ids[: len(self._marked)]) != self._marked:
            self._seen = np.zeros(vocab_size, dtype=np.bool_)
            self._seen[self._prompt_ids] = True
            self._marked = []
        self.extend(output_ids[len(self._marked) :])

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add tokens to the output that the next row follows."""
        self._seen[list(token_ids)] = True
        self._marked += token_ids

    def apply(self, row: Row) -> None:
        """Change `row` in place."""
        ids = np.flatnonzero(self._seen)
        scores = row[ids]
        with np.errstate(over="ignore"):  # to -inf: never chosen
            row[ids] = np.where(scores < 0, scores * self._penalty, scores / self._penalty)

    def apply_rows(self, logits: Tensor, draft: Sequence[int]) -> None:
        """Change float32 logits [num_rows, vocab_size] in place, on any device; row i also follows `draft[:i]`."""
        seen = upload(torch.from_numpy(self._seen.copy()), logits.device).expand(len(logits), -1).clone()
        rows = [row for row in range(len(logits)) for _ in draft[:row]]
        ids = [token_id for row in range(len(logits)) for token_id in draft[:row]]
        if ids:
            seen[upload(torch.tensor(rows), logits.device), upload(torch.tensor(ids), logits.device)] = True
        penalty = float(self._penalty)
        logits.copy_(torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits))


def token_logprob(row: Row, token_id: int, num_top: int) -> TokenLogprob:
    """Return the log-probabilities of `token_id` and of the `num_top` most likely tokens, best first; of equal ones the
    first id first.

    row: finite at its largest, after bias and penalty. The sum over the vocabulary is in float64.
    """
    largest = row.max()
    norm = float(largest) + math.log(np.exp(row - largest).sum(dtype=np.float64))
    likeliest = [int(row.argmax())] if num_top == 1 else []
    if num_top > 1:
        ids = top_k(row, num_top)
        likeliest = ids[np.argsort(-row[ids], kind="stable")][:num_top].tolist()
    return TokenLogprob(
        token_id, float(row[token_id]) - norm, tuple((id_, float(row[id_]) - norm) for id_ in likeliest)
    )


NOISE = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 2.0**-18}
"""How far two logits of a row move against each other, relative to the largest, when the row runs among other rows."""


def is_near_tie(found: TopTokens, dtype: torch.dtype) -> NDArray[np.bool_]:
    """Return for each row whether another token might be chosen in other company: bool [num_rows].

    dtype: of the model's activations. The bound was measured, not proved (docs/engine.md). A row whose largest logit is
    not finite is none.
    """
    with np.errstate(invalid="ignore"):
        return found.gaps <= NOISE[dtype] * np.abs(found.largest)


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


def compute_distribution(row: Row, request: GenerationRequest) -> tuple[Ids | None, Row]:
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


def hide_unlikely(logits: Tensor, requests: Sequence[GenerationRequest]) -> None:
    """Set to -inf what a request's top-k, top-p and min-p leave out, in place and without waiting for the device.

    logits: [num_rows, vocab_size]; row i is one of `requests[i]`, whose temperature is above 0. What stays is what
    `compute_distribution` keeps. A row whose largest logit is not finite stays as it is.
    """
    width = logits.shape[1]

    def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return upload(torch.tensor(values, dtype=dtype)[:, None], logits.device)

    temperatures = column([max(each.temperature, LEAST_TEMPERATURE) for each in requests], torch.float32)
    num_kept = column([each.top_k if 0 < each.top_k < width else width for each in requests], torch.int64)
    shares = column([each.top_p if each.top_p < 1.0 else math.inf for each in requests], torch.float64)
    least = column([each.min_p for each in requests], torch.float32)
    scores = logits.float()
    ranked = scores.sort(dim=1, descending=True).values
    top = ranked[:, :1]
    least_score = ranked.gather(1, num_kept - 1)
    in_top = scores >= least_score
    weights = torch.where(in_top, ((scores - top) / temperatures).exp(), 0.0)
    descending = torch.where(ranked >= least_score, ((ranked - top) / temperatures).exp(), 0.0)
    mass = descending.cumsum(dim=1, dtype=torch.float64)
    num_kept = torch.searchsorted(mass, shares * mass[:, -1:]).clamp(max=width - 1) + 1
    border = descending.gather(1, num_kept - 1)
    is_more, is_equal = weights > border, weights == border
    num_equal = num_kept - is_more.sum(dim=1, keepdim=True)
    stays = in_top & (is_more | (is_equal & (is_equal.cumsum(dim=1) <= num_equal))) & (weights >= least)
    logits.masked_fill_(~stays & top.isfinite(), -math.inf)


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
    def request(self) -> GenerationRequest:
        """The request whose tokens are chosen."""
        return self._request

    @property
    def needs_rows(self) -> bool:
        """Whether the request needs more of a row than its next token, or changes its logits."""
        return self._request.logprobs is not None or self._bias is not None or self._penalty is not None

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the most likely token of each row is all that the request needs, after forced ones."""
        return self._request.temperature == 0.0 and not self.needs_rows

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

    def guess(self, scores: Row, output_ids: Sequence[int], vocab_size: int) -> int:
        """Return the token that another model's scores, [vocab_size] or fewer, give after this output, with the random
        number by which the request's own token is drawn there.
        """
        row = np.full(vocab_size, -np.inf, dtype=np.float32)
        row[: len(scores)] = scores
        if self._penalty:
            self._penalty.follow(output_ids, vocab_size)
        return self._pick(self._process(row), len(output_ids))

    def change_rows(self, logits: Tensor, output_ids: Sequence[int], draft: Sequence[int]) -> None:
        """Apply bias and penalty to float32 logits [num_rows, vocab_size] in place, on any device, without waiting for
        it; row i follows `output_ids + draft[:i]`.
        """
        if self._bias:
            self._bias.apply_rows(logits)
        if self._penalty:
            self._penalty.follow(output_ids, logits.shape[-1])
            self._penalty.apply_rows(logits, draft)

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
        ids, weights = compute_distribution(row, self._request)
        place = draw(weights, uniform(self._request.seed, position))
        return place if ids is None else int(ids[place])
