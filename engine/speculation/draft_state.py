"""The drafts of one request: proposals, acceptance, cost, and lengths by expected gain and cost."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from math import ceil, log2

import numpy as np

from engine.speculation.acceptance import AcceptanceModel, MissCounts
from engine.speculation.step_times import StepTimes
from engine.types import Draft, Proposer, SourceUsage, count_common_prefix

TRIED = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Lengths among which the best constant one is searched; near its best, the rate hardly depends on it."""


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """One sequence's draft, for the choice of its length.

    runs: (tokens, hazard of each) in order. most: how many of its tokens are useful. most_s: seconds of a pass that it
    may cost if all of it is rejected.
    """

    runs: Sequence[tuple[int, float]]
    most: int
    most_s: float = float("inf")


def choose_lengths(
    guesses: Sequence[DraftCandidate], num_rows: int, num_sequences: int, num_left: int, times: StepTimes
) -> list[int]:
    """Return how many tokens of each draft to add to a pass that has `num_rows` rows of `num_sequences` without them.

    At most `num_left` in all. The gain of token i is its probability of being accepted, the product of (1 - hazard) up
    to it, times the seconds that a token costs otherwise (`compute_token_seconds`); its cost is what its row adds to
    the pass. Tokens of all sequences are added in the order of their gain, up to the number with the largest sum of
    gain less cost. So if hazards are constant, tokens per second are maximal (for one sequence the optimum of a renewal
    process: a pass is a cycle, the tokens that it confirms are its reward). If hazards vary, tokens after an unlikely
    one are not drafted because they are cheap then, but left to the pass that begins with them.

    Example: T(k) = 18 + k ms and a hazard of 0.01 for all tokens: 0.99 ** n * 1.72 ms = 1 ms at n = 54, and no other n
    gives more tokens per second.
    """
    share = num_left // max(1, len(guesses))
    seconds: dict[tuple[float, int], float] = {}
    gains: list[float] = []
    ranks: list[float] = []  # a token comes after those before it: it counts as the least of them
    counts: list[int] = []
    for guess in guesses:
        most = min(num_left, _count_affordable(guess, num_rows, times))
        own = list(islice(_iter_gains(guess, num_sequences, min(share, most), times, seconds), most))
        gains += own
        ranks += accumulate(own, min)
        counts.append(len(own))
    if not gains:
        return counts
    order = np.argsort(-np.array(ranks), kind="stable")[:num_left]
    totals = (np.array(gains)[order] - times.get_prices(num_rows, len(order))).cumsum()
    best = int(totals.argmax())
    num_best = best + 1 if totals[best] > 0.0 else 0
    places = np.repeat(np.arange(len(guesses)), counts)[order[:num_best]]
    lengths: list[int] = np.bincount(places, minlength=len(guesses)).tolist()
    return lengths


def compute_gain(guess: DraftCandidate, num_sequences: int, times: StepTimes) -> float:
    """Return the seconds that the best length of one draft gains in a pass of `num_sequences` rows without it."""
    most = _count_affordable(guess, num_sequences, times)
    gains = list(islice(_iter_gains(guess, num_sequences, most, times, {}), most))
    if not gains:
        return 0.0
    return max(0.0, float((np.array(gains) - times.get_prices(num_sequences, len(gains))).cumsum().max()))


def compute_token_seconds(
    hazard: float, num_sequences: int, most: int, times: StepTimes, draft_s: float = 0.0
) -> float:
    """Return the least seconds of a pass for each output token, if all drafts have this hazard at every token.

    With n drafted, `most` of them at most, a pass gives 1 + q + ... + q ** n tokens for each sequence, q = 1 - hazard.
    draft_s: what each drafted token costs before the pass.
    """
    survival = 1.0 - hazard
    lengths = [*TRIED[: bisect_right(TRIED, most)], most]
    return min(
        (times(num_sequences * (1 + length)) / num_sequences + length * draft_s)
        * (hazard / (1.0 - survival ** (1 + length)))
        for length in lengths
    )


