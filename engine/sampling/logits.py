"""Logits of one row: checks, processors, filters and log-probabilities.

Sampling works on one row at a time, in numpy and on one thread: numpy sorts and partitions float32 with vector
instructions (151,936 values in 0.3 ms, where torch.sort takes 20), no sum depends on the number of threads or on other
rows, and no row waits for a second thread on a busy machine (which cost up to 20 ms a row).

Each filter takes one number for each token and returns the indices of those that stay, ascending. None of them sorts
the vocabulary's ids: a border value is found by partition or by sorting values alone, and the rest is a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import NumericFault, RequestError
from engine.types import TokenLogprob
from kernels.accept import TopTokens

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


def token_logprob(row: Row, token_id: int, num_top: int) -> TokenLogprob:
    """Return the log-probabilities of `token_id` and of the `num_top` most likely tokens, best first; of equal ones the
    first id first.

    row: finite at its largest, after bias and penalty. The sum over the vocabulary is in float64.
    """
    largest = row.max()
    norm = float(largest) + math.log(np.exp(row - largest).sum(dtype=np.float64))
    likeliest: list[int] = []
    if num_top:
        ids = top_k(row, num_top)
        likeliest = ids[np.argsort(-row[ids], kind="stable")][:num_top].tolist()
    return TokenLogprob(
        token_id, float(row[token_id]) - norm, tuple((id_, float(row[id_]) - norm) for id_ in likeliest)
    )


NOISE = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 2.0**-18}
"""How far two logits of a row move against each other, relative to the largest, when the row runs among other rows."""


def is_near_tie(found: TopTokens, dtype: torch.dtype) -> NDArray[np.bool_]:
    """Return for each row whether another token might be chosen in other company: bool [num_rows].

    dtype: of the model's activations. The bound was measured, not proved (docs/engine.md).
    """
    return found.gaps <= NOISE[dtype] * np.abs(found.largest)
