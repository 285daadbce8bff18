"""The drafts of one request: proposals, acceptance and their balance."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2, prod

from engine.speculation.draft_length import BranchGuess, Guess
from engine.speculation.expectation import DraftHazards
from engine.speculation.step_times import PassTimes
from engine.types import Draft, DraftBranch, DraftRun, Proposer, SourceUsage

SLACK = 0.025
"""The share of the time without drafts that a request may take longer with them: 1 / 1.025 is 0.976.

What is left to 0.95 is for times that are wrong by some: single passes wait for memory and others for the cores, and
other work slows the one or the other. Edits that copy are as quick with less.
"""


@dataclass(slots=True)
class Balance:
    """Seconds of one request by the pass times: as it ran, drafters asked, and as it would have run without drafts.

    Those of reading its prompt are in neither: what may be lost depends on what is written, not on what was cached. The
    clock is asked for none of them, so that an equal request has equal passes.
    """

    spent_s: float = 0.0
    plain_s: float = 0.0

    def book(self, spent_s: float, plain_s: float) -> None:
        """Something was done that took `spent_s`, and would have taken `plain_s` without drafts."""
        self.spent_s += spent_s
        self.plain_s += plain_s

    def left(self, ahead_s: float) -> float:
        """Seconds that the next draft may cost for nothing, if what is ahead takes `ahead_s` without drafts."""
        return max(0.0, (1.0 + SLACK) * self.plain_s + SLACK * ahead_s - self.spent_s)


ASKING_SHARE = 1 / 64
"""While drafts are not worth a row, the drafter is asked so seldom that it takes that share of the passes' time. Any
that takes less than that of a single pass counts as if it took all of it, whatever the clock says, so that the clock
decides nothing: 0.4 ms where a pass takes 26."""

NUM_TIMED = 4
"""The quickest of so many questions counts, and at first none: a drafter that makes an index when it is first asked, or
was held up once, is not slow."""

NO_DRAFT = Draft((), ())


class Drafting:
    """A request's drafter between the passes.

    The whole of a draft is kept, however much of it goes into a pass: what the model writes by itself is compared with
    the rest. So it shows at no cost but the asking when drafts begin to be right again.
    """

    def __init__(
        self,
        proposer: Proposer | None,
        times: PassTimes,
        clock: Callable[[], float] = time.monotonic,
        *,
        vocab_size: int,
    ) -> None:
        """`vocab_size` is the model's: what a drafter proposes beyond it is cut off."""
        self.proposer = proposer
        self.by_source: dict[str, SourceUsage] = {}
        self.balance = Balance()
        self._times = times
        self._clock = clock
        self._vocab_size = vocab_size
        self._hazards = DraftHazards()
        self._draft = NO_DRAFT
        self._asked_at: int | None = None  # the length of the output for which `_draft` is
        self._ask_again_at = 0
        self._asking_s = deque([0.0], maxlen=NUM_TIMED)

    def propose(self, output_ids: Sequence[int], room: int) -> Sequence[int]:
        """Up to `room` tokens that may follow the output; the drafter is asked once for each output."""
        num_output = len(output_ids)
        if self._asked_at == num_output:
            return self._draft.token_ids
        self._draft = NO_DRAFT
        if self.proposer is not None and room > 0 and num_output >= self._ask_again_at:
            started = self._clock()
            self._draft = _checked(self.proposer.propose(output_ids, room), self._vocab_size).first(room)
            self._asking_s.append(self._clock() - started)
            self._asked_at = num_output
            self.balance.book(self._asking_share * self._times(1), 0.0)
        return self._draft.token_ids

    def guess(self, most: int, num_sequences: int) -> Guess:
        """The draft, of which `most` tokens are of use in a pass with `num_sequences`, for the choice of its length."""
        ahead_s = len(self._draft.token_ids) * self._times(num_sequences)
        return Guess(tuple(self._hazards.runs(self._draft)), most, self.balance.left(ahead_s))

    @property
    def branch(self) -> DraftBranch | None:
        """The other way on that the draft has."""
        return self._draft.branch

    def guess_branch(self, num_drafted: int, num_sequences: int) -> BranchGuess | None:
        """The branch, for the choice of its length in a pass that holds the first `num_drafted` of the draft.

        None where the draft does not come to where it parts, or further.
        """
        branch = self._draft.branch
        if branch is None or num_drafted <= branch.at:
            return None
        reached = prod((1.0 - hazard) ** num for num, hazard in self._hazards.runs(self._draft.first(branch.at)))
        behind = _run_of(branch, 1)
        spent_s = self._times(num_sequences + num_drafted) - self._times(num_sequences)
        left_s = self.balance.left(len(self._draft.token_ids) * self._times(num_sequences)) - spent_s
        return BranchGuess(reached * branch.chance, tuple(self._hazards.runs(behind)), max(0.0, left_s))

    def observe(self, written_ids: Sequence[int], num_drafted: int, num_output: int, num_branched: int = 0) -> None:
        """The model wrote these tokens in a pass that held the first `num_drafted` of the draft, and of its branch.

        `num_output` is the length of the output with them.
        """
        draft, asked = self._draft, self._asked_at is not None
        self._draft, self._asked_at = NO_DRAFT, None
        if not draft.token_ids:
            if asked:
                self._hazards.observe_silence()
            return
        compared = list(zip(written_ids, draft.token_ids, strict=False))
        num_right = next((at for at, (wrote, guessed) in enumerate(compared) if wrote != guessed), len(compared))
        self._hazards.observe(draft, num_right, missed=num_right < len(compared))
        self._count(draft, num_drafted, min(num_right, num_drafted))
        if draft.branch is not None:
            self._observe_branch(draft.branch, num_right, written_ids, num_branched)
        if not num_drafted:
            self._ask_again_at = num_output + int(self._asking_share / ASKING_SHARE) - 1

    @property
    def _asking_share(self) -> float:
        """Of a single pass, what a question takes: rounded up to ASKING_SHARE times a power of two."""
        share = min(self._asking_s) / (ASKING_SHARE * self._times(1))
        return ASKING_SHARE * 2.0 ** max(0, ceil(log2(share))) if share > 1.0 else ASKING_SHARE

    def _observe_branch(
        self, branch: DraftBranch, num_right: int, written_ids: Sequence[int], num_branched: int
    ) -> None:
        """Behind a departure to it, the branch is what had been drafted; elsewhere it has shown nothing."""
        followed = written_ids[branch.at :] if num_right == branch.at else ()
        compared = list(zip(followed, branch.token_ids, strict=False))
        num_followed = next((at for at, (wrote, guessed) in enumerate(compared) if wrote != guessed), len(compared))
        if num_followed:
            self._hazards.observe(_run_of(branch, 0), num_followed, missed=num_followed < len(compared))
        if num_branched:
            self._count(_run_of(branch, 0), num_branched, min(num_followed, num_branched))

    def _count(self, draft: Draft, num_drafted: int, num_accepted: int) -> None:
        for run in draft.first(num_drafted).runs:
            counted = self.by_source.setdefault(run.source, SourceUsage())
            counted.drafted += run.num_tokens
            counted.accepted += min(run.num_tokens, num_accepted)
            num_accepted -= min(run.num_tokens, num_accepted)


