"""The rows of one step: which tokens each sequence runs, and how many of them are drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.decoder import Batch, runs_of
from engine.kv_cache import KVPages, page_runs
from engine.kv_pool import KVPool, PoolView, SlotRange
from engine.request import Generation
from engine.runner.verify import BranchRows, Verification
from engine.scheduler import Sequence as ScheduledSequence
from engine.scheduler.scheduler import shares
from engine.speculation.draft_length import branch_length, chosen_lengths
from engine.speculation.step_times import PassTimes
from kernels.paged_attention import TREE_BITS


class DraftRows:
    """Asked by the scheduler when it knows what else is in a step."""

    def __init__(
        self,
        live: Mapping[int, tuple[ScheduledSequence, Generation]],
        times: PassTimes,
        num_running: Callable[[], int],
    ) -> None:
        """`live` are all requests that are not over, by id; it is looked into whenever a step is made."""
        self._live = live
        self._times = times
        self._num_running = num_running

    def lengths(self, sequences: Sequence[ScheduledSequence], num_scheduled: int, num_left: int) -> list[int]:
        """How far to follow each one's draft; what is forced is no guess, and goes first."""
        forced = [self._generation(each).is_forced for each in sequences]
        lengths = shares([each.num_draftable * is_so for each, is_so in zip(sequences, forced, strict=True)], num_left)
        num_forced, num_running = sum(lengths), self._num_running()
        guessed = [place for place, is_so in enumerate(forced) if not is_so]
        guesses = [
            self._generation(sequences[place]).drafting.guess(sequences[place].num_draftable, num_running)
            for place in guessed
        ]
        chosen = chosen_lengths(guesses, num_scheduled + num_forced, num_running, num_left - num_forced, self._times)
        for place, length in zip(guessed, chosen, strict=True):
            lengths[place] = length
        return lengths

    def branches(
        self, drafted: Sequence[tuple[ScheduledSequence, int]], num_scheduled: int, num_left: int
    ) -> list[int]:
        """How much of the branch of each one's draft to run beside so many of the draft, one after the other."""
        lengths, num_running = [0] * len(drafted), self._num_running()
        for place, (sequence, num_drafted) in enumerate(drafted):
            drafting = self._generation(sequence).drafting
            guess = None if sequence.branch is None else drafting.guess_branch(num_drafted, num_running)
            if guess is not None:
                num_rows, room = num_scheduled + sum(lengths), num_left - sum(lengths)
                lengths[place] = branch_length(guess, num_rows, num_running, room, self._times)
        return lengths

    def _generation(self, sequence: ScheduledSequence) -> Generation:
        return self._live[sequence.id][1]


Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fork:
    """A draft's branch: its tokens stand at the positions from `at` on and lie in the places from `start` on."""

    at: int
    start: int
    num_tokens: int


