"""Drafts that know too much, nothing, or exactly the wrong thing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.types import Draft


@dataclass
class Oracle:
    """Proposes what the model is known to write."""

    target: Sequence[int]
    hazard: float = 0.01

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.from_tokens(self.target[len(output_ids) : len(output_ids) + max_tokens], hazard=self.hazard)


@dataclass
class AlwaysWrong:
    """Proposes what the model is known not to write, at every place."""

    target: Sequence[int]
    vocab_size: int

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        right = Oracle(self.target).propose(output_ids, max_tokens).token_ids
        return Draft.from_tokens([(token_id + 1) % self.vocab_size for token_id in right])


class RandomDraft:
    """Proposes any ids, any number of them, more than were asked for too; now and then some right ones first."""

    def __init__(self, target: Sequence[int], vocab_size: int, seed: int) -> None:
        self._oracle = Oracle(target)
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        num_right = self._random.choice([0, 0, 1, 3, 9])
        num_random = self._random.randrange(0, 12)
        right = self._oracle.propose(output_ids, num_right).token_ids
        return Draft.from_tokens([*right, *(self._random.randrange(self._vocab_size) for _ in range(num_random))])
