"""A request as the scheduler sees it, the waiting queue, and the admission of sequences to the KV pool."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise

from engine.engine_config import SchedulerConfig
from engine.errors import DoesNotFit, QueueFull
from engine.kv_cache.block_manager import KVPages
from engine.reuse import EXACT, Reuse, ReusePlan


class Status(Enum):
    """The state of a sequence: it waits without pages, runs with pages, or is finished."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class ScheduledSequence:
    """Token ids in [0, num_computed) have KV; those in [num_computed, len(token_ids)) are pending, at least one.

    If KV of earlier prompts is reused, only the positions in `scattered` are pending, until all of them are run.

    id: unique, and growing with every request. token_ids: the prompt, then the output as it is written. max_len: the
    most tokens of prompt and output. root: the key under which its KV is shared (`root_key`). num_bare, mark: the KV
    of the tokens from `num_bare` on is an adapter's, and cached under ids that `mark` is added to; 0: the root tells
    all. priority: lower goes first. reuse: how much KV of earlier prompts it may reuse. in_idle_time: no caller waits
    for it. arrival, deadline: seconds on the scheduler's clock. retain_s: how long its KV is kept before that of others
    once it is removed. draft: a guess at what follows `token_ids`, set by the engine at any time.

    num_cached_prompt: prompt tokens whose KV was cached when it was first admitted. num_preempted: how often it lost
    its pages. num_overtaken: how often a later one was admitted while its own prompt found no pages. plan: the reuse
    plan of its last admission, if any; first_plan: that of its first one.
    """

    id: int
    token_ids: list[int]
    max_len: int
    root: bytes = b""
    priority: int = 0
    arrival: float = 0.0
    deadline: float | None = None
    retain_s: float = 0.0
    draft: list[int] = field(default_factory=list)
    reuse: Reuse = EXACT
    in_idle_time: bool = False
    num_bare: int = 0
    mark: int = 0
    prompt_len: int = field(init=False)
    num_computed: int = field(default=0, init=False)
    num_cached_prompt: int = field(default=0, init=False)
    num_preempted: int = field(default=0, init=False)
    num_overtaken: int = field(default=0, init=False)
    scattered: list[int] = field(default_factory=list, init=False)
    plan: ReusePlan | None = field(default=None, init=False)
    first_plan: ReusePlan | None = field(default=None, init=False)
    status: Status = field(default=Status.WAITING, init=False)

    def __post_init__(self) -> None:
        self.prompt_len = len(self.token_ids)
        assert 0 < self.prompt_len < self.max_len, f"a prompt of {self.prompt_len} tokens, {self.max_len} in all"

    @property
    def num_pending(self) -> int:
        """Known tokens without KV. If it is one, the sequence decodes, and a pass over it gives a new token; if more,
        it is in prefill.
        """
        return len(self.scattered) or len(self.token_ids) - self.num_computed

    @property
    def num_draftable(self) -> int:
        """Draft tokens that are useful: every pass gives one token without a draft, and the last token needs no KV."""
        return min(len(self.draft), self.max_len - 1 - len(self.token_ids))

    @property
    def bare_ids(self) -> list[int]:
        """The tokens whose KV depends on `root` and the tokens before alone."""
        return self.token_ids[: self.num_bare] if self.mark else self.token_ids

    @property
    def cache_ids(self) -> list[int]:
        """The tokens as the prefix cache knows them."""
        if not self.mark:
            return self.token_ids
        return self.bare_ids + [token_id + self.mark for token_id in self.token_ids[self.num_bare :]]

    def positions(self, count: int) -> list[int]:
        """Return the positions of the first `count` pending tokens and, after them, of draft tokens."""
        pending = self.scattered[:count] or list(range(self.num_computed, self.num_computed + count))
        end = len(self.token_ids)
        return pending + list(range(end, end + count - len(pending)))

    def compute(self, count: int) -> None:
        """Mark the first `count` pending tokens, and after them accepted draft tokens, as computed."""
        if self.scattered:
            num_scattered, end = min(count, len(self.scattered)), self.scattered[-1] + 1
            del self.scattered[:num_scattered]
            self.num_computed = self.scattered[0] if self.scattered else end
            count -= num_scattered
        self.num_computed += count

    def start_over(self) -> None:
        """Reset the sequence to its state before admission, without KV and draft."""
        self.num_computed = 0
        self.scattered = []
        self.draft = []