def _iter_gains(
    guess: DraftCandidate, num_sequences: int, most: int, times: StepTimes, seconds: dict[tuple[float, int], float]
) -> Iterator[float]:
    """Yield the gain of each token in turn, in seconds, until no token can be worth its row.

    seconds: of a token by hazard and `most`, which drafts of one step share.
    """
    survival, num_behind = 1.0, sum(num_tokens for num_tokens, _ in guess.runs)
    least = times.least_slope / (times(num_sequences) / num_sequences)
    for num_tokens, hazard in guess.runs:
        # What is left of the draft may end the output: then no later pass shares the fixed cost.
        at_once = times(num_sequences * num_behind) / (num_sequences * num_behind)
        if (hazard, most) not in seconds:
            seconds[hazard, most] = compute_token_seconds(hazard, num_sequences, most, times)
        each = max(seconds[hazard, most], at_once)
        for _ in range(num_tokens):
            survival *= 1.0 - hazard
            if survival < least:
                return
            yield survival * each
        num_behind -= num_tokens


def _count_affordable(guess: DraftCandidate, num_rows: int, times: StepTimes) -> int:
    """Return how many tokens may be tried even if none is accepted."""
    limit = times(num_rows) + guess.most_s
    if times(num_rows + guess.most) <= limit:
        return guess.most
    return bisect_right(range(1, guess.most + 1), limit, key=lambda length: times(num_rows + length))


SLACK = 0.025
"""The share of the time without drafts that a request may take longer with them: 1 / 1.025 is 0.976.

The rest up to 0.95 absorbs errors of the times: single-row passes wait for memory and others for the cores, and other
work slows the one or the other. Edits that copy are as quick with less.
"""


@dataclass(slots=True)
class DraftLedger:
    """Seconds of one request by the step times: as it ran, with its drafter's time, and as it would have run without
    drafts.

    The prompt's time is in neither: the allowance depends on what is written, not on what was cached. The clock is used
    for none of them, so that equal requests take equal passes.
    """

    spent_s: float = 0.0
    plain_s: float = 0.0

    def book(self, spent_s: float, plain_s: float) -> None:
        """Book work that took `spent_s` and would have taken `plain_s` without drafts."""
        self.spent_s += spent_s
        self.plain_s += plain_s

    def compute_allowance(self, ahead_s: float) -> float:
        """Return the seconds that the next draft may lose, if the rest takes `ahead_s` without drafts."""
        return max(0.0, (1.0 + SLACK) * self.plain_s + SLACK * ahead_s - self.spent_s)


ASKING_SHARE = 1 / 64
"""While no draft is run, the drafter is asked so seldom that it takes this share of the passes' time. A drafter that
takes less than that of a single-row pass counts as if it took all of it, so that the clock decides nothing: 0.4 ms for
a pass of 26."""

NUM_TIMED = 4
"""The quickest of this many calls counts, and at first none: a drafter that builds an index on its first call, or was
delayed once, is not slow."""

NO_DRAFT = Draft((), ())

DRAFT_MODEL = "draft_model"
"""The source of what a draft model drafts, in statistics."""

MODEL_HAZARD = 0.2
"""The share of a draft model's tokens that the model does not write, until some were seen: a 0.5B model's for a 1.5B
model in new code (`benchmarks.drafts`)."""

MODEL_MEMORY = 128.0
"""How many tokens of a draft model are remembered."""

MOST_BY_MODEL = 12
"""The longest draft of a draft model."""

EXPECTED = 256
"""Tokens that an output is assumed to have, if it may: a draft model may lose SLACK of their time before it gains."""


