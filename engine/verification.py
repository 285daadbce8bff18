"""From hidden states to tokens: what the model chooses behind every sequence's known tokens and along its draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.errors import NumericFault
from engine.model import LM_HEAD_ROWS, Decoder
from engine.sampling import Choice, Sampler, greedy
from engine.types import RowObserver, TokenLogprob


@dataclass(slots=True)
class Verification:
    """One sequence's rows of a pass: row i of `hidden` follows `output_ids + draft[:i]`.

    `chosen` are the tokens that the draft's accepted part and the model's departure from it come to, filled by
    `verify`; with a `fault` there are none.
    """

    hidden: Tensor  # [len(draft) + 1, hidden_size]
    sampler: Sampler
    output_ids: Sequence[int]
    draft: Sequence[int]
    observer: RowObserver | None = None
    chosen: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    likeliest: list[int] = field(default_factory=list)
    fault: NumericFault | None = None

    def __post_init__(self) -> None:
        if not self.draft:
            self.observer = None
        self.chosen += self.sampler.settled(len(self.output_ids), len(self.hidden))
        self.likeliest += self.chosen

    @property
    def choice(self) -> Choice:
        """What was chosen."""
        return Choice(self.chosen, tuple(self.logprobs))

    @property
    def next_rows(self) -> Tensor:
        """The next block of rows whose logits are wanted; empty when the draft is confirmed or departed from, and as
        many rows behind the departure were seen as the observer wants.
        """
        start = end = 0
        if self.fault is None and self._on_track:
            start, end = len(self.chosen), len(self.hidden)
        elif self.fault is None and self.observer is not None:
            rows_behind = self.observer.rows_behind(len(self.chosen) - 1, len(self.draft))
            start, end = len(self.likeliest), len(self.chosen) + rows_behind
        return self.hidden[start : max(start, min(end, start + LM_HEAD_ROWS))]

    def take(self, logits: Tensor) -> None:
        """Choose from the logits of `next_rows`."""
        if self.observer is not None:
            self._observe(logits)
        if self._on_track:
            self._choose(logits)

    def show(self) -> None:
        """Let the observer see what the draft's rows came to."""
        if self.observer is not None and self.fault is None:
            self.observer.observe(len(self.output_ids), self.draft, self.likeliest)

    @property
    def _on_track(self) -> bool:
        return self.chosen == self.draft[: len(self.chosen)]

    def _observe(self, logits: Tensor) -> None:
        try:
            self.likeliest += greedy(logits)
        except NumericFault:  # a row that is needed fails the request; behind it nothing is shown
            self.observer = None

    def _choose(self, logits: Tensor) -> None:
        start = len(self.chosen)
        expected = self.draft[start:]
        try:
            if self.sampler.is_plain_greedy:
                self.chosen += _greedy_along(logits, expected)
                return
            choice = self.sampler.choose(logits, [*self.output_ids, *self.draft[:start]], expected)
        except NumericFault as fault:
            self.fault = fault
        else:
            self.chosen += choice.token_ids
            self.logprobs += choice.logprobs


def verify(model: Decoder, verifications: Sequence[Verification]) -> None:
    """Choose for all of them, with few passes of the LM head, and none over rows behind a departure.

    The LM head's weights are read once for up to LM_HEAD_ROWS rows, whomever they belong to; the logits of more are
    never in memory at once.
    """
    while active := [each for each in verifications if len(each.next_rows)]:
        for piece in _pieces(active):
            blocks = [each.next_rows for each in piece]
            logits = model.logits(blocks[0] if len(blocks) == 1 else torch.cat(blocks))
            for each, part in zip(piece, torch.split(logits, [len(block) for block in blocks]), strict=True):
                each.take(part)


def _pieces(active: Sequence[Verification]) -> Iterator[list[Verification]]:
    """Groups whose next rows are LM_HEAD_ROWS or fewer together."""
    piece: list[Verification] = []
    num_rows = 0
    for each in active:
        if piece and num_rows + len(each.next_rows) > LM_HEAD_ROWS:
            yield piece
            piece, num_rows = [], 0
        piece.append(each)
        num_rows += len(each.next_rows)
    yield piece


def _greedy_along(logits: Tensor, draft: Sequence[int]) -> list[int]:
    """The likeliest tokens as far as they follow the draft, and the first that departs from it."""
    chosen = greedy(logits)
    for count, token_id in enumerate(chosen, start=1):
        if list(draft[count - 1 : count]) != [token_id]:
            return chosen[:count]
    return chosen
