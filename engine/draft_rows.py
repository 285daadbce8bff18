"""How many rows of a pass drafts get, and their branches: what the cost model says of all sequences together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.generation import Generation
from engine.scheduling import Sequence as ScheduledSequence
from engine.scheduling.budget import shares
from engine.speculation.branches import branch_length
from engine.speculation.lengths import chosen_lengths
from engine.speculation.pass_times import PassTimes


class DraftRows:
    """Asked by the scheduler when it knows what else is in a step."""

    def __init__(
        self,
        live: Mapping[int, tuple[ScheduledSequence, Generation]],
        times: PassTimes,
        num_running: Callable[[], int],
    ) -> None:
        """`live` are all requests that are not over, by id; it is looked into whenever a step is made."""
        self._live = live
        self._times = times
        self._num_running = num_running

    def lengths(self, sequences: Sequence[ScheduledSequence], num_scheduled: int, num_left: int) -> list[int]:
        """How far to follow each one's draft; what is forced is no guess, and goes first."""
        forced = [self._generation(each).is_forced for each in sequences]
        lengths = shares([each.num_draftable * is_so for each, is_so in zip(sequences, forced, strict=True)], num_left)
        num_forced, num_running = sum(lengths), self._num_running()
        guessed = [place for place, is_so in enumerate(forced) if not is_so]
        guesses = [
            self._generation(sequences[place]).drafting.guess(sequences[place].num_draftable, num_running)
            for place in guessed
        ]
        chosen = chosen_lengths(guesses, num_scheduled + num_forced, num_running, num_left - num_forced, self._times)
        for place, length in zip(guessed, chosen, strict=True):
            lengths[place] = length
        return lengths

    def branches(
        self, drafted: Sequence[tuple[ScheduledSequence, int]], num_scheduled: int, num_left: int
    ) -> list[int]:
        """How much of the branch of each one's draft to run beside so many of the draft, one after the other."""
        lengths, num_running = [0] * len(drafted), self._num_running()
        for place, (sequence, num_drafted) in enumerate(drafted):
            drafting = self._generation(sequence).drafting
            guess = None if sequence.branch is None else drafting.guess_branch(num_drafted, num_running)
            if guess is not None:
                num_rows, room = num_scheduled + sum(lengths), num_left - sum(lengths)
                lengths[place] = branch_length(guess, num_rows, num_running, room, self._times)
        return lengths

    def _generation(self, sequence: ScheduledSequence) -> Generation:
        return self._live[sequence.id][1]
