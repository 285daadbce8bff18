"""Decides how many tokens each sequence has in the next step."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.engine_config import SchedulerConfig
from engine.kv_cache.block_manager import KVPages
from engine.kv_cache.prefix_cache import NO_PAGE
from engine.scheduler.queue import Admission, ReuseKV, ScheduledSequence, Status, WaitingQueue, build_rank


def split_evenly(wanted: Sequence[int], total: int) -> list[int]:
    """Return equal shares of `total` tokens, none larger than wanted; the remainder goes to the first.

    What one does not want, the others share: `split_evenly([5, 100, 100], 65) == [5, 30, 30]` and `split_evenly([100,
    100], 65) == [33, 32]`. The sum is min(total, sum(wanted)).
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


DraftLengths = Callable[[list[ScheduledSequence], int, int], list[int]]
"""Returns the number of draft tokens of each sequence, given the tokens in the step so far and the tokens left."""

LOOKAHEAD = 8
"""Waiting sequences without pages that are skipped in one step in search of one that finds pages."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counts of sequences. num_preempted: how often a sequence has lost its pages to another one since the start."""

    num_waiting: int
    num_running: int
    num_preempted: int


class Scheduler:
    """Continuous batching without phases: a step is a number of tokens for each sequence (the idea of vLLM v1).

    **Gap.** A running sequence with one pending token, one that decodes, has a token in every step. A step holds at
    most max_batched_tokens; if any sequence decodes, at most prefill_beside_decodes of them are prompt tokens (the
    others are one for each stream, and drafts). So at most that many prompt tokens lie between two tokens of a stream,
    however long the prompts are; only preemption makes a stream wait longer.

    **Prompts** share their part of a step equally. With n of them and p tokens for them (p >= n), a prompt of s tokens
    is done after at most ceil(s / (p // n)) steps, whatever the length of the others.

    **Order.** Sequences have a rank (`build_rank`), the same for admission and preemption. A sequence that finds no
    pages may be overtaken max_overtaken times; then no later one is admitted before it. Since the running ones end or
    lose their pages to those of smaller rank, it is admitted in the end.

    **Drafts** share the rest of a step as `lengths` decides, by default equally. A sequence that is alone, with no
    other running or waiting, may have max_drafted draft tokens besides max_batched_tokens of others: this delays no
    stream, and a new request waits for that one pass.

    **Preemption** is by recompute: if a running sequence finds no page for its next token, the sequence of the largest
    rank gives all its pages back and waits again, with its output and without its draft. The one of the smallest rank
    is never preempted and advances in each step, so there is no livelock. Drafts preempt nobody, and pages left over
    from rejected drafts are freed if a sequence waits or a page is missing.

    Not thread-safe. The clock is read for deadlines only; equal calls give equal schedules.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pages: KVPages,
        clock: Callable[[], float] = time.monotonic,
        lengths: DraftLengths | None = None,
        take_over: ReuseKV | None = None,
    ) -> None:
        self.config = config
        self._pages = pages
        self._clock = clock
        self._lengths = lengths or _split_drafts_evenly
        self._rank = build_rank(config.aging_s)
        self._admission = Admission(pages, config, take_over)
        self._sequences: dict[int, ScheduledSequence] = {}
        self._waiting = WaitingQueue(config.max_waiting, self._rank)
        self._running: list[ScheduledSequence] = []  # in order of rank
        self._scheduled: dict[int, int] = {}
        self._num_preempted = 0

    def add(self, sequence: ScheduledSequence) -> None:
        """Add a new sequence to the waiting ones. Raises DoesNotFit if it could never be finished, and QueueFull."""
        assert sequence.id not in self._sequences, f"sequence {sequence.id} is here already"
        assert sequence.status is Status.WAITING, f"sequence {sequence.id} was added before"
        self._admission.check(sequence)
        self._waiting.add(sequence)
        self._sequences[sequence.id] = sequence

    def schedule(self) -> dict[int, int]:
        """Return how many tokens of each sequence are in the next step: the first n > 0 of its pending tokens and its
        draft.

        The copies that were queued when pages were opened (`KVPages.take_copies`) must be made before the step. A step
        may be dropped for some or all sequences: they are scheduled again.
        """
        if self._waiting:
            self._give_back_drafted()
        decodes, prefills = self._split_running()
        running = self._running.copy()
        self._make_room(decodes, prefills)
        self._admit()
        if running != self._running:
            decodes, prefills = self._split_running()
        self._scheduled = {each.id: 1 for each in decodes}
        for sequence, share in self._share_prefill(prefills):
            if num_tokens := min(share, self._count_covered(sequence) - sequence.num_computed):
                self._scheduled[sequence.id] = num_tokens
        self._schedule_drafts()
        return dict(self._scheduled)

    def advance(self, sequence_id: int, num_committed: int, new_ids: list[int]) -> None:
        """Apply a step to a sequence: the KV of so many of its scheduled tokens is final, and `new_ids` follow.

        After a prompt chunk that is not the last there are no new ids. Otherwise they are the accepted draft tokens and
        one more, which has no KV yet, so that a token is always pending. They end the draft.
        """
        sequence = self._sequences[sequence_id]
        num_scheduled = self._scheduled.pop(sequence_id)
        assert 0 <= num_committed <= num_scheduled, f"{num_committed} committed of {num_scheduled}"
        num_accepted = max(0, num_committed - sequence.num_pending)
        assert sequence.draft[:num_accepted] == new_ids[:num_accepted], "committed what is not output"
        start = sequence.num_computed
        sequence.compute(num_committed)
        if new_ids:
            sequence.token_ids += new_ids
            sequence.draft = []
        assert sequence.num_pending > 0, "no token is left to be run for its logits"
        assert len(sequence.token_ids) <= sequence.max_len, f"more than {sequence.max_len} tokens"
        self._pages.commit(sequence_id, sequence.cache_ids[start : sequence.num_computed])

    def skip(self, sequence_id: int, end: int) -> None:
        """Mark the KV of a running prompt's tokens up to `end`, but not the last, as final: it was written into the
        sequence's pages between two steps.
        """
        sequence = self._sequences[sequence_id]
        start = sequence.num_computed
        assert sequence.status is Status.RUNNING, f"sequence {sequence_id} has no pages"
        assert not sequence.scattered, "reused KV lies between"
        assert start < end < sequence.prompt_len, f"{end} of {sequence.prompt_len} tokens, {start} are computed"
        sequence.num_computed = end
        sequence.num_cached_prompt += end - start
        self._pages.commit(sequence_id, sequence.cache_ids[start:end])

    def remove(self, sequence_id: int, *, discard: bool = False) -> None:
        """Remove a sequence that is finished, cancelled or failed, and free its pages. Raises KeyError if unknown.

        discard: its KV may be wrong, and must not be found by others.
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

    def find_expired(self) -> list[int]:
        """Return the sequences, waiting or running, whose deadline has passed; they stay until they are removed."""
        now = self._clock()
        return [each.id for each in self._sequences.values() if each.deadline is not None and each.deadline <= now]

    def has_pending_work(self) -> bool:
        """Return whether a sequence waits or runs."""
        return bool(self._sequences)

    def stats(self) -> SchedulerStats:
        """Return the counts of sequences."""
        return SchedulerStats(len(self._waiting), len(self._running), self._num_preempted)

    def check_integrity(self) -> None:
        """Between steps: assert that each sequence is in one state, with pages for its KV if it runs,
        else with none.
        """
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
            assert sequence.num_computed <= self._count_covered(sequence), f"sequence {sequence.id} lacks pages"
            assert 0 < sequence.num_pending <= len(sequence.token_ids) <= sequence.max_len
        held = {page for each in self._running for page in self._pages.page_table(each.id)} - {NO_PAGE}
        num_in_use = self._pages.num_pages - self._pages.num_available
        assert len(held) == num_in_use, f"{num_in_use} pages are in use, the running sequences have {len(held)}"

    def _split_running(self) -> tuple[list[ScheduledSequence], list[ScheduledSequence]]:
        """Return the running sequences that decode, and those in prefill."""
        decodes: list[ScheduledSequence] = []
        prefills: list[ScheduledSequence] = []
        for each in self._running:
            (decodes if each.num_pending == 1 else prefills).append(each)
        return decodes, prefills

    def _make_room(self, decodes: list[ScheduledSequence], prefills: list[ScheduledSequence]) -> None:
        """Reserve pages for the next tokens of running sequences, before others are admitted."""
        for sequence, num_tokens in [*((each, 1) for each in decodes), *self._share_prefill(prefills)]:
            if sequence.status is Status.RUNNING:
                self._secure(sequence, num_tokens)

    def _share_prefill(self, prefills: list[ScheduledSequence]) -> list[tuple[ScheduledSequence, int]]:
        """Return the tokens of each sequence in prefill, if all of them find pages."""
        num_decodes = len(self._running) - len(prefills)
        num_left = self.config.max_batched_tokens - num_decodes
        if num_decodes:
            num_left = min(num_left, self.config.prefill_beside_decodes)
        if any(each.in_idle_time for each in prefills):
            num_left = min(num_left, self.config.prefill_in_idle_time)
        return list(zip(prefills, split_evenly([each.num_pending for each in prefills], num_left), strict=True))

    def _admit(self) -> None:
        """Admit in order of rank, skipping those that find no pages while they may be overtaken."""
        passed: list[ScheduledSequence] = []
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

    def _start(self, sequence: ScheduledSequence) -> None:
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=self._rank)
        sequence.status = Status.RUNNING

    def _schedule_drafts(self) -> None:
        """Add draft tokens to sequences whose pending tokens are all in the step, also on the last chunk
        of a prompt.
        """
        drafted = [
            each
            for each in self._running
            if each.draft and each.num_draftable > 0 and self._scheduled.get(each.id) == each.num_pending
        ]
        if not drafted:
            return
        num_scheduled = sum(self._scheduled.values())
        num_left = self.config.max_batched_tokens - num_scheduled
        if len(self._running) == 1 and not self._waiting:
            num_left = max(num_left, self.config.max_drafted)
        for sequence, num_drafted in zip(drafted, self._lengths(drafted, num_scheduled, num_left), strict=True):
            self._scheduled[sequence.id] += self._secure_draft(sequence, num_drafted)

    def _secure(self, sequence: ScheduledSequence, num_tokens: int) -> None:
        """Reserve pages for the next tokens, preempting the sequence of the largest rank, which may be this one."""
        while not self._pages.grow(sequence.id, sequence.num_computed + num_tokens):
            if self._give_back_drafted():
                continue
            assert len(self._running) > 1, "alone every sequence fits"
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return

    def _secure_draft(self, sequence: ScheduledSequence, num_drafted: int) -> int:
        """Reserve pages for draft tokens, but leave a page for the next token of each running sequence."""
        num_spare = max(0, self._pages.num_available - len(self._running)) * self._pages.page_size
        num_drafted = min(num_drafted, self._count_covered(sequence) + num_spare - len(sequence.token_ids))
        return num_drafted if self._pages.grow(sequence.id, len(sequence.token_ids) + num_drafted) else 0

    def _give_back_drafted(self) -> bool:
        """Free the pages after the known tokens of running sequences; return whether there were any."""
        return sum(self._pages.shrink(each.id, len(each.token_ids)) for each in self._running) > 0

    def _preempt(self, sequence: ScheduledSequence) -> None:
        self._running.remove(sequence)
        self._pages.close(sequence.id)
        self._num_preempted += 1
        sequence.num_preempted += 1
        sequence.start_over()
        sequence.status = Status.WAITING
        self._waiting.put_back(sequence)

    def _count_covered(self, sequence: ScheduledSequence) -> int:
        """Return the number of tokens that its pages hold."""
        return len(self._pages.page_table(sequence.id)) * self._pages.page_size


def _split_drafts_evenly(sequences: list[ScheduledSequence], num_scheduled: int, num_left: int) -> list[int]:
    return split_evenly([each.num_draftable for each in sequences], num_left)
