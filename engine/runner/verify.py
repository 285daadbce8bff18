"""Verifies drafts: the model's choice after every known token and along each draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from engine.decoder import LM_HEAD_ROWS, Decoder
from engine.errors import NumericFault
from engine.sampling import Choice, Sampler, check_largest, is_near_tie
from engine.types import RowObserver, TokenLogprob
from kernels.accept import TopTokens, count_accepted, find_top_tokens


@dataclass(frozen=True, slots=True)
class BranchRows:
    """A draft's other way on: row i of `hidden` follows its first `at` tokens and `token_ids[: i + 1]`."""

    at: int
    token_ids: Sequence[int]
    hidden: Tensor  # [len(token_ids), hidden_size]

    @property
    def begins(self) -> tuple[int, int]:
        """How many tokens stand before it, and its first one."""
        return self.at, self.token_ids[0]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The likeliest tokens of all rows of a draft, or of its branch, and how many of its tokens they are."""

    likeliest: TopTokens
    num_accepted: int


@dataclass(slots=True)
class Verification:
    """One sequence's rows of a pass: row i of `hidden` follows `output_ids + draft[:i]`.

    Where the model departs from the draft to its `branch`, `hidden` and `draft` become those along the branch, as if
    nothing else had been drafted, and `took_branch` is set. `chosen` are the tokens that the draft's accepted part and
    the model's departure from it come to, filled by `verify`; a `fault` ends them. `near_ties` says of each whether it
    was a greedy choice that noise may turn. `num_scored` rows went through the LM head.
    """

    hidden: Tensor  # [len(draft) + 1, hidden_size]
    sampler: Sampler
    output_ids: Sequence[int]
    draft: Sequence[int]
    observer: RowObserver | None = None
    branch: BranchRows | None = None
    took_branch: bool = False
    num_scored: int = 0
    chosen: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    near_ties: list[bool] = field(default_factory=list)
    likeliest: list[int] = field(default_factory=list)
    fault: NumericFault | None = None

    def __post_init__(self) -> None:
        if not self.draft:
            self.observer = None
        self.chosen += self.sampler.settled(len(self.output_ids), len(self.hidden))
        self.likeliest += self.chosen
        self.near_ties += [False] * len(self.chosen)

    @property
    def choice(self) -> Choice:
        """What was chosen."""
        return Choice(self.chosen, tuple(self.logprobs))

    @property
    def next_rows(self) -> Tensor:
        """The next block of rows that are wanted; empty when the draft is confirmed or departed from, and as many rows
        behind the departure were seen as the observer wants.
        """
        start = end = 0
        if self.fault is None and self._on_track:
            start, end = len(self.chosen), len(self.hidden)
        elif self.fault is None and self.observer is not None:
            start = len(self.likeliest)
            end = len(self.chosen) + self.observer.rows_behind(len(self.chosen) - 1, len(self.draft))
        return self.hidden[start : max(start, min(end, start + LM_HEAD_ROWS))]

    @property
    def wants_logits(self) -> bool:
        """Whether the likeliest tokens of the next rows are not enough."""
        return self._on_track and not self.sampler.is_plain_greedy

    def take_logits(self, logits: Tensor) -> None:
        """Choose from the logits of `next_rows`."""
        if self.wants_logits:
            self.num_scored += len(logits)
            self._sample(logits)
            self._turn()
        else:
            self.take(find_top_tokens(logits))

    def take(self, found: TopTokens) -> None:
        """Choose the likeliest tokens of `next_rows`, as far as they follow the draft and one further."""
        self.num_scored += len(found.token_ids)
        if self._on_track:
            self._choose(found, count_accepted(found.token_ids, self.draft[len(self.chosen) :]))
        self._keep(found)
        self._turn()

    def take_all(self, draft: Confirmed, branch: Confirmed | None) -> None:
        """The same where all rows that are not settled, and those of the branch, were looked at together."""
        for side in (draft, branch):
            if side is not None:
                self.num_scored += len(side.likeliest.token_ids)
        self._choose(draft.likeliest, draft.num_accepted)
        self._keep(draft.likeliest)
        self._turn()
        if branch is not None and self.took_branch:
            self._choose(branch.likeliest, branch.num_accepted)
            self._keep(branch.likeliest)

    def show(self) -> None:
        """Let the observer see what the draft's rows came to."""
        if self.observer is not None:
            self.observer.observe(len(self.output_ids), self.draft, self.likeliest)

    @property
    def _on_track(self) -> bool:
        return self.chosen == self.draft[: len(self.chosen)]

    def _turn(self) -> None:
        """Go on along the branch, if it is there that the model has departed from the draft."""
        branch, at = self.branch, len(self.chosen) - 1
        if branch is None or self.took_branch or self._on_track or (at, self.chosen[at]) != branch.begins:
            return
        self.took_branch = True
        self.draft = [*self.draft[:at], *branch.token_ids]
        self.hidden = torch.cat([self.hidden[: at + 1], branch.hidden])
        del self.likeliest[at + 1 :]

    def _choose(self, found: TopTokens, num_confirmed: int) -> None:
        start = len(self.chosen)
        count = min(num_confirmed + 1, len(found.token_ids))
        try:
            for row, largest in enumerate(found.largest[:count].tolist()):
                check_largest(largest, row, f"output token {len(self.output_ids) + start + row}")
        except NumericFault as fault:
            self.fault = fault
            return
        self.chosen += found.token_ids[:count].tolist()
        self.near_ties += is_near_tie(found.select_rows(0, count), self.hidden.dtype).tolist()

    def _sample(self, logits: Tensor) -> None:
        start = len(self.chosen)
        try:
            choice = self.sampler.choose(logits, [*self.output_ids, *self.draft[:start]], self.draft[start:])
        except NumericFault as fault:
            self.fault = fault
            return
        self.chosen += choice.token_ids
        self.near_ties += [False] * len(choice.token_ids)
        self.logprobs += choice.logprobs
        if self.observer is not None:
            self._keep(find_top_tokens(logits))

    def _keep(self, found: TopTokens) -> None:
        """For the observer; behind what is no number nothing is shown."""
        if self.observer is None:
            return
        if np.isfinite(found.largest).all():
            self.likeliest += found.token_ids.tolist()
        else:
            self.observer = None


