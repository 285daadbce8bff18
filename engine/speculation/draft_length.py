"""Chooses the length of each draft by its expected gain and cost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heapreplace

from engine.speculation.step_times import PassTimes

TRIED = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Lengths among which the best constant one is looked for; near its best, the rate hardly depends on it."""


@dataclass(frozen=True, slots=True)
class Guess:
    """One sequence's draft, for the choice of its length.

    runs: (tokens, hazard of each) in order. most: tokens of it that are of use. most_s: seconds of a pass that it may
    cost if all of it is rejected.
    """

    runs: Sequence[tuple[int, float]]
    most: int
    most_s: float = float("inf")


def chosen_lengths(
    guesses: Sequence[Guess], num_rows: int, num_sequences: int, num_left: int, times: PassTimes
) -> list[int]:
    """How many tokens of each draft to put into a pass that has `num_rows` rows, of `num_sequences`, without them.

    At most `num_left` in all. A token i is worth its chance of being accepted, the product of (1 - hazard) up to it,
    times the seconds of a pass that a token costs otherwise (`seconds_each`); it costs what its row adds to the pass.
    Tokens are added by worth, whoever's they are, and where worth less cost of all added is largest, that is the
    choice. So if hazards are constant, tokens per second are maximal (for one sequence the optimum of a renewal
    process: a pass is a cycle, what it confirms its reward). Where they vary, tokens behind an unlikely one are not
    drafted because they are cheap then, but left to the pass that begins with them.

    Example: T(k) = 18 + k ms and a hazard of 0.01 for all tokens: 0.99 ** n * 1.72 ms = 1 ms at n = 54, and no other n
    gives more tokens per second.
    """
    room = [min(num_left, _affordable(guess, num_rows, times)) for guess in guesses]
    share = num_left // max(1, len(guesses))
    worths = [_worths(guess, num_sequences, min(share, most), times) for guess, most in zip(guesses, room, strict=True)]
    heap = [(-first, place) for place, each in enumerate(worths) if room[place] and (first := next(each, 0.0))]
    heap.sort()
    prices = times.prices(num_rows)
    taken: list[int] = []
    gain = best_gain = 0.0
    num_best = 0
    while heap and len(taken) < num_left:
        worth, place = heap[0]
        taken.append(place)
        room[place] -= 1
        gain -= worth + next(prices)
        if gain > best_gain:
            best_gain, num_best = gain, len(taken)
        following = next(worths[place], 0.0) if room[place] else 0.0
        if following:
            heapreplace(heap, (-following, place))
        else:
            heappop(heap)
    counts = [0] * len(guesses)
    for place in taken[:num_best]:
        counts[place] += 1
    return counts


def seconds_each(hazard: float, num_sequences: int, most: int, times: PassTimes) -> float:
    """Seconds of a pass that an output token costs at best where all drafts have this hazard at every token.

    With n drafted, `most` of them at most, a pass gives 1 + q + ... + q ** n tokens for each sequence, q = 1 - hazard.
    """
    survival = 1.0 - hazard
    lengths = [*TRIED[: bisect_right(TRIED, most)], most]
    return (
        min(times(num_sequences * (1 + length)) * hazard / (1.0 - survival ** (1 + length)) for length in lengths)
        / num_sequences
    )


def _worths(guess: Guess, num_sequences: int, most: int, times: PassTimes) -> Iterator[float]:
    """What each token in turn is worth, in seconds; ends where none can be worth its row."""
    survival, num_behind = 1.0, sum(num_tokens for num_tokens, _ in guess.runs)
    least = times.least_slope / (times(num_sequences) / num_sequences)
    for num_tokens, hazard in guess.runs:
        # What is left of the draft may end the output: then no pass behind it shares the fixed cost.
        at_once = times(num_sequences * num_behind) / (num_sequences * num_behind)
        each = max(seconds_each(hazard, num_sequences, most, times), at_once)
        for _ in range(num_tokens):
            survival *= 1.0 - hazard
            if survival < least:
                return
            yield survival * each
        num_behind -= num_tokens


def _affordable(guess: Guess, num_rows: int, times: PassTimes) -> int:
    """Tokens that may be tried, even if none is accepted."""
    limit = times(num_rows) + guess.most_s
    return bisect_right(range(1, guess.most + 1), limit, key=lambda length: times(num_rows + length))


@dataclass(frozen=True, slots=True)
class BranchGuess:
    """One sequence's branch, for the choice of its length.

    chance: that the model comes to where it parts from the draft, and writes its first token there. runs: (tokens,
    hazard of each) of the branch, in order, behind that first token; an empty branch has none. most_s: seconds of a
    pass that it may cost for nothing.
    """

    chance: float
    runs: Sequence[tuple[int, float]]
    most_s: float = float("inf")

    @property
    def num_tokens(self) -> int:
        """The first one counted."""
        return 1 + sum(num_tokens for num_tokens, _ in self.runs)


def branch_length(guess: BranchGuess, num_rows: int, num_sequences: int, num_left: int, times: PassTimes) -> int:
    """How many tokens of a branch to put into a pass that has `num_rows` rows without it; at most `num_left`.

    The rule is that of `chosen_lengths`: a token is worth the chance that it is accepted times the seconds of a pass
    that a token costs otherwise, and costs what its row adds to the pass. A branch does not save the whole pass behind
    its departure: what it does not reach has to be run anyway, by a pass that costs as much but for the branch's rows.
    Where the branch may be all that is left of the output, that pass is saved, and its tokens are worth more.

    Example: T(k) = 25 + k ms, a branch of 10 tokens that ends the output. Without it these cost T(10) = 35 ms, 3.5 ms
    each; in a pass that runs anyway, 1 ms each. So it is run if its chance is more than 1 / 3.5.
    """
    most = min(guess.num_tokens, num_left, _affordable_branches(guess, num_rows, num_left, times))
    gain = best_gain = 0.0
    num_best = 0
    prices = times.prices(num_rows)
    for length, worth in enumerate(_branch_worths(guess, num_sequences, num_left, times), start=1):
        if length > most:
            break
        gain += worth - next(prices)
        if gain > best_gain:
            best_gain, num_best = gain, length
    return num_best


def _branch_worths(guess: BranchGuess, num_sequences: int, most: int, times: PassTimes) -> Iterator[float]:
    """What each token in turn is worth, in seconds."""

    def each(hazard: float, num_behind: int) -> float:
        at_once = times(num_sequences * num_behind) / (num_sequences * num_behind)
        return max(seconds_each(hazard, num_sequences, most, times), at_once) if hazard else at_once

    survival, num_behind = guess.chance, guess.num_tokens
    first_hazard = guess.runs[0][1] if guess.runs else 0.0  # what follows it, not its own chance, is how far it leads
    yield survival * each(first_hazard, num_behind)
    num_behind -= 1
    for num_tokens, hazard in guess.runs:
        worth = each(hazard, num_behind)
        for _ in range(num_tokens):
            survival *= 1.0 - hazard
            yield survival * worth
        num_behind -= num_tokens


def _affordable_branches(guess: BranchGuess, num_rows: int, most: int, times: PassTimes) -> int:
    """Tokens that may be tried, even if none is accepted."""
    limit = times(num_rows) + guess.most_s
    return bisect_right(range(1, most + 1), limit, key=lambda length: times(num_rows + length))
