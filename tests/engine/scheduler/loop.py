"""The engine's loop without a model: it schedules, writes hashes of the tokens as KV, and appends tokens."""

from __future__ import annotations

from collections.abc import Callable

from engine.kv_cache.block_manager import KVPages
from engine.kv_cache.prefix_cache import NO_PAGE
from engine.scheduler import ScheduledSequence, Scheduler, SchedulerConfig, Status
from engine.scheduler.queue import build_rank

EMPTY = -1


def always(wanted: int) -> int:
    """Accept whole drafts."""
    return wanted


def written(history: int) -> int:
    """The 'model': the token behind all that this hash stands for, so that a recomputed output is the same."""
    return history % 1009


def extended(history: int, token_id: int) -> int:
    """The hash of one token more."""
    return hash((history, token_id))


def config(
    max_batched_tokens: int = 64,
    prefill_beside_decodes: int = 16,
    max_num_seqs: int = 8,
    max_waiting: int = 50,
    max_overtaken: int = 2,
    aging_s: float | None = None,
    max_drafted: int = 0,
) -> SchedulerConfig:
    return SchedulerConfig(
        max_batched_tokens,
        prefill_beside_decodes,
        max_num_seqs,
        max_waiting,
        max_overtaken,
        aging_s,
        max_drafted=max_drafted,
    )


