"""How likely each file is to change until the next turn, from what was seen of it, and a prior before that."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

DECAY = 0.9
"""What a turn counts for beside the one after it: some ten turns back are remembered."""
PRIOR_CHANCE = 0.05
"""Of a file of which nothing was seen."""
PRIOR_TURNS = 10.0
"""How many turns the prior counts for: so many without a change halve it."""


@dataclass(slots=True)
class _Seen:
    """Decayed sums of one file, as they were at a turn."""

    turn: int
    num_turns: float = 0.0
    num_changes: float = 0.0


class ChangeRates:
    """Decayed shares of the turns at which each file had changed, drawn towards a prior.

    `chance` lies strictly between 0 and 1. Files that are out of sight for long are as unknown ones again.
    """

    def __init__(
        self, decay: float = DECAY, prior_chance: float = PRIOR_CHANCE, prior_turns: float = PRIOR_TURNS
    ) -> None:
        assert 0.0 < decay < 1.0, "a turn counts for less than the one after it"
        assert 0.0 < prior_chance < 1.0, "nothing is certain"
        assert prior_turns > 0.0, "the prior counts"
        self._decay, self._prior_chance, self._prior_turns = decay, prior_chance, prior_turns
        self._turn = 0
        self._seen: dict[str, _Seen] = {}

    def observe(self, paths: Iterable[str], changed: Collection[str]) -> None:
        """One turn: these files were in sight, and of them those changed."""
        self._turn += 1
        for path in paths:
            seen = self._seen.get(path) or _Seen(self._turn)
            faded = self._decay ** (self._turn - seen.turn)
            self._seen[path] = _Seen(
                self._turn, seen.num_turns * faded + 1.0, seen.num_changes * faded + (path in changed)
            )

    def chance(self, path: str) -> float:
        """That the file will have changed at the next turn."""
        seen = self._seen.get(path) or _Seen(self._turn)
        faded = self._decay ** (self._turn - seen.turn)
        num_changes = seen.num_changes * faded + self._prior_chance * self._prior_turns
        return num_changes / (seen.num_turns * faded + self._prior_turns)
