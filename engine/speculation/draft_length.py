"""Chooses the length of each draft by its expected gain and cost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heapreplace

from engine.speculation.step_times import StepTimes

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
    room = [min(num_left, _count_affordable(guess, num_rows, times)) for guess in guesses]
    share = num_left // max(1, len(guesses))
    worths = [
        _iter_gains(guess, num_sequences, min(share, most), times) for guess, most in zip(guesses, room, strict=True)
    ]
    heap = [(-first, place) for place, each in enumerate(worths) if room[place] and (first := next(each, 0.0))]
    heap.sort()
    prices = times.iter_prices(num_rows)
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


def compute_token_seconds(hazard: float, num_sequences: int, most: int, times: StepTimes) -> float:
    """Return the least seconds of a pass for each output token, if all drafts have this hazard at every token.

    With n drafted, `most` of them at most, a pass gives 1 + q + ... + q ** n tokens for each sequence, q = 1 - hazard.
    """
    survival = 1.0 - hazard
    lengths = [*TRIED[: bisect_right(TRIED, most)], most]
    return (
        min(times(num_sequences * (1 + length)) * hazard / (1.0 - survival ** (1 + length)) for length in lengths)
        / num_sequences
    )


def _iter_gains(guess: DraftCandidate, num_sequences: int, most: int, times: StepTimes) -> Iterator[float]:
    """Yield the gain of each token in turn, in seconds, until no token can be worth its row."""
    survival, num_behind = 1.0, sum(num_tokens for num_tokens, _ in guess.runs)
    least = times.least_slope / (times(num_sequences) / num_sequences)
    for num_tokens, hazard in guess.runs:
        # What is left of the draft may end the output: then no later pass shares the fixed cost.
        at_once = times(num_sequences * num_behind) / (num_sequences * num_behind)
        each = max(compute_token_seconds(hazard, num_sequences, most, times), at_once)
        for _ in range(num_tokens):
            survival *= 1.0 - hazard
            if survival < least:
                return
            yield survival * each
        num_behind -= num_tokens


def _count_affordable(guess: DraftCandidate, num_rows: int, times: StepTimes) -> int:
    """Return how many tokens may be tried even if none is accepted."""
    limit = times(num_rows) + guess.most_s
    return bisect_right(range(1, guess.most + 1), limit, key=lambda length: times(num_rows + length))
