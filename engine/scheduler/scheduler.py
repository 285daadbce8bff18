"""Decides how many tokens each sequence has in the next step."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass

from engine.kv_cache.block_manager import KVPages
from engine.kv_cache.prefix_cache import NO_PAGE
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.queue import Admission, TakeOver, WaitingQueue, ranking
from engine.scheduler.sequence import Sequence, Status


def shares(wanted: AbstractSequence[int], total: int) -> list[int]:
    """Equal shares of `total` tokens, none larger than what is wanted; what does not divide goes to the first.

    What one does not want the others share: `shares([5, 100, 100], 65) == [5, 30, 30]` and
    `shares([100, 100], 65) == [33, 32]`. In sum min(total, sum(wanted)).
    """
    level, left = 0, total
    for num_served, want in enumerate(sorted(wanted)):
        level = left // (len(wanted) - num_served)
        if want > level:
            break
        left -= want
    granted = [min(want, level) for want in wanted]
    left = total - sum(granted)
    for place, want in enumerate(wanted):
        extra = min(want - granted[place], left)
        granted[place] += extra
        left -= extra
    return granted


DraftLengths = Callable[[list[Sequence], int, int], list[int]]
"""How many draft tokens each of some sequences gets in a step that has so many tokens already and room for so many."""

BranchLengths = Callable[[list[tuple[Sequence, int]], int, int], list[int]]
"""How many tokens of its draft's branch each sequence gets beside so many of its draft, in such a step."""

