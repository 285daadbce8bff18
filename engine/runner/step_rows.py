"""Which rows a pass runs of each sequence, what they look back on, and where their KV goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from engine.batch import Batch, runs_of
from engine.cuda.sequence_rows import Fork, SequenceRows
from engine.generation import Generation
from engine.kv_pool import KVPool, PoolView, SlotRange
from engine.paging import KVPages, page_runs
from engine.scheduling import Sequence as ScheduledSequence
from engine.verification import BranchRows, Verification


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
