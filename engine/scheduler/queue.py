"""The waiting queue, and whether the pool has pages for a waiting sequence."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from engine.errors import DoesNotFit, QueueFull
from engine.kv_cache.block_manager import KVPages
from engine.reuse import ReusePlan
from engine.scheduler.config import SchedulerConfig
from engine.scheduler.sequence import Sequence

Rank = tuple[float, float, int]
"""Who goes first: the smaller rank. It never changes, so a queue that is sorted stays so."""


def ranking(aging_s: float | None) -> Callable[[Sequence], Rank]:
    """The rank of a sequence: by priority, then arrival; with aging, by `arrival + priority * aging_s`.

    The second is aging without a clock. Of two sequences, both have waited longer by the same time at any later
    moment, so who is first never changes: with aging_s = 30, one of priority 2 that came at second 0 goes before one
    of priority 0 that comes at second 61, and behind one that comes at second 59. Hence nobody starves: whatever
    comes `priority difference * aging_s` later ranks behind.
    """
    if aging_s is None:
        return lambda sequence: (sequence.priority, sequence.arrival, sequence.id)
    return lambda sequence: (sequence.arrival + sequence.priority * aging_s, sequence.arrival, sequence.id)


class WaitingQueue:
    """A bounded queue in order of rank; what was preempted comes back whatever the bound.

    A preempted sequence keeps its rank. So it goes before all of its priority that came later, and behind an earlier
    one that it had overtaken.
    """

    def __init__(self, max_waiting: int, rank: Callable[[Sequence], Rank]) -> None:
        self._max_waiting = max_waiting
        self._rank = rank
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """In order of rank; the queue may change meanwhile."""
        return iter(tuple(self._sequences))

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence. Raises QueueFull."""
        if len(self._sequences) >= self._max_waiting:
            raise QueueFull(
                f"{len(self._sequences)} requests wait already and at most {self._max_waiting} may; try again later"
            )
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Take a sequence that was preempted."""
        insort(self._sequences, sequence, key=self._rank)

    def remove(self, sequence: Sequence) -> None:
        """Admitted, or not wanted any more."""
        place = bisect_left(self._sequences, self._rank(sequence), key=self._rank)
        assert self._sequences[place] is sequence
        del self._sequences[place]

    def check_integrity(self) -> None:
        """In order, each once, none with KV."""
        ranks = [self._rank(sequence) for sequence in self._sequences]
        assert all(first < second for first, second in pairwise(ranks)), f"not in order: {ranks}"
        for sequence in self._sequences:
            assert sequence.num_computed == 0, f"sequence {sequence.id} waits and has KV"


TakeOver = Callable[[Sequence, int], ReusePlan | None]
"""Puts KV of earlier prompts into the pages of a sequence, behind so many cached tokens, as far as it may and there is
any; tells what, and what is to be run."""

RETRY_STEPS = 8
"""Steps after which a sequence that found too few pages is looked at again even though there are no more of them."""


@dataclass(slots=True)
class Refusal:
    """How many pages were available when a sequence found too few, and the steps since then."""

    num_available: int
    num_steps: int = 0


class Admission:
    """Gives a sequence the pages of its whole prompt, or none.

    One page for each running sequence must be left, so that who is admitted is not preempted by the next token of the
    others. If nothing runs, a sequence is admitted in any case: alone it fits, `check` has seen to that.

    Of many that begin alike and come together, one computes the common prefix. The others wait for it, which is as soon
    as if all had computed it side by side, or sooner, and leaves the step to those that have something else to compute.
    """

    def __init__(self, pages: KVPages, config: SchedulerConfig, take_over: TakeOver | None = None) -> None:
        self._pages = pages
        self._config = config
        self._take_over = take_over
        self._refusals: dict[int, Refusal] = {}

    def check(self, sequence: Sequence) -> None:
        """Raises DoesNotFit where the sequence could not be finished with the whole pool to itself."""
        needed = self._pages.max_pages(sequence.max_len, self._config.max_batched_tokens)
        if needed > self._pages.num_pages:
            num_new = sequence.max_len - sequence.prompt_len
            raise DoesNotFit(
                f"the prompt's {sequence.prompt_len} tokens and up to {num_new} new ones need {needed} pages "
                f"of {self._pages.page_size} tokens and the KV pool has {self._pages.num_pages}; "
                "shorten the prompt, lower max_new_tokens or enlarge the pool"
            )

    def admit(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Open the sequence's pages, with what is cached of its tokens; False: it has to wait, nothing changed."""
        num_running = len(running)
        if num_running and (self._is_hopeless(sequence) or self._is_being_computed(sequence, running)):
            return False
        num_cached = self._pages.open(sequence.id, sequence.token_ids, sequence.root)
        num_tokens = self._num_reserved(sequence, num_cached)
        num_missing = -(-num_tokens // self._pages.page_size) - len(self._pages.page_table(sequence.id))
        if num_running and num_missing + num_running + 1 > self._pages.num_available:  # growing would evict for nothing
            self._pages.close(sequence.id)
            self._refusals[sequence.id] = Refusal(self._pages.num_available)
            return False
        has_grown = self._pages.grow(sequence.id, num_tokens)
        assert has_grown, "alone every sequence fits"
        self.forget(sequence)
        sequence.num_computed = num_cached
        sequence.plan = self._plan(sequence)
        if not sequence.num_preempted:
            sequence.num_cached_prompt = num_cached
            sequence.first_plan = sequence.plan
        return True

    def forget(self, sequence: Sequence) -> None:
        """The sequence does not wait any more."""
        self._refusals.pop(sequence.id, None)

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """Nothing is remembered of sequences that do not wait."""
        assert self._refusals.keys() <= {each.id for each in waiting}

    def _plan(self, sequence: Sequence) -> ReusePlan | None:
        """Take over what earlier prompts have, where the sequence may and there is any."""
        if self._take_over is None or sequence.reuse.mode == "exact":
            return None
        plan = self._take_over(sequence, sequence.num_computed)
        if plan is not None:
            self._pages.taint(sequence.id, plan.num_exact)
            sequence.scattered = plan.pending.tolist()
        return plan

    def _is_hopeless(self, sequence: Sequence) -> bool:
        """Whether to save the look into the cache: there are no more pages than at the last one.

        The others may compute a prefix that it shares, and then it needs fewer pages, so now and then it is looked at.
        """
        refusal = self._refusals.get(sequence.id)
        if refusal is None or refusal.num_steps == RETRY_STEPS or self._pages.num_available > refusal.num_available:
            return False
        refusal.num_steps += 1
        return True

    def _is_being_computed(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Whether a running sequence computes tokens, at least `least_shared`, that it finds cached if it waits."""
        head = sequence.token_ids[: self._config.least_shared]
        alike = [each for each in running if each.root == sequence.root and each.num_pending > 1]
        alike = [each for each in alike if each.token_ids[: len(head)] == head]
        if not alike:  # so it is for most, and costs next to nothing
            return False
        num_cached = self._pages.num_cached(sequence.token_ids, sequence.root)
        head = sequence.token_ids[: num_cached + self._config.least_shared]
        if len(head) == len(sequence.token_ids):
            return False
        return any(each.num_computed < len(head) and each.token_ids[: len(head)] == head for each in alike)

    def _num_reserved(self, sequence: Sequence, num_cached: int) -> int:
        """How many tokens to have pages for at once: all, or with a sliding window what it may hold at once."""
        num_tokens, chunk = len(sequence.token_ids), self._config.max_batched_tokens
        at_once = self._pages.max_pages(num_tokens, chunk) * self._pages.page_size
        return min(num_tokens, max(at_once, num_cached + chunk))