LOOKAHEAD = 8
"""Waiting sequences without pages that are passed over in one step in search of one that has them."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """num_preempted: how often a sequence has lost its pages to another since the start."""

    num_waiting: int
    num_running: int
    num_preempted: int


class Scheduler:
    """Continuous batching without phases: a step is a number of tokens for each sequence (vLLM v1's idea).

    **Gap.** A running sequence with one pending token, which is one that decodes, has a place in every step. A step
    holds at most max_batched_tokens; in one in which anything decodes at most prefill_beside_decodes are of prompts
    (the others are one for each stream, and drafts). So between two tokens of a stream lie at most that many prompt
    tokens, however long the prompts are; only preemption makes a stream wait longer.

    **Prompts** share their part of a step equally. With n of them and p tokens for them (p >= n), one of s tokens is
    through after at most ceil(s / (p // n)) steps, whatever the length of the others.

    **Order.** Sequences have a rank (`ranking`), the same for admission and preemption. One that finds no pages may
    be overtaken max_overtaken times; then nobody behind it is admitted before it. Since the running ones end or lose
    their pages to those of smaller rank, it is admitted in the end.

    **Drafts** share what is left of a step as `lengths` has it, equally if nothing is said; what they leave, the
    branches of drafts get as `branches` has it, none if nothing is said. Who is alone, with nobody
    running or waiting beside it, may have max_drafted draft tokens beside max_batched_tokens of others: no stream has
    a gap from it, and who comes meanwhile waits for that one pass.

    **Preemption** is by recompute: if a running sequence finds no page for its next token, the one of the largest rank
    gives all its pages back and waits again, with its output and without its draft. The one of the smallest rank never
    is: each step takes it further, which is why there is no livelock. Drafts preempt nobody, and what is left of the
    pages of rejected ones is given back where somebody waits or a page is missing.

    Not thread-safe. The clock is read for deadlines only; equal calls give equal schedules.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pages: KVPages,
        clock: Callable[[], float] = time.monotonic,
        lengths: DraftLengths | None = None,
        branches: BranchLengths | None = None,
        take_over: TakeOver | None = None,
    ) -> None:
        self.config = config
        self._pages = pages
        self._clock = clock
        self._lengths = lengths or _equal_shares
        self._branches = branches or _no_branches
        self._rank = ranking(config.aging_s)
        self._admission = Admission(pages, config, take_over)
        self._sequences: dict[int, Sequence] = {}
        self._waiting = WaitingQueue(config.max_waiting, self._rank)
        self._running: list[Sequence] = []  # in order of rank
        self._scheduled: dict[int, int] = {}
        self._num_preempted = 0

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait. Raises DoesNotFit where it could never be finished, and QueueFull."""
        assert sequence.id not in self._sequences, f"sequence {sequence.id} is here already"
        assert sequence.status is Status.WAITING, f"sequence {sequence.id} was added before"
        self._admission.check(sequence)
        self._waiting.add(sequence)
        self._sequences[sequence.id] = sequence

    def schedule(self) -> dict[int, int]:
        """How many tokens of each sequence the next step holds: the first n > 0 of its pending tokens and its draft.

        The last `num_branched` of them are no more of the draft, but the first ones of its branch; they, too, have
        places in the sequence's pages, behind those of the draft.
        The copies that opening pages has queued (`KVPages.take_copies`) are to be made before the step. A step may be
        left undone, in whole or for some: they are scheduled again.
        """
        if self._waiting:
            self._give_back_drafted()
        self._make_room()
        self._admit()
        for each in self._running:
            each.num_branched = 0
        self._scheduled = {each.id: 1 for each in self._running if each.num_pending == 1}
        for sequence, share in self._prefill_shares():
            if num_tokens := min(share, self._num_covered(sequence) - sequence.num_computed):
                self._scheduled[sequence.id] = num_tokens
        self._schedule_drafts()
        return dict(self._scheduled)

    def advance(self, sequence_id: int, num_committed: int, new_ids: list[int]) -> None:
        """Take in what a step did: the KV of so many of its scheduled tokens is final, and `new_ids` come next.

        Behind a chunk of the prompt there are no new ids. Else they are the accepted draft tokens and one more, which
        has no KV yet, so that there is always a token to go on from. They end the draft.
        """
        sequence = self._sequences[sequence_id]
        num_scheduled = self._scheduled.pop(sequence_id)
        assert 0 <= num_committed <= num_scheduled, f"{num_committed} committed of {num_scheduled}"
        num_accepted = num_committed - sequence.num_pending
        assert num_accepted <= 0 or sequence.is_drafted(new_ids[:num_accepted]), "committed what is not output"
        start = sequence.num_computed
        sequence.compute(num_committed)
        if new_ids:
            sequence.token_ids += new_ids
            sequence.drop_draft()
        assert sequence.num_pending > 0, "no token is left to be run for its logits"
        assert len(sequence.token_ids) <= sequence.max_len, f"more than {sequence.max_len} tokens"
        self._pages.commit(sequence_id, sequence.token_ids[start : sequence.num_computed])

    def remove(self, sequence_id: int, *, discard: bool = False) -> None:
        """Finished, cancelled or failed, in any state: what it holds is free at once. Raises KeyError if unknown.

        discard: its KV is at fault, and nobody is to find it.
        """
        sequence = self._sequences.pop(sequence_id)
        if sequence.status is Status.RUNNING:
            self._running.remove(sequence)
            if discard:
                self._pages.discard(sequence_id)
            else:
                self._pages.close(sequence_id, sequence.retain_s)
        else:
            self._waiting.remove(sequence)
            self._admission.forget(sequence)
        sequence.status = Status.FINISHED

    def expired(self) -> list[int]:
        """The sequences, waiting or running, whose deadline has passed; they stay until they are removed."""
        now = self._clock()
        return [each.id for each in self._sequences.values() if each.deadline is not None and each.deadline <= now]

    def has_pending_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._sequences)

    def stats(self) -> SchedulerStats:
        """One look at the scheduler."""
        return SchedulerStats(len(self._waiting), len(self._running), self._num_preempted)

    def check_integrity(self) -> None:
        """Between steps: each sequence is in one state, with pages for what is computed if it runs, else with none."""
        self._waiting.check_integrity()
        self._admission.check_integrity(self._waiting)
        states = {each.id: Status.WAITING for each in self._waiting} | {
            each.id: Status.RUNNING for each in self._running
        }
        assert len(states) == len(self._waiting) + len(self._running), "a sequence waits and runs"
        assert states == {each.id: each.status for each in self._sequences.values()}, "a sequence is lost or not known"
        assert self._running == sorted(self._running, key=self._rank), "the running sequences are not in order"
        assert len(self._running) <= self.config.max_num_seqs, "too many run"
        for sequence in self._running:
            assert self._pages.num_tokens(sequence.id) == sequence.num_computed, f"KV of {sequence.id} differs"
            assert sequence.num_computed <= self._num_covered(sequence), f"sequence {sequence.id} lacks pages"
            assert 0 < sequence.num_pending <= len(sequence.token_ids) <= sequence.max_len
        held = {page for each in self._running for page in self._pages.page_table(each.id)} - {NO_PAGE}
        num_in_use = self._pages.num_pages - self._pages.num_available
        assert len(held) == num_in_use, f"{num_in_use} pages are in use, the running sequences have {len(held)}"

    def _make_room(self) -> None:
        """Pages for the next tokens of those that run, before others come in."""
        decodes = [(each, 1) for each in self._running if each.num_pending == 1]
        for sequence, num_tokens in decodes + self._prefill_shares():
            if sequence.status is Status.RUNNING:
                self._secure(sequence, num_tokens)

    def _prefill_shares(self) -> list[tuple[Sequence, int]]:
        """The tokens of each that has more than one pending, if all of them find pages."""
        prefills = [each for each in self._running if each.num_pending > 1]
        num_decodes = len(self._running) - len(prefills)
        num_left = self.config.max_batched_tokens - num_decodes
        if num_decodes:
            num_left = min(num_left, self.config.prefill_beside_decodes)
        if any(each.in_idle_time for each in prefills):
            num_left = min(num_left, self.config.prefill_in_idle_time)
        return list(zip(prefills, shares([each.num_pending for each in prefills], num_left), strict=True))

    def _admit(self) -> None:
        """Admit in order of rank, past those that find no pages, while they may be overtaken."""
        passed: list[Sequence] = []
        for sequence in self._waiting:
            if len(self._running) == self.config.max_num_seqs:
                return
            if self._admission.admit(sequence, self._running):
                self._start(sequence)
                for each in passed:
                    each.num_overtaken += 1
            else:
                passed.append(sequence)
            if len(passed) == LOOKAHEAD or any(each.num_overtaken >= self.config.max_overtaken for each in passed):
                return

    def _start(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=self._rank)
        sequence.status = Status.RUNNING

    def _schedule_drafts(self) -> None:
        """Drafts ride where all pending tokens do, on the last chunk of a prompt as well."""
        drafted = [
            each
            for each in self._running
            if each.num_draftable > 0 and self._scheduled.get(each.id) == each.num_pending
        ]
        num_scheduled = sum(self._scheduled.values())
        num_left = self.config.max_batched_tokens - num_scheduled
        if len(self._running) == 1 and not self._waiting:
            num_left = max(num_left, self.config.max_drafted)
        in_step: list[tuple[Sequence, int]] = []
        for sequence, num_drafted in zip(drafted, self._lengths(drafted, num_scheduled, num_left), strict=True):
            in_step.append((sequence, self._secure_draft(sequence, num_drafted)))
            self._scheduled[sequence.id] += in_step[-1][1]
        self._schedule_branches(in_step, num_scheduled, num_left)

    def _schedule_branches(self, drafted: list[tuple[Sequence, int]], num_scheduled: int, num_left: int) -> None:
        """Behind the drafts, in what they leave of the step."""
        num_drafted = sum(num for _, num in drafted)
        lengths = self._branches(drafted, num_scheduled + num_drafted, num_left - num_drafted)
        for (sequence, num_own), num_branched in zip(drafted, lengths, strict=True):
            if num_branched:
                sequence.num_branched = max(0, self._secure_draft(sequence, num_own + num_branched) - num_own)
                self._scheduled[sequence.id] += sequence.num_branched

    def _secure(self, sequence: Sequence, num_tokens: int) -> None:
        """Have pages for the next tokens, taken from those of the largest rank, be it the sequence itself."""
        while not self._pages.grow(sequence.id, sequence.num_computed + num_tokens):
            if self._give_back_drafted():
                continue
            assert len(self._running) > 1, "alone every sequence fits"
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return

    def _secure_draft(self, sequence: Sequence, num_drafted: int) -> int:
        """Have pages for draft tokens, as far as a page for the next token of each running sequence is left."""
        num_spare = max(0, self._pages.num_available - len(self._running)) * self._pages.page_size
        num_drafted = min(num_drafted, self._num_covered(sequence) + num_spare - len(sequence.token_ids))
        return num_drafted if self._pages.grow(sequence.id, len(sequence.token_ids) + num_drafted) else 0

    def _give_back_drafted(self) -> bool:
        """Whether any page behind the known tokens of those that run could be given back."""
        return sum(self._pages.shrink(each.id, len(each.token_ids)) for each in self._running) > 0

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._pages.close(sequence.id)
        self._num_preempted += 1
        sequence.num_preempted += 1
        sequence.start_over()
        sequence.status = Status.WAITING
        self._waiting.put_back(sequence)

    def _num_covered(self, sequence: Sequence) -> int:
        """The tokens that its page table has places for."""
        return len(self._pages.page_table(sequence.id)) * self._pages.page_size


def _equal_shares(sequences: list[Sequence], num_scheduled: int, num_left: int) -> list[int]:
    return shares([each.num_draftable for each in sequences], num_left)


def _no_branches(drafted: list[tuple[Sequence, int]], num_scheduled: int, num_left: int) -> list[int]:
    return [0] * len(drafted)
