"""A request as the scheduler sees it: token ids, how many of them have KV, and its rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

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
    most tokens of prompt and output. root: the key under which its KV is shared (`root_key`). priority: lower goes
    first. reuse: how much KV of earlier prompts it may reuse. in_idle_time: no caller waits for it. arrival, deadline:
    seconds on the scheduler's clock. retain_s: how long its KV is kept before that of others once it is removed. draft:
    a guess at what follows `token_ids`, set by the engine at any time.

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
