"""What changes the logits themselves: the bias of single tokens, and the penalty on what was written already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError
from engine.sampling.rows import Row


class LogitBias:
    """Adds to the logits of some tokens (as `logit_bias` of OpenAI's API)."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = np.fromiter(bias.keys(), dtype=np.intp)
        self._values = np.fromiter(bias.values(), dtype=np.float32)

    def apply(self, row: Row) -> None:
        """Add to `row` in place. Raises RequestError where the vocabulary has no such token."""
        if self._ids.min() < 0 or self._ids.max() >= len(row):
            raise RequestError(f"logit_bias holds a token id outside [0, {len(row)})")
        row[self._ids] += self._values


class RepetitionPenalty:
    """Makes tokens of prompt and output less likely, once each (CTRL: Keskar et al. 2019, arXiv 1909.05858, 4.1).

    Their logits are divided by the penalty where positive and multiplied where not, as in vLLM and transformers. Keeps
    a mark for each token of the vocabulary; what was marked for the last output is not marked again for a longer one.
    """

    def __init__(self, penalty: float, prompt_ids: Sequence[int]) -> None:
        self._penalty = np.float32(penalty)
        self._prompt_ids = np.asarray(prompt_ids, dtype=np.intp)
        self._marked: list[int] = []
        self._seen: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)  # [vocab_size], known with the first row

    def follow(self, output_ids: Sequence[int], vocab_size: int) -> None:
        """The next row to come follows the prompt and `output_ids`."""
        if not len(self._seen) or list(output_ids[: len(self._marked)]) != self._marked:
            self._seen = np.zeros(vocab_size, dtype=np.bool_)
            self._seen[self._prompt_ids] = True
            self._marked = []
        self.extend(output_ids[len(self._marked) :])

    def extend(self, token_ids: Sequence[int]) -> None:
        """The next row follows these, too."""
        self._seen[list(token_ids)] = True
        self._marked += token_ids

    def apply(self, row: Row) -> None:
        """Change `row` in place."""
        ids = np.flatnonzero(self._seen)
        scores = row[ids]
        with np.errstate(over="ignore"):  # to -inf: never chosen
            row[ids] = np.where(scores < 0, scores * self._penalty, scores / self._penalty)