def verify(model: Decoder, verifications: Sequence[Verification]) -> None:
    """Choose for all of them, with few passes of the LM head, and none over rows behind a departure that nobody wants.

    The LM head's weights are read once for up to LM_HEAD_ROWS rows, whomever they belong to. Where the likeliest
    tokens are all that is asked for, their logits are in memory for a part of the vocabulary at a time; else those of
    LM_HEAD_ROWS rows are.
    """
    while active := [(each, rows) for each in verifications if len(rows := each.next_rows)]:
        for piece in _pieces(active):
            sizes = [len(rows) for _, rows in piece]
            hidden = piece[0][1] if len(piece) == 1 else torch.cat([rows for _, rows in piece])
            if any(each.wants_logits for each, _ in piece):
                for (each, _), logits in zip(piece, torch.split(model.logits(hidden), sizes), strict=True):
                    each.take_logits(logits)
            else:
                found = model.likeliest(hidden)
                for (each, _), (first, last) in zip(piece, pairwise(accumulate(sizes, initial=0)), strict=True):
                    each.take(found.select_rows(first, last))


def _pieces(active: Sequence[tuple[Verification, Tensor]]) -> Iterator[list[tuple[Verification, Tensor]]]:
    """Groups whose next rows are LM_HEAD_ROWS or fewer together."""
    piece: list[tuple[Verification, Tensor]] = []
    num_rows = 0
    for each, rows in active:
        if piece and num_rows + len(rows) > LM_HEAD_ROWS:
            yield piece
            piece, num_rows = [], 0
        piece.append((each, rows))
        num_rows += len(rows)
    yield piece
