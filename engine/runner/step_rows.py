"""The rows of one step: the pending and draft tokens of each sequence, and the verification of the drafts."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.decoder import LM_HEAD_ROWS, Batch, Decoder, find_ranges
from engine.errors import NumericFault
from engine.kv_cache import KVPages, page_runs
from engine.kv_pool import KVPool, PoolView, SlotRange
from engine.layers import Adapter, AdapterRows
from engine.request import RequestState
from engine.sampling import Sampler, check_largest, is_near_tie
from engine.scheduler import ScheduledSequence
from engine.types import TokenLogprob
from kernels.accept import TopTokens, count_accepted, find_top_tokens


@dataclass(slots=True)
class Verification:
    """The choice to be made after the rows of one sequence: row `first_row + i` of `hidden` follows
    `output_ids + draft[:i]`.

    hidden: of all rows of a pass. chosen: the accepted tokens of the draft and the model's own token after them, filled
    by `verify`; a `fault` ends them. near_ties: of each whether it was a greedy choice that rounding may turn.
    """

    hidden: Tensor  # [rows of the pass, hidden_size]
    sampler: Sampler
    output_ids: Sequence[int]
    draft: Sequence[int]
    first_row: int = 0
    chosen: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    near_ties: list[bool] = field(default_factory=list)
    fault: NumericFault | None = None

    def __post_init__(self) -> None:
        self.chosen += self.sampler.get_forced_ids(len(self.output_ids), len(self.draft) + 1)
        self.near_ties += [False] * len(self.chosen)

    @property
    def next_rows(self) -> range:
        """The rows of `hidden` that are to be scored; none once the draft is accepted or a token of it rejected."""
        start, end = self.first_row + len(self.chosen), self.first_row + len(self.draft) + 1
        is_open = self.fault is None and self.chosen == self.draft[: len(self.chosen)]
        return range(start, end if is_open else start)

    @property
    def wants_logits(self) -> bool:
        """Whether the request needs more than the most likely tokens of its rows."""
        return not self.sampler.is_plain_greedy

    def take_logits(self, logits: Tensor) -> None:
        """Choose from the logits of the first of `next_rows`."""
        if self.wants_logits:
            self._sample(logits)
        else:
            self.take(find_top_tokens(logits))

    def take(self, found: TopTokens, num_confirmed: int | None = None) -> None:
        """Choose the tokens that were found for the next rows, as far as they follow the draft, and one more.

        found: the most likely tokens, or those that were drawn, with the largest logits. num_confirmed: how many of the
        draft's next tokens they equal, if that is known.
        """
        if num_confirmed is None:
            num_confirmed = count_accepted(found.token_ids, self.draft[len(self.chosen) :])
        first = found.select_rows(0, num_confirmed + 1)
        ties = is_near_tie(first, self.hidden.dtype)
        self.accept(first.token_ids.tolist(), first.largest.tolist(), ties.tolist())

    def accept(self, token_ids: list[int], largest: list[float], near_ties: list[bool]) -> None:
        """Take the tokens after the next rows; `largest` are the rows' largest logits, which must be finite.

        near_ties: whether rounding may turn a greedy choice of these rows.
        """
        start = len(self.output_ids) + len(self.chosen)
        try:
            for row, value in enumerate(largest):
                if not math.isfinite(value):
                    check_largest(value, row, f"output token {start + row}")
        except NumericFault as fault:
            self.fault = fault
            return
        self.chosen += token_ids
        is_greedy = self.sampler.request.temperature == 0.0
        self.near_ties += near_ties if is_greedy else [False] * len(token_ids)

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
    while active := [(each, rows[:LM_HEAD_ROWS]) for each in verifications if (rows := each.next_rows)]:
        for piece in _group_rows(active):
            sizes = [len(rows) for _, rows in piece]
            parts = [each.hidden[rows.start : rows.stop] for each, rows in piece]
            hidden = parts[0] if len(parts) == 1 else torch.cat(parts)
            if any(each.wants_logits for each, _ in piece):
                for (each, _), logits in zip(piece, torch.split(model.logits(hidden), sizes), strict=True):
                    each.take_logits(logits)
            else:
                found = model.likeliest(hidden)
                for (each, _), (first, last) in zip(piece, pairwise(accumulate(sizes, initial=0)), strict=True):
                    each.take(found.select_rows(first, last))


def _group_rows(active: Sequence[tuple[Verification, range]]) -> Iterator[list[tuple[Verification, range]]]:
    """Group the verifications so that each group has at most LM_HEAD_ROWS next rows."""
    piece: list[tuple[Verification, range]] = []
    num_rows = 0
    for each, rows in active:
        if piece and num_rows + len(rows) > LM_HEAD_ROWS:
            yield piece
            piece, num_rows = [], 0
        piece.append((each, rows))
        num_rows += len(rows)
    yield piece


Numbers = NDArray[np.int64]


class PagedRows:
    """The rows of one sequence and its draft: their tokens and positions, and the sequence's page table.

    Row r attends to the sequence's keys up to its own position, of these the last `window` if there is one.
    """

    __slots__ = ("pages", "positions", "token_ids")

    def __init__(self, token_ids: Sequence[int], positions: Sequence[int], table: Sequence[int]) -> None:
        """`positions` ascend. The table is quickest if it is an array of 32-bit integers."""
        self.token_ids = token_ids
        self.positions = positions
        self.pages = table

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def seq_len(self) -> int:
        """Tokens of the sequence up to its last row."""
        return self.positions[-1] + 1


@dataclass(slots=True, eq=False)
class StepRows:
    """One sequence's rows of a step: the first of its pending tokens, or all of them and the first of its draft.

    positions: those of the rows: neighbours, except where reused KV of earlier prompts lies between them.
    """

    sequence: ScheduledSequence
    state: RequestState
    num_pending: int
    num_drafted: int
    positions: list[int]

    @classmethod
    def from_schedule(cls, sequence: ScheduledSequence, state: RequestState, num_tokens: int) -> StepRows:
        """Return the rows of a sequence for which the schedule has `num_tokens`."""
        num_pending = min(num_tokens, sequence.num_pending)
        return cls(sequence, state, num_pending, num_tokens - num_pending, sequence.positions(num_tokens))

    @property
    def num_rows(self) -> int:
        return self.num_pending + self.num_drafted

    @property
    def num_bare(self) -> int:
        """The first rows, which are those of tokens before an adapter's start; all of them if it has none."""
        return bisect_left(self.positions, self.sequence.num_bare) if self.sequence.mark else self.num_rows

    @property
    def adapters(self) -> Sequence[tuple[Adapter | None, int]]:
        """The adapters of neighbouring rows, and how many rows have each."""
        if self.sequence.mark:
            return (None, self.num_bare), (self.state.adapter, self.num_rows - self.num_bare)
        return ((self.state.adapter, self.num_rows),)

    @property
    def token_ids(self) -> list[int]:
        known, first = self.sequence.token_ids, self.positions[0]
        if self.sequence.scattered:
            pending = [known[position] for position in self.positions[: self.num_pending]]
        else:
            pending = known[first : first + self.num_pending]
        return pending + self.sequence.draft[: self.num_drafted] if self.num_drafted else pending

    def list_reads(self, pages: KVPages, window: int | None) -> list[SlotRange]:
        """Return the slots that the rows attend to, including their own."""
        first = self.positions[0]
        return self._find_slots(pages, 0 if window is None else max(0, first + 1 - window), self.positions[-1] + 1)

    def list_writes(self, pages: KVPages) -> list[SlotRange]:
        """Return the slots of the rows' own tokens."""
        return [slots for first, end in find_ranges(self.positions) for slots in self._find_slots(pages, first, end)]

    def to_paged_rows(self, pages: KVPages) -> PagedRows:
        """Return the same rows for attention that reads pages in place."""
        return PagedRows(self.token_ids, self.positions, pages.page_table(self.sequence.id))

    def to_verification(self, hidden: Tensor, first_row: int) -> Verification | None:
        """Return the choice to be made after the rows, whose hidden states begin at `first_row`; None after a prompt
        chunk that is not the last.
        """
        if self.num_pending < self.sequence.num_pending:
            return None
        state, draft = self.state, self.sequence.draft[: self.num_drafted]
        return Verification(hidden, state.sampler, state.output_ids, draft, first_row + self.num_pending - 1)

    def _find_slots(self, pages: KVPages, first: int, end: int) -> list[SlotRange]:
        return page_runs(pages.page_table(self.sequence.id), pages.page_size, first, end)


def build_batch(rows: Sequence[StepRows], pages: KVPages, pool: KVPool, window: int | None) -> tuple[Batch, PoolView]:
    """Return the batch of all rows of a pass, sequence by sequence, and its view of the pool."""
    batch = Batch.from_chunks(
        [(each.positions, each.token_ids) for each in rows],
        pool.device,
        AdapterRows.from_sequences(pair for each in rows for pair in each.adapters),
    )
    return batch, pool.view(
        [each.list_reads(pages, window) for each in rows], [each.list_writes(pages) for each in rows]
    )


def build_verifications(rows: Sequence[StepRows], hidden: Tensor) -> list[Verification | None]:
    """Return the choice to be made for each sequence; `hidden` are the hidden states of all rows."""
    firsts = accumulate((each.num_rows for each in rows), initial=0)
    return [each.to_verification(hidden, first) for each, first in zip(rows, firsts, strict=False)]