class Loop:
    """A scheduler, its pages, and a clock that only moves when told to.

    Each token slot of the pool holds a hash of the tokens up to its own, as KV depends on them all. Before a token is
    run, the slots of all that it sees are compared: a wrong share, a lost copy or a page of someone else shows there.
    """

    def __init__(self, config: SchedulerConfig, num_pages: int, page_size: int = 4, window: int | None = None) -> None:
        self.now = 0.0
        self.config = config
        self.window = window
        self.pages = KVPages(num_pages, page_size, window=window, clock=lambda: self.now)
        self.scheduler = Scheduler(config, self.pages, clock=lambda: self.now)
        self.sequences: dict[int, ScheduledSequence] = {}
        self.num_steps = 0
        self.num_run = 0  # tokens
        self._slots = [EMPTY] * (num_pages * page_size)
        self._num_added = 0

    def add(
        self,
        prompt: int | list[int],
        max_new_tokens: int = 4,
        *,
        priority: int = 0,
        deadline: float | None = None,
        retain_s: float = 0.0,
        draft: list[int] | None = None,
        root: bytes = b"",
    ) -> ScheduledSequence:
        """Add a sequence that arrives now; a prompt given by its length is like no other."""
        self._num_added += 1
        ids = prompt if isinstance(prompt, list) else [10_000 * self._num_added + i for i in range(prompt)]
        sequence = ScheduledSequence(
            self._num_added,
            list(ids),
            len(ids) + max_new_tokens,
            root,
            priority,
            self.now,
            deadline,
            retain_s,
            draft or [],
        )
        self.scheduler.add(sequence)
        self.sequences[sequence.id] = sequence
        return sequence

    def step(self, num_accepted: Callable[[int], int] = always) -> dict[int, int]:
        """Schedule, run and take in; sequences that have all their tokens are removed. Returns the schedule."""
        planned = self.plan()
        self.run(planned, num_accepted)
        return planned

    def plan(self) -> dict[int, int]:
        """The schedule, checked."""
        decoding = {each.id for each in self.running if each.num_pending == 1}
        preempted = {each.id: each.num_preempted for each in self.sequences.values()}
        planned = self.scheduler.schedule()
        self._check_plan(planned, decoding, preempted)
        return planned

    def run(self, planned: dict[int, int], num_accepted: Callable[[int], int] = always) -> None:
        """Run and take in what is planned of sequences that are still there."""
        for copy in self.pages.take_copies():
            source, target = (page * self.pages.page_size for page in (copy.source, copy.target))
            self._slots[target : target + copy.num_tokens] = self._slots[source : source + copy.num_tokens]
        planned = {each: num_tokens for each, num_tokens in planned.items() if each in self.sequences}
        new_ids = {each: self._run(each, num_tokens, num_accepted) for each, num_tokens in planned.items()}
        for sequence_id, ids in new_ids.items():
            sequence = self.sequences[sequence_id]
            num_pending = min(sequence.num_pending, planned[sequence_id])
            self.scheduler.advance(sequence_id, num_pending + max(0, len(ids) - 1), ids)
            if len(sequence.token_ids) == sequence.max_len:
                self.remove(sequence_id)
        self.num_steps += 1
        self.num_run += sum(planned.values())
        self.check_integrity()

    def step_until(self, condition: Callable[[], bool], max_steps: int = 200) -> None:
        """Step until it holds."""
        for _ in range(max_steps):
            if condition():
                return
            self.step()
        raise AssertionError(f"not within {max_steps} steps")

    def drain(self, max_steps: int = 1000) -> int:
        """Step until all is done; returns how many steps that took."""
        first = self.num_steps
        while self.scheduler.has_pending_work():
            assert self.num_steps - first < max_steps, f"{len(self.sequences)} are not finished"
            self.step()
        assert self.pages.num_available == self.pages.num_pages, "pages leak"
        return self.num_steps - first

    def remove(self, sequence_id: int) -> None:
        self.scheduler.remove(sequence_id)
        del self.sequences[sequence_id]

    def check_integrity(self) -> None:
        self.scheduler.check_integrity()
        self.pages.check_integrity()

    @property
    def running(self) -> list[ScheduledSequence]:
        return [each for each in self.sequences.values() if each.status is Status.RUNNING]

    @property
    def num_held(self) -> int:
        """Pages in use."""
        return self.pages.num_pages - self.pages.num_available

    def _check_plan(self, planned: dict[int, int], decoding: set[int], preempted: dict[int, int]) -> None:
        """What holds for every schedule."""
        self._check_size(planned)
        if self.sequences:
            first = min(self.running, key=build_rank(self.config.aging_s))
            assert first.id in planned, "the first one does not get on"
        prefill = 0
        for sequence_id, num_tokens in planned.items():
            sequence = self.sequences[sequence_id]
            assert sequence.status is Status.RUNNING
            assert 0 < num_tokens <= sequence.num_pending + len(sequence.draft)
            assert sequence.num_computed + num_tokens < sequence.max_len, "a token is run that nothing can follow"
            if sequence.num_pending > 1:
                prefill += min(num_tokens, sequence.num_pending)
        for sequence_id in decoding:
            was_preempted = self.sequences[sequence_id].num_preempted > preempted[sequence_id]
            assert sequence_id in planned or was_preempted, "a stream is left out of a step"
        if any(self.sequences[sequence_id].num_pending == 1 for sequence_id in planned):
            assert prefill <= self.config.prefill_beside_decodes

    def _check_size(self, planned: dict[int, int]) -> None:
        """Within max_batched_tokens, but for the draft of one that is alone."""
        num_drafted = sum(max(0, num_tokens - self.sequences[each].num_pending) for each, num_tokens in planned.items())
        num_tokens = sum(planned.values())
        assert num_tokens - num_drafted <= self.config.max_batched_tokens
        if num_tokens > self.config.max_batched_tokens:
            assert len(self.sequences) == 1, "a draft takes what others wait for"
            assert num_drafted <= self.config.max_drafted

    def _run(self, sequence_id: int, num_tokens: int, num_accepted: Callable[[int], int]) -> list[int]:
        """Write the KV of these tokens; returns the accepted draft and the free token, if all pending ones ran."""
        sequence = self.sequences[sequence_id]
        start = sequence.num_computed
        ids = (sequence.token_ids[start:] + sequence.draft)[:num_tokens]
        history, histories = 0, []
        for position, token_id in enumerate(sequence.token_ids[:start] + ids):
            history = extended(history, token_id)
            histories.append(history)
            slot = self._slot(sequence_id, position)
            if position >= start:
                assert slot is not None, "a token is run that has no page"
                self._slots[slot] = history
            elif self.window is None or position > start - self.window:
                assert slot is not None, "a page is gone that is still seen"
                assert self._slots[slot] == history, f"the KV of token {position} is of other tokens"
        if num_tokens < sequence.num_pending:
            return []
        accepted = ids[sequence.num_pending :][: num_accepted(num_tokens - sequence.num_pending)]
        return [*accepted, written(histories[len(sequence.token_ids) + len(accepted) - 1])]

    def _slot(self, sequence_id: int, position: int) -> int | None:
        table, size = self.pages.page_table(sequence_id), self.pages.page_size
        page = table[position // size] if position // size < len(table) else NO_PAGE
        return None if page == NO_PAGE else page * size + position % size