Rank = tuple[float, float, int]
"""The order of sequences: the smaller rank goes first. It never changes, so a sorted queue stays sorted."""


def build_rank(aging_s: float | None) -> Callable[[ScheduledSequence], Rank]:
    """Return the function that ranks a sequence: by priority, then arrival; with aging, by `arrival + priority *
    aging_s`.

    The latter is aging without a clock: two sequences age alike, so their order never changes. With aging_s = 30, a
    sequence of priority 2 that came at second 0 goes before one of priority 0 that comes at second 61, and after one
    that comes at second 59. So no sequence starves: whatever comes `priority difference * aging_s` later ranks after
    it.
    """
    if aging_s is None:
        return lambda sequence: (sequence.priority, sequence.arrival, sequence.id)
    return lambda sequence: (sequence.arrival + sequence.priority * aging_s, sequence.arrival, sequence.id)


class WaitingQueue:
    """A bounded queue in order of rank; a preempted sequence returns to it whatever the bound.

    A preempted sequence keeps its rank: it goes before all later ones of its priority, and after an earlier one that it
    had overtaken.
    """

    def __init__(self, max_waiting: int, rank: Callable[[ScheduledSequence], Rank]) -> None:
        self._max_waiting = max_waiting
        self._rank = rank
        self._sequences: list[ScheduledSequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[ScheduledSequence]:
        """Iterate in order of rank; the queue may change meanwhile."""
        return iter(tuple(self._sequences))

    def add(self, sequence: ScheduledSequence) -> None:
        """Add a new sequence. Raises QueueFull."""
        if len(self._sequences) >= self._max_waiting:
            raise QueueFull(
                f"{len(self._sequences)} requests wait already and at most {self._max_waiting} may; try again later"
            )
        self.put_back(sequence)

    def put_back(self, sequence: ScheduledSequence) -> None:
        """Add a sequence that was preempted."""
        insort(self._sequences, sequence, key=self._rank)

    def remove(self, sequence: ScheduledSequence) -> None:
        """Remove a sequence that is admitted or cancelled."""
        place = bisect_left(self._sequences, self._rank(sequence), key=self._rank)
        assert self._sequences[place] is sequence
        del self._sequences[place]

    def check_integrity(self) -> None:
        """Assert that the queue is in order, without duplicates and without KV."""
        ranks = [self._rank(sequence) for sequence in self._sequences]
        assert all(first < second for first, second in pairwise(ranks)), f"not in order: {ranks}"
        for sequence in self._sequences:
            assert sequence.num_computed == 0, f"sequence {sequence.id} waits and has KV"


ReuseKV = Callable[[ScheduledSequence, int], ReusePlan | None]
"""Places KV of earlier prompts in the pages of a sequence after its cached tokens, and returns the plan; None if there
is none."""

RETRY_STEPS = 8
"""Steps after which a sequence that found too few pages is tried again even if no more are available."""


@dataclass(slots=True)
class Refusal:
    """The number of available pages when a sequence found too few, and the steps since then."""

    num_available: int
    num_steps: int = 0


class Admission:
    """Gives a sequence the pages of its whole prompt, or none.

    One page for each running sequence must be left, so that the next tokens of the others do not preempt the admitted
    one. If nothing runs, a sequence is always admitted: alone it fits, which `check` ensures.

    If several sequences with a common prefix arrive together, one computes the prefix and the others wait for it. That
    takes no longer than computing it side by side, and leaves the step to sequences that compute something else.
    """

    def __init__(self, pages: KVPages, config: SchedulerConfig, take_over: ReuseKV | None = None) -> None:
        self._pages = pages
        self._config = config
        self._take_over = take_over
        self._refusals: dict[int, Refusal] = {}

    def check(self, sequence: ScheduledSequence) -> None:
        """Raise DoesNotFit if the whole pool is too small for the sequence."""
        needed = self._pages.max_pages(sequence.max_len, self._config.max_batched_tokens)
        if needed > self._pages.num_pages:
            num_new = sequence.max_len - sequence.prompt_len
            raise DoesNotFit(
                f"the prompt's {sequence.prompt_len} tokens and up to {num_new} new ones need {needed} pages "
                f"of {self._pages.page_size} tokens and the KV pool has {self._pages.num_pages}; "
                "shorten the prompt, lower max_new_tokens or enlarge the pool"
            )

    def admit(self, sequence: ScheduledSequence, running: list[ScheduledSequence]) -> bool:
        """Open the sequence's pages on its cached prefix and return True; False, with nothing changed, if it has to
        wait.
        """
        num_running = len(running)
        if num_running and (self._is_hopeless(sequence) or self._is_being_computed(sequence, running)):
            return False
        num_cached = self._pages.open(sequence.id, sequence.cache_ids, sequence.root)
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
        sequence.plan = self._plan_reuse(sequence)
        if not sequence.num_preempted:
            sequence.num_cached_prompt = num_cached
            sequence.first_plan = sequence.plan
        return True

    def forget(self, sequence: ScheduledSequence) -> None:
        """Forget the refusal of a sequence that no longer waits."""
        self._refusals.pop(sequence.id, None)

    def check_integrity(self, waiting: Iterable[ScheduledSequence]) -> None:
        """Assert that refusals are of waiting sequences only."""
        assert self._refusals.keys() <= {each.id for each in waiting}

    def _plan_reuse(self, sequence: ScheduledSequence) -> ReusePlan | None:
        """Reuse KV of earlier prompts, if the sequence allows it and there is any."""
        if self._take_over is None or sequence.reuse.mode == "exact":
            return None
        plan = self._take_over(sequence, sequence.num_computed)
        if plan is not None:
            self._pages.taint(sequence.id, plan.num_exact)
            sequence.scattered = plan.pending.tolist()
        return plan

    def _is_hopeless(self, sequence: ScheduledSequence) -> bool:
        """Return whether the cache need not be searched, since no more pages are available than at the last refusal.

        Other sequences may compute a prefix that it shares, and then it needs fewer pages, so it is tried again from
        time to time.
        """
        refusal = self._refusals.get(sequence.id)
        if refusal is None or refusal.num_steps == RETRY_STEPS or self._pages.num_available > refusal.num_available:
            return False
        refusal.num_steps += 1
        return True

    def _is_being_computed(self, sequence: ScheduledSequence, running: list[ScheduledSequence]) -> bool:
        """Return whether a running sequence computes at least `least_shared` tokens that this one can find cached
        later.
        """
        own = sequence.cache_ids
        head = own[: self._config.least_shared]
        alike = [each for each in running if each.root == sequence.root and each.num_pending > 1]
        alike = [each for each in alike if each.cache_ids[: len(head)] == head]
        if not alike:  # so it is for most, and costs next to nothing
            return False
        num_cached = self._pages.num_cached(own, sequence.root)
        head = own[: num_cached + self._config.least_shared]
        if len(head) == len(own):
            return False
        return any(each.num_computed < len(head) and each.cache_ids[: len(head)] == head for each in alike)

    def _num_reserved(self, sequence: ScheduledSequence, num_cached: int) -> int:
        """Return the number of tokens to reserve pages for: all, or with a sliding window those that it may hold at
        once.
        """
        num_tokens, chunk = len(sequence.token_ids), self._config.max_batched_tokens
        at_once = self._pages.max_pages(num_tokens, chunk) * self._pages.page_size
        return min(num_tokens, max(at_once, num_cached + chunk))
