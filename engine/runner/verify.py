"""Verifies drafts: chooses the model's token after every known token and along each draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from engine.decoder import LM_HEAD_ROWS, Decoder
from engine.errors import NumericFault
from engine.sampling import Choice, Sampler, check_largest, is_near_tie
from engine.types import TokenLogprob
from kernels.accept import TopTokens, count_accepted, find_top_tokens


@dataclass(slots=True)
class Verification:
    """The choice to be made after one sequence's rows: row i of `hidden` follows `output_ids + draft[:i]`.

    `chosen` are the accepted tokens of the draft and the model's own token after them, filled by `verify`; a `fault`
    ends them. `near_ties` says of each whether it was a greedy choice that rounding may turn.
    """

    hidden: Tensor  # [len(draft) + 1, hidden_size]
    sampler: Sampler
    output_ids: Sequence[int]
    draft: Sequence[int]
    chosen: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    near_ties: list[bool] = field(default_factory=list)
    fault: NumericFault | None = None

    def __post_init__(self) -> None:
        self.chosen += self.sampler.get_forced_ids(len(self.output_ids), len(self.hidden))
        self.near_ties += [False] * len(self.chosen)

    @property
    def choice(self) -> Choice:
        """The chosen tokens and their log-probabilities."""
        return Choice(self.chosen, tuple(self.logprobs))

    @property
    def next_rows(self) -> Tensor:
        """The next block of rows to score; empty once the draft is accepted or a token of it rejected."""
        start = len(self.chosen)
        is_open = self.fault is None and self.chosen == self.draft[:start]
        return self.hidden[start : start + LM_HEAD_ROWS if is_open else start]

    @property
    def wants_logits(self) -> bool:
        """Whether the request needs more than the most likely tokens of its rows."""
        return not self.sampler.is_plain_greedy

    def take_logits(self, logits: Tensor) -> None:
        """Choose from the logits of `next_rows`."""
        if self.wants_logits:
            self._sample(logits)
        else:
            self.take(find_top_tokens(logits))

    def take(self, found: TopTokens, num_confirmed: int | None = None) -> None:
        """Choose the most likely tokens of the next rows, as far as they follow the draft, and one more.

        num_confirmed: how many of the draft's next tokens they equal, if that is known.
        """
        start = len(self.chosen)
        if num_confirmed is None:
            num_confirmed = count_accepted(found.token_ids, self.draft[start:])
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


def verify(model: Decoder, verifications: Sequence[Verification]) -> None:
    """Choose for all of them, with few passes of the LM head, and none over blocks of rows after a rejection.

    The LM head's weights are read once for up to LM_HEAD_ROWS rows of any sequences. Where the most likely tokens are
    enough, logits are in memory for a part of the vocabulary at a time, otherwise for LM_HEAD_ROWS rows.
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
    """Group the verifications so that each group has at most LM_HEAD_ROWS next rows."""
    piece: list[tuple[Verification, Tensor]] = []
    num_rows = 0
    for each, rows in active:
        if piece and num_rows + len(rows) > LM_HEAD_ROWS:
            yield piece
            piece, num_rows = [], 0
        piece.append((each, rows))
        num_rows += len(rows)
    yield piece
