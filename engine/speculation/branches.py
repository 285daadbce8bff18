"""How much of a draft's branch to run: as much as is worth its rows, which is seldom anything on a CPU."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.speculation.lengths import seconds_each
from engine.speculation.pass_times import PassTimes


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
    most = min(guess.num_tokens, num_left, _affordable(guess, num_rows, num_left, times))
    gain = best_gain = 0.0
    num_best = 0
    prices = times.prices(num_rows)
    for length, worth in enumerate(_worths(guess, num_sequences, num_left, times), start=1):
        if length > most:
            break
        gain += worth - next(prices)
        if gain > best_gain:
            best_gain, num_best = gain, length
    return num_best


def _worths(guess: BranchGuess, num_sequences: int, most: int, times: PassTimes) -> Iterator[float]:
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


def _affordable(guess: BranchGuess, num_rows: int, most: int, times: PassTimes) -> int:
    """Tokens that may be tried, even if none is accepted."""
    limit = times(num_rows) + guess.most_s
    return bisect_right(range(1, most + 1), limit, key=lambda length: times(num_rows + length))