def _run_of(branch: DraftBranch, first: int) -> Draft:
    """The branch's tokens from one on as a draft."""
    token_ids = branch.token_ids[first:]
    return Draft(token_ids, (DraftRun(branch.source, len(token_ids), branch.hazard),))


def _checked(draft: Draft, vocab_size: int) -> Draft:
    """The draft up to the first id that the model has no row for; raises ValueError where its runs do not add up.

    A tokenizer may have more tokens than the model: one of those would read past the embedding, which on a card ends
    the context of all.
    """
    num_told = sum(run.num_tokens for run in draft.runs)
    if num_told != len(draft.token_ids) or any(run.num_tokens < 0 for run in draft.runs):
        raise ValueError(f"the draft's runs tell of {num_told} tokens and it has {len(draft.token_ids)}")
    branch = draft.branch
    if branch is not None and (num_known := _num_known(branch.token_ids, vocab_size)) < len(branch.token_ids):
        branch = replace(branch, token_ids=branch.token_ids[:num_known]) if num_known else None
        draft = replace(draft, branch=branch)
    num_known = _num_known(draft.token_ids, vocab_size)
    return draft if num_known == len(draft.token_ids) else draft.first(num_known)


def _num_known(token_ids: Sequence[int], vocab_size: int) -> int:
    """How many ids stand before the first one outside [0, vocab_size)."""
    if not len(token_ids) or 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        return len(token_ids)
    return next(at for at, token_id in enumerate(token_ids) if not 0 <= token_id < vocab_size)