class SequenceRows:
    """The rows of one sequence and its draft, and behind them those of its branch.

    A place is where a token's KV lies in the sequence's pages. It is the token's position, but for the branch, whose
    tokens lie behind the draft's. What a row sees are the places up to its own, of these the last `window`; one behind
    the fork sees those of its own side, which a tree mask says.
    """

    def __init__(
        self, token_ids: Sequence[int], positions: Sequence[int], table: Sequence[int], fork: Fork | None = None
    ) -> None:
        """`positions` are those of all rows, ascending up to the branch; `table` is the sequence's page table."""
        self.token_ids = np.asarray(token_ids, dtype=np.int64)
        self.positions = np.asarray(positions, dtype=np.int64)
        self.pages = np.asarray(table, dtype=np.int32)
        self.fork = fork

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def num_places(self) -> int:
        """Places up to the last one that holds a key."""
        return int(self.positions[-1]) + 1 + (0 if self.fork is None else self.fork.start - self.fork.at)

    @property
    def places(self) -> Numbers:
        """Where each row's KV is written."""
        if self.fork is None:
            return self.positions
        places = self.positions.copy()
        places[-self.fork.num_tokens :] += self.fork.start - self.fork.at
        return places

    def slots(self, page_size: int) -> Numbers:
        """The places as slots of the pool."""
        places = self.places
        return self.pages[places // page_size].astype(np.int64) * page_size + places % page_size

    def tree_start(self, window: int | None) -> int:
        """The place from which on a mask says what is seen; a window moves with each row, so its mask has all."""
        if self.fork is None:
            return self.num_places
        return self.fork.at if window is None else max(0, int(self.positions[0]) + 1 - window)

    def num_words(self, window: int | None) -> int:
        """Words of the mask: none without a fork."""
        return -(-(self.num_places - self.tree_start(window)) // TREE_BITS)

    def key_ends(self, window: int | None) -> Numbers:
        """The place behind the last one that each row sees without its mask."""
        if self.fork is not None and window is not None:
            return np.zeros_like(self.positions)
        return np.minimum(self.positions + 1, self.tree_start(window))

    def tree(self, window: int | None, num_words: int) -> Numbers:
        """The mask, [num_rows, num_words].

        With 3 tokens behind a fork at place 10 and a branch of 2, whose places are 13 and 14, the rows have
        00001, 00011, 00111 and 01000, 11000: bit k is place 10 + k.
        """
        if self.fork is None:
            return np.zeros((self.num_rows, num_words), dtype=np.int64)
        fork, start = self.fork, self.tree_start(window)
        first_seen = np.zeros_like(self.positions) if window is None else np.maximum(self.positions + 1 - window, 0)
        is_branch = np.arange(self.num_rows) >= self.num_rows - fork.num_tokens
        own_first = np.where(is_branch, fork.start + np.maximum(first_seen - fork.at, 0), first_seen)
        shared_end = np.where(is_branch, fork.at, 0)
        return _bits(own_first - start, self.places + 1 - start, num_words) | _bits(
            first_seen - start, shared_end - start, num_words
        )


def _bits(first: Numbers, end: Numbers, num_words: int) -> Numbers:
    """Words in which the bits [first, end) of each row are set, as far as they are not below 0."""
    before = np.arange(num_words) * TREE_BITS
    low, high = (np.clip(border[:, None] - before, 0, TREE_BITS).astype(np.uint64) for border in (first, end))
    one = np.uint64(1)
    words: Numbers = ((one << np.maximum(low, high)) - (one << low)).astype(np.int64)
    return words


@dataclass(frozen=True)
class PassRows:
    """One sequence's rows of a pass: the first of its pending tokens, all of them and of its draft, or its branch, too.

    In its pages the branch's tokens lie behind the draft's, each at a place of its own; their positions are those
    behind the token at which they part from it, up to which they look back on what the draft's rows have written in
    the same layer. So a tree of one fork takes no mask: its second side is a row group of its own.
    """

    sequence: ScheduledSequence
    generation: Generation
    num_pending: int
    num_drafted: int
    num_branched: int

    @classmethod
    def of(cls, sequence: ScheduledSequence, generation: Generation, num_tokens: int) -> PassRows:
        """`num_tokens` is what the schedule has for it."""
        num_pending = min(num_tokens, sequence.num_pending)
        num_branched = sequence.num_branched
        return cls(sequence, generation, num_pending, num_tokens - num_pending - num_branched, num_branched)

    @property
    def num_guessed(self) -> int:
        """Rows that plain decoding does not run."""
        return self.num_drafted + self.num_branched

    @property
    def group_sizes(self) -> list[int]:
        """Rows of the sequence and its draft, and of the branch, if there is one."""
        return [self.num_pending + self.num_drafted, *([self.num_branched] if self.num_branched else [])]

    @cached_property
    def positions(self) -> list[int]:
        """Of the sequence's rows and its draft's: neighbours, but where KV of earlier prompts was taken over."""
        return self.sequence.positions(self.num_pending + self.num_drafted)

    @property
    def groups(self) -> list[tuple[Sequence[int], list[int]]]:
        """The positions and the tokens: of the sequence and its draft, and of the branch."""
        token_ids = self.sequence.token_ids
        pending = [token_ids[position] for position in self.positions[: self.num_pending]]
        groups: list[tuple[Sequence[int], list[int]]] = [
            (self.positions, pending + self.sequence.draft[: self.num_drafted])
        ]
        if self.num_branched:
            groups.append((range(self._fork, self._fork + self.num_branched), list(self._branch_ids)))
        return groups

    def reads(self, pages: KVPages, window: int | None) -> Iterator[list[SlotRange]]:
        """The slots that each group looks back on, its own among them."""
        yield self._slots(pages, _first_key(self.positions[0], window), self._branch_start)
        if self.num_branched:
            before = self._slots(pages, _first_key(self._fork, window), self._fork)
            yield [*before, *self._branch_slots(pages, self.num_branched)]

    def writes(self, pages: KVPages) -> Iterator[list[SlotRange]]:
        """The slots of each group's own tokens."""
        yield [slots for first, end in runs_of(self.positions) for slots in self._slots(pages, first, end)]
        if self.num_branched:
            yield self._branch_slots(pages, self.num_branched)

    def on_pages(self, pages: KVPages) -> SequenceRows:
        """The same for attention that reads pages where they lie: both groups as one, with a mask for the fork."""
        fork = Fork(self._fork, self._branch_start, self.num_branched) if self.num_branched else None
        positions, token_ids = (list(chain.from_iterable(parts)) for parts in zip(*self.groups, strict=True))
        return SequenceRows(token_ids, positions, pages.page_table(self.sequence.id), fork)

    def verification(self, hidden: Sequence[Tensor]) -> Verification | None:
        """What is to be chosen behind the groups' rows; None behind a prompt's chunk that is not its last."""
        if self.num_pending < self.sequence.num_pending:
            return None
        generation, branch = self.generation, self.sequence.branch
        return Verification(
            hidden[0][self.num_pending - 1 :],
            generation.sampler,
            generation.output_ids,
            self.sequence.draft[: self.num_drafted],
            generation.observer,
            BranchRows(branch.at, self._branch_ids, hidden[1]) if branch is not None and self.num_branched else None,
        )

    def keep_branch(self, pages: KVPages, pool: KVPool, num_accepted: int) -> None:
        """Bring the KV of the branch's tokens, if of `num_accepted` ones any are its, to where the output has them.

        It has to be done before they are committed.
        """
        branch = self.sequence.branch
        assert branch is not None, "no branch was followed"
        num_own = num_accepted - branch.at
        if num_own > 0:
            pool.move(self._branch_slots(pages, num_own), self._slots(pages, self._fork, self._fork + num_own))

    @property
    def _branch_ids(self) -> Sequence[int]:
        assert self.sequence.branch is not None, "tokens of no branch are in the step"
        return self.sequence.branch.token_ids[: self.num_branched]

    @property
    def _fork(self) -> int:
        """The position of the branch's first token."""
        assert self.sequence.branch is not None, "tokens of no branch are in the step"
        return len(self.sequence.token_ids) + self.sequence.branch.at

    @property
    def _branch_start(self) -> int:
        """The place in the sequence's pages behind those of the draft."""
        return self.positions[-1] + 1

    def _branch_slots(self, pages: KVPages, num_tokens: int) -> list[SlotRange]:
        return self._slots(pages, self._branch_start, self._branch_start + num_tokens)

    def _slots(self, pages: KVPages, first: int, end: int) -> list[SlotRange]:
        return page_runs(pages.page_table(self.sequence.id), pages.page_size, first, end)


def batch_of(rows: Sequence[PassRows], pages: KVPages, pool: KVPool, window: int | None) -> tuple[Batch, PoolView]:
    """All rows of a pass, group by group, and their view of the pool."""
    batch = Batch.of(
        [group for each in rows for group in each.groups],
        pool.device,
        [each.generation.adapter for each in rows for _ in each.groups],
    )
    reads = list(chain.from_iterable(each.reads(pages, window) for each in rows))
    writes = list(chain.from_iterable(each.writes(pages) for each in rows))
    return batch, pool.view(reads, writes)


def verifications(rows: Sequence[PassRows], hidden: Tensor) -> list[Verification | None]:
    """What is to be chosen for each, `hidden` being what the pass gave the rows of all."""
    groups = iter(torch.split(hidden, [size for each in rows for size in each.group_sizes]))
    return [each.verification([next(groups) for _ in each.group_sizes]) for each in rows]


def _first_key(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position + 1 - window)
