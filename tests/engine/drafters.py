"""Drafts that know too much, nothing, or exactly the wrong thing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.types import Draft, DraftBranch


@dataclass
class Oracle:
    """Proposes what the model is known to write."""

    target: Sequence[int]
    hazard: float = 0.01

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.of(self.target[len(output_ids) : len(output_ids) + max_tokens], hazard=self.hazard)


@dataclass
class AlwaysWrong:
    """Proposes what the model is known not to write, at every place."""

    target: Sequence[int]
    vocab_size: int

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        right = Oracle(self.target).propose(output_ids, max_tokens).token_ids
        return Draft.of([(token_id + 1) % self.vocab_size for token_id in right])


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
        return Draft.of([*right, *(self._random.randrange(self._vocab_size) for _ in range(num_random))])


class Forking:
    """Proposes a draft and another way on, either of which may be right: up to the fork, behind it, or nowhere.

    Whatever it proposes it is sure of, so that both are run where rows are cheap.
    """

    def __init__(self, target: Sequence[int], vocab_size: int, seed: int) -> None:
        self._target = target
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        rest, draw = list(self._target[len(output_ids) :]), self._random
        at = draw.choice([0, 0, 1, 2, 5, len(rest) - 1, max_tokens - 1, max_tokens])
        at = max(0, min(at, len(rest)))
        kept = rest[at : at + draw.choice([1, 2, 6, 99])]
        other = self._wrong(rest[at : at + 1]) + draw.choice([[], rest[at : at + 9], rest[at + 1 : at + 9]])
        beyond = [draw.randrange(self._vocab_size) for _ in range(draw.choice([0, 0, 3]))]
        spoilt = kept[:1] + self._wrong(kept[1:2]) + kept[2:]
        trunk, branch = draw.choice([(other, kept + beyond), (other, spoilt), (kept + beyond, other), (kept, kept)])
        draft = Draft.of([*rest[:at], *trunk], "trunk", hazard=1e-6)
        return replace(draft, branch=DraftBranch(at, branch, 1.0, hazard=1e-6) if branch else None)

    def _wrong(self, token_ids: Sequence[int]) -> list[int]:
        return [(token_id + 1) % self._vocab_size for token_id in token_ids]


@dataclass
class Fork:
    """Proposes one fork, at the output's beginning; `shown` is what it is shown of it."""

    trunk: Sequence[int]
    at: int
    branch: Sequence[int]
    shown: list[tuple[int, list[int], list[int]]] = field(default_factory=list)

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        if output_ids:
            return Draft((), ())
        return replace(
            Draft.of(self.trunk, "trunk", 1e-6), branch=DraftBranch(self.at, self.branch, 1.0, "other", 1e-6)
        )
