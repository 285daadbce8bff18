"""By simulated step times, no draft makes a request slower than 0.95 of plain decoding; a right one pays soon."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest

from engine.speculation.draft_state import DRAFT_MODEL, MOST_BY_MODEL, DraftState, choose_lengths
from engine.speculation.merge_draft import MergeDraft
from engine.speculation.step_times import StepTimes
from engine.types import Draft, DraftRun, Proposer
from tests.engine.cores import AlwaysWrong

# Decoding without a model or a clock: the output is known, and a table gives the seconds of a step.


TWO_CORES = StepTimes({1: 0.026, 2: 0.034, 16: 0.050, 64: 0.125, 128: 0.204, 256: 0.375, 512: 0.722})
"""Of a 0.5B model, in seconds."""

CARD = StepTimes({1: 0.006, 64: 0.0061, 256: 0.0064, 512: 0.0081, 1024: 0.014})


@dataclass
class Run:
    """One request, alone. `seconds` are all passes', `plain_s` those of decoding it a token a pass.

    Its prompt's rows are in neither.
    """

    seconds: float = 0.0
    plain_s: float = 0.0
    num_passes: int = 0
    lengths: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    drafting: DraftState | None = None

    @property
    def speed(self) -> float:
        """Times plain decoding."""
        return self.plain_s / self.seconds


def simulate(
    target: Sequence[int],
    proposer: Proposer,
    times: StepTimes = TWO_CORES,
    *,
    num_prompt: int = 0,
    asking_s: float = 0.0,
    held_up: Mapping[int, float] | None = None,
) -> Run:
    """The request whose output is `target`, with its prompt in one pass.

    Each question to the drafter takes `asking_s`, and those whose number is in `held_up` so much more.
    """
    run, now, output, num_asked = Run(), [0.0], list[int](), count()

    class Asked:
        def propose(self, output_ids, max_tokens):  # type: ignore[no-untyped-def]
            took = asking_s + (held_up or {}).get(next(num_asked), 0.0)
            now[0] += took
            run.seconds += took
            return proposer.propose(output_ids, max_tokens)

    drafting = run.drafting = DraftState(Asked(), times, lambda: now[0], vocab_size=1 << 20)
    while len(output) < len(target):
        num_rows = max(1, num_prompt) if not output else 1
        room = min(1024, len(target) - len(output) - 1)
        guessed = list(drafting.propose(output, room))
        (length,) = choose_lengths([drafting.build_candidate(len(guessed), 1)], num_rows, 1, 1024, times)
        given = list(target[len(output) : len(output) + 1])
        while len(given) <= length and given[-1] == guessed[len(given) - 1]:
            given.append(target[len(output) + len(given)])
        output += given
        drafting.observe(given, length, len(output))
        spent, plain = times(num_rows + length) - times(num_rows) + times(1), len(given) * times(1)
        drafting.ledger.book(spent, plain)
        run.seconds, run.plain_s = run.seconds + spent, run.plain_s + plain
        run.num_passes += 1
        run.lengths.append(length)
        run.written.append(len(given))
    assert output == list(target)
    return run


@dataclass
class SimulatedModel:
    """A draft model that is right with a chance of `share`, and says so, or says that it is sure."""

    share: float
    times: StepTimes
    is_honest: bool = True
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def guess(self, right: int) -> tuple[int, DraftRun]:
        token_id = right if self.rng.random() < self.share else right + 1
        return token_id, DraftRun(DRAFT_MODEL, 1, 1.0 - self.share if self.is_honest else 0.01)


def simulate_model(
    target: Sequence[int], model: SimulatedModel, times: StepTimes, proposer: Proposer | None = None
) -> Run:
    """As `simulate`, with a draft model beside the drafter, which reads 64 tokens before its first draft."""
    run, output, num_behind = Run(), list[int](), 64
    drafting = run.drafting = DraftState(proposer, times, lambda: 0.0, vocab_size=1 << 20, draft_times=model.times)
    while len(output) < len(target):
        room = min(1024, len(target) - len(output) - 1)
        guessed = list(drafting.propose(output, room))
        if output and drafting.wants_model(room, 1, num_behind):
            ids, runs, seconds = list[int](), list[DraftRun](), model.times(num_behind)
            while not ids or drafting.wants_longer(Draft(ids, tuple(runs)), seconds, room, 1):
                seconds += model.times(1) if ids else 0.0
                token_id, guess = model.guess(target[len(output) + len(ids)])
                ids, runs = [*ids, token_id], [*runs, guess]
            guessed = list(drafting.take_model_draft(Draft(ids, tuple(runs)), seconds))
            run.seconds, num_behind = run.seconds + seconds, 1
        (length,) = choose_lengths([drafting.build_candidate(len(guessed), 1)], 1, 1, 1024, times)
        given = list(target[len(output) : len(output) + 1])
        while len(given) <= length and given[-1] == guessed[len(given) - 1]:
            given.append(target[len(output) + len(given)])
        output += given
        drafting.observe(given, length, len(output))
        spent, plain = times(1 + length), len(given) * times(1)
        drafting.ledger.book(spent, plain)
        run.seconds, run.plain_s = run.seconds + spent, run.plain_s + plain
        run.num_passes += 1
    assert output == list(target)
    return run


# The drafters, and the speeds that they come to.


TIMES = {"two cores": TWO_CORES, "a card": CARD, "nothing measured": StepTimes()}
LEAST_SPEED = 0.95


def code_like(num_tokens: int, seed: int) -> list[int]:
    """Tokens that repeat as code does."""
    rng = random.Random(seed)
    lines = [[rng.randrange(200) for _ in range(rng.randrange(3, 12))] for _ in range(60)]
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens += [*rng.choice(lines), rng.randrange(200, 5000)]
    return tokens[:num_tokens]


SOURCE = code_like(3000, seed=1)
NEW = list(range(10_000, 13_000))


def copy_of(source: Sequence[int]) -> MergeDraft:
    return MergeDraft(merges=[], original=source)


@dataclass
class NowAndThenRight:
    """Each token is right with the same chance, which is far less than it claims."""

    target: Sequence[int]
    share: float
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        ahead = self.target[len(output_ids) : len(output_ids) + max_tokens]
        return Draft.from_tokens([each if self.rng.random() < self.share else each + 1 for each in ahead], hazard=0.001)


DRAFTERS = {
    "copies what is not written": lambda target: copy_of(SOURCE),
    "always wrong": lambda target: AlwaysWrong(target, 99_999),
    "right in 1 of 20": lambda target: NowAndThenRight(target, 0.05),
    "right in 1 of 5": lambda target: NowAndThenRight(target, 0.2),
    "right in 1 of 2": lambda target: NowAndThenRight(target, 0.5),
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("num_tokens", [20, 100, 300, 1000])
def test_output_that_copies_nothing_is_hardly_slower(drafter: str, times: StepTimes, num_tokens: int) -> None:
    target = NEW[:num_tokens]
    for num_prompt in (0, num_tokens + 300):
        run = simulate(target, DRAFTERS[drafter](target), times, num_prompt=num_prompt)
        assert run.speed >= LEAST_SPEED, f"{run.speed} with a prompt of {num_prompt}"


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_behind_many_misses_the_drafter_is_believed_no_more(times: StepTimes) -> None:
    run = simulate(NEW, copy_of(SOURCE), times)
    late = run.lengths[-500:]
    assert run.speed > 0.98
    assert times(1 + max(late)) < 1.05 * times(1)
    assert times is not TWO_CORES or max(late) == 0, "where a row costs a sixteenth of a pass, none is tried"


@pytest.mark.parametrize("asking_s", [0.0001, 0.002, 0.05])
def test_a_slow_drafter_is_asked_the_less_the_slower_it_is(asking_s: float) -> None:
    run = simulate(NEW, copy_of(SOURCE), asking_s=asking_s)
    assert run.speed >= LEAST_SPEED


QUICK = StepTimes({1: 0.007, 2: 0.008, 16: 0.02, 64: 0.05, 512: 0.4})
"""Of a draft model for the 0.5B model of TWO_CORES."""


@pytest.mark.parametrize("is_honest", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("num_tokens", [64, 300, 1000])
def test_a_draft_model_that_is_mostly_wrong_costs_little(num_tokens: int, share: float, is_honest: bool) -> None:
    """An output that is shorter than it may be loses what longer ones would have won: 64 tokens, of 256 or more."""
    run = simulate_model(NEW[:num_tokens], SimulatedModel(share, QUICK, is_honest), TWO_CORES)
    assert run.speed >= 0.97
    wide = simulate_model(NEW[:num_tokens], SimulatedModel(share, TWO_CORES, is_honest), TWO_CORES)
    assert wide.speed == 1.0, "one that is as slow as the model is not asked"


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9, 1.0])
def test_a_draft_model_that_is_mostly_right_is_about_as_quick_as_with_the_best_length(share: float) -> None:
    run = simulate_model(NEW[:256], SimulatedModel(share, QUICK), TWO_CORES)
    lengths = range(1, MOST_BY_MODEL + 1)
    best = min((TWO_CORES(1 + k) + k * QUICK(1)) / sum(share**i for i in range(k + 1)) for k in lengths)
    assert run.speed >= 0.9 * TWO_CORES(1) / best > 1.0, "64 tokens were read first"


def test_a_draft_model_takes_nothing_from_a_copy() -> None:
    """It is asked where the copy has failed, and left alone as soon as the copy goes on."""
    target = SOURCE[:500] + NEW[:300] + SOURCE[500:]
    alone = simulate(target, copy_of(SOURCE), TWO_CORES)
    both = simulate_model(target, SimulatedModel(0.8, QUICK), TWO_CORES, copy_of(SOURCE))
    assert both.seconds < alone.seconds - 300 * (0.026 - 0.026 / 1.25)
    whole = simulate(SOURCE, copy_of(SOURCE), TWO_CORES)
    assert simulate_model(SOURCE, SimulatedModel(0.8, QUICK), TWO_CORES, copy_of(SOURCE)).seconds <= whole.seconds


def test_a_question_that_took_long_once_changes_nothing() -> None:
    """The first makes an index; any may be held up by something else."""
    asked = simulate(SOURCE, copy_of(SOURCE), num_prompt=3300)
    for late in (0, 3):
        run = simulate(SOURCE, copy_of(SOURCE), num_prompt=3300, held_up={late: 60.0})
        assert run.lengths == asked.lengths


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_when_copying_begins_again_drafts_are_long_again_at_once(times: StepTimes) -> None:
    target = SOURCE[:500] + NEW[:300] + SOURCE[500:]
    run = simulate(target, copy_of(SOURCE), times, num_prompt=3300)
    assert run.num_passes < 300 + 45
    assert run.speed > 5.0
    written = [sum(run.written[:place]) for place in range(run.num_passes)]
    again = next(place for place, count in enumerate(written) if count > 802)
    assert max(run.written[again : again + 4]) > 50, "as soon as the drafter has found the place"


def test_a_copy_takes_few_passes_and_little_more_than_its_rows() -> None:
    run = simulate(SOURCE, copy_of(SOURCE), num_prompt=3300)
    assert run.num_passes <= 16
    at_least = TWO_CORES(3300 + 3000) - TWO_CORES(3300)
    assert run.seconds < 1.15 * at_least


def test_what_may_be_lost_does_not_depend_on_how_much_of_the_prompt_is_cached() -> None:
    """Else the same request would take other passes the second time, though each row costs the same."""
    straight = StepTimes({1: 0.019, 1024: 1.042})
    cold, cached = (simulate(NEW[:200], copy_of(SOURCE), straight, num_prompt=rows) for rows in (3300, 1))
    assert cold.lengths[0] > 0
    assert cold.lengths == cached.lengths


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_clock_decides_nothing_while_questions_are_short(drafter: str) -> None:
    """Each takes another time, up to a hundredth of a pass, now and then with something beside it."""
    target, rng = NEW[:300] + SOURCE[:300], random.Random(1)
    runs = []
    for _ in range(3):
        held_up = {number: rng.choice([0.0, 0.0001, 0.0002, 0.05]) for number in range(0, 600, 2)}
        runs.append(simulate(target, DRAFTERS[drafter](target), asking_s=0.00005, held_up=held_up))
    assert runs[0].lengths == runs[1].lengths == runs[2].lengths
    assert runs[0].seconds != runs[1].seconds


def test_one_miss_among_many_tokens_does_not_shorten_what_comes_behind_it_by_much() -> None:
    target = [*SOURCE[:1500], 7777, *SOURCE[1501:]]
    whole = simulate(SOURCE, copy_of(SOURCE), num_prompt=3300)
    run = simulate(target, copy_of(SOURCE), num_prompt=3300)
    assert run.num_passes <= whole.num_passes + 6
