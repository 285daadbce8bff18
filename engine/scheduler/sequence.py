"""One request as the scheduler sees it: token ids, how many of them have KV, and who goes first."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from engine.reuse import EXACT, Reuse, ReusePlan
from engine.types import DraftBranch


class Status(Enum):
    """Where a sequence is: it waits without pages, runs with pages, or is removed."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """Token ids in [0, num_computed) have KV; those in [num_computed, len(token_ids)) are pending, at least one.

    Where KV of earlier prompts was taken over, only those at the positions `scattered` are, until all of them are run.

    id: unique, and growing with every request. token_ids: the prompt, then the output as it is written. max_len: the
    most tokens of prompt and output. root: the key under which its KV is shared (`root_key`). priority: lower goes
    first. reuse: how much KV of earlier prompts it may take over. in_idle_time: nobody waits for it. arrival, deadline:
    seconds on the scheduler's clock. retain_s: how long its KV is kept before that of others once it is removed.
    draft: a guess at what follows `token_ids`, set by the engine whenever it likes. branch: another way on from within
    the draft, set with it. num_branched: tokens of the branch that are in the step.

    num_cached_prompt: prompt tokens whose KV was there when it was first admitted. num_preempted: how often it lost
    its pages. num_overtaken: how often a later one was admitted while its own prompt found no pages. plan: what it took
    over when it was last admitted, if anything; first_plan: when it was first.
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
    branch: DraftBranch | None = None
    reuse: Reuse = EXACT
    in_idle_time: bool = False
    num_branched: int = field(default=0, init=False)
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
        """Known tokens without KV. One: it decodes, and a pass over it gives a new token. More: it is prefilled."""
        return len(self.scattered) or len(self.token_ids) - self.num_computed

    @property
    def num_draftable(self) -> int:
        """Draft tokens that are of use: every pass gives one token for free, and the last one needs no KV."""
        return min(len(self.draft), self.max_len - 1 - len(self.token_ids))

    def positions(self, count: int) -> list[int]:
        """Where the first `count` pending tokens stand, and behind them those of the draft."""
        pending = self.scattered[:count] or list(range(self.num_computed, self.num_computed + count))
        end = len(self.token_ids)
        return pending + list(range(end, end + count - len(pending)))

    def compute(self, count: int) -> None:
        """The first `count` pending tokens, and behind them accepted ones of the draft, have KV."""
        if self.scattered:
            num_scattered, end = min(count, len(self.scattered)), self.scattered[-1] + 1
            del self.scattered[:num_scattered]
            self.num_computed = self.scattered[0] if self.scattered else end
            count -= num_scattered
        self.num_computed += count

    def start_over(self) -> None:
        """Without KV, as before it was admitted."""
        self.num_computed = 0
        self.scattered = []
        self.drop_draft()

    def drop_draft(self) -> None:
        """Without a guess, until a new one is set."""
        self.draft, self.branch, self.num_branched = [], None, 0

    def is_drafted(self, new_ids: list[int]) -> bool:
        """Whether the draft begins with these tokens, or goes on from its beginning along its branch to them."""
        branch = self.branch
        along = [] if branch is None else [*self.draft[: branch.at], *branch.token_ids[: self.num_branched]]
        return new_ids in (self.draft[: len(new_ids)], along[: len(new_ids)])