class DraftState:
    """A request's drafts between the passes: its drafter's, and those of the engine's draft model.

    The whole draft is kept, however much of it is run: what the model writes by itself is compared with the rest. So it
    costs only the drafter's call to see when drafts become right again, also where the draft model's are run.
    """

    def __init__(
        self,
        proposer: Proposer | None,
        times: StepTimes,
        clock: Callable[[], float] = time.monotonic,
        *,
        vocab_size: int,
        draft_times: StepTimes | None = None,
    ) -> None:
        """`vocab_size` is the model's: proposed ids beyond it are cut off. draft_times: the draft model's, if there is
        one.
        """
        self.proposer = proposer
        self.by_source: dict[str, SourceUsage] = {}
        self.ledger = DraftLedger()
        self._times = times
        self._clock = clock
        self._vocab_size = vocab_size
        self._acceptance = AcceptanceModel()
        self._draft = NO_DRAFT
        self._draft_times = draft_times
        self._model_acceptance = AcceptanceModel(lost=0.0)
        self._model_misses = MissCounts(1.0, MODEL_MEMORY)
        self._model_draft: Draft | None = None  # run in place of `_draft`
        self._missed_gain = 0.0  # seconds that the draft model would have gained since it was last asked
        self._asked_at: int | None = None  # the length of the output for which `_draft` is
        self._ask_again_at = 0
        self._asking_s = deque([0.0], maxlen=NUM_TIMED)

    def propose(self, output_ids: Sequence[int], room: int) -> Sequence[int]:
        """Return up to `room` tokens that may follow the output; the drafter is asked once for each output."""
        num_output = len(output_ids)
        if self._model_draft is not None:
            return self._model_draft.token_ids
        if self._asked_at == num_output:
            return self._draft.token_ids
        self._draft = NO_DRAFT
        if self.proposer is not None and room > 0 and num_output >= self._ask_again_at:
            started = self._clock()
            self._draft = _check_draft(self.proposer.propose(output_ids, room), self._vocab_size).first(room)
            self._asking_s.append(self._clock() - started)
            self._asked_at = num_output
            self.ledger.book(self._cost_share * self._times(1), 0.0)
        return self._draft.token_ids

    def wants_model(self, room: int, num_sequences: int, num_behind: int) -> bool:
        """Return whether the draft model's draft would gain more than the drafter's, in a pass of `num_sequences` rows
        without drafts, and may be lost.

        room: how many tokens may be drafted. num_behind: tokens that the draft model has to run for its first one: this
        is done once it would have gained as much as that takes. So what is written after a copy has failed is taken for
        new only if it goes on.
        """
        if self._draft_times is None or room < 1 or self._model_draft is not None:
            return False
        draft_s, most = self._draft_times(num_sequences) / num_sequences, min(room, MOST_BY_MODEL)
        hazard = self._model_misses.correct(MODEL_HAZARD)
        each_s = compute_token_seconds(hazard, num_sequences, most, self._times, draft_s)
        gain = self._times(num_sequences) / num_sequences - each_s  # which a renewal process has at its optimum
        if gain <= 0.0:
            return False
        drafted = self.build_candidate(len(self._draft.token_ids), num_sequences)
        gain -= compute_gain(drafted, num_sequences, self._times)
        if gain <= 0.0:
            return False
        self._missed_gain += gain
        behind_s = self._draft_times(num_behind)
        if self._missed_gain < behind_s - self._draft_times(1) or not self._can_lose(behind_s, room, num_sequences):
            return False
        self._missed_gain = 0.0
        return True

    def wants_longer(self, draft: Draft, seconds: float, room: int, num_sequences: int) -> bool:
        """Return whether the draft model should draft one token more after this draft of its own, which took so many
        seconds.
        """
        assert self._draft_times is not None, "there is a draft model"
        num_drafted, most = len(draft.token_ids), min(room, MOST_BY_MODEL)
        if num_drafted >= most:
            return False
        draft_s = self._draft_times(num_sequences) / num_sequences
        hazard = self._model_misses.correct(MODEL_HAZARD)
        survival = 1.0 - hazard
        for _, each in self._model_acceptance.estimate_runs(draft):
            survival *= 1.0 - each
        each_s = compute_token_seconds(hazard, num_sequences, most, self._times, draft_s)
        price = draft_s + float(self._times.get_prices(num_sequences * (1 + num_drafted), 1)[0])
        return survival * each_s > price and self._can_lose(seconds + price, room, num_sequences)

    def _can_lose(self, seconds: float, room: int, num_sequences: int) -> bool:
        """Return whether a draft may take so long if none of it is accepted."""
        ahead_s = min(room, EXPECTED) * self._times(num_sequences)
        return seconds <= self.ledger.compute_allowance(ahead_s)

    def take_model_draft(self, draft: Draft, seconds: float) -> Sequence[int]:
        """Run this draft of the draft model, which took so many seconds, in place of the drafter's; return it."""
        self._model_draft = _check_draft(draft, self._vocab_size)
        self.ledger.book(seconds, 0.0)
        return self._model_draft.token_ids

    def build_candidate(self, most: int, num_sequences: int) -> DraftCandidate:
        """Return the draft for the choice of its length; `most` of its tokens are useful in a pass with
        `num_sequences`.
        """
        if self._model_draft is not None:  # most of its cost is spent already
            return DraftCandidate(tuple(self._model_acceptance.estimate_runs(self._model_draft)), most)
        draft, acceptance = self._draft, self._acceptance
        ahead_s = len(draft.token_ids) * self._times(num_sequences)
        return DraftCandidate(tuple(acceptance.estimate_runs(draft)), most, self.ledger.compute_allowance(ahead_s))

    def observe(self, written_ids: Sequence[int], num_drafted: int, num_output: int) -> None:
        """Learn that the model wrote these tokens in a pass that held the first `num_drafted` of the draft.

        `num_output` is the length of the output with them.
        """
        draft, asked, by_model = self._draft, self._asked_at is not None, self._model_draft
        self._draft, self._asked_at, self._model_draft = NO_DRAFT, None, None
        if by_model is not None:
            num_right = count_common_prefix(written_ids, by_model.token_ids)
            missed = num_right < min(len(written_ids), len(by_model.token_ids))
            self._model_acceptance.observe(by_model, num_right, missed=missed)
            self._model_misses.learn(num_right + missed, MODEL_HAZARD, missed=missed)
            self._count(by_model, num_drafted, min(num_right, num_drafted))
            num_drafted = 0  # of the drafter's draft
        if not draft.token_ids:
            if asked:
                self._acceptance.observe_silence()
            return
        num_right = count_common_prefix(written_ids, draft.token_ids)
        self._acceptance.observe(draft, num_right, missed=num_right < min(len(written_ids), len(draft.token_ids)))
        self._count(draft, num_drafted, min(num_right, num_drafted))
        if not num_drafted:
            self._ask_again_at = num_output + int(self._cost_share / ASKING_SHARE) - 1

    @property
    def _cost_share(self) -> float:
        """The time of a call, as a share of a single-row pass: ASKING_SHARE times a power of two, rounded up."""
        share = min(self._asking_s) / (ASKING_SHARE * self._times(1))
        return ASKING_SHARE * 2.0 ** max(0, ceil(log2(share))) if share > 1.0 else ASKING_SHARE

    def _count(self, draft: Draft, num_drafted: int, num_accepted: int) -> None:
        runs = draft.first(num_drafted).runs
        for source in {run.source for run in runs if run.num_tokens}:
            self.by_source.setdefault(source, SourceUsage()).forwards += 1
        for run in runs:
            counted = self.by_source.setdefault(run.source, SourceUsage())
            counted.drafted += run.num_tokens
            counted.accepted += min(run.num_tokens, num_accepted)
            num_accepted -= min(run.num_tokens, num_accepted)


def _check_draft(draft: Draft, vocab_size: int) -> Draft:
    """Return the draft up to the first id that the model has no row for; raises ValueError if its runs do not add up.

    A tokenizer may have more tokens than the model: such an id would read past the embedding, which on a card ends the
    context of all requests.
    """
    num_told = sum(run.num_tokens for run in draft.runs)
    if num_told != len(draft.token_ids) or any(run.num_tokens < 0 for run in draft.runs):
        raise ValueError(f"the draft's runs tell of {num_told} tokens and it has {len(draft.token_ids)}")
    token_ids = draft.token_ids
    if not len(token_ids) or 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        return draft
    return draft.first(next(at for at, token_id in enumerate(token_ids) if not 0 <= token_id < vocab_size))
