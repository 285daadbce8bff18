"""Orders the files of a prompt by how often they change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

HORIZON_TURNS = 3
"""Over how many turns a new order has to pay for itself. Measured (docs/reuse.md): from 1 to 10 it hardly matters, with
100 a third of what is to be won is lost, as files do not stay in sight, or change alike, for so long.
"""


@dataclass(frozen=True, slots=True)
class FileCost:
    """A file's tokens in the prompt, and the chance that it changes until the next turn, in [0, 1)."""

    num_tokens: int
    chance: float

    @property
    def odds_per_token(self) -> float:
        """By which files are sorted: the least first."""
        return self.chance / (1.0 - self.chance) / self.num_tokens if self.num_tokens else inf


def estimate_prefill(order: Sequence[str], files: Mapping[str, FileCost]) -> float:
    """Tokens of files that the next turn is expected to prefill: all from the first file on that changed.

    Files change independently of one another, and a changed one is counted whole. What stands behind the files is
    prefilled with any change, in whichever order they stand, and left out.
    """
    left = float(sum(files[path].num_tokens for path in order))
    none_before, expected = 1.0, 0.0
    for path in order:
        file = files[path]
        expected += none_before * file.chance * left
        none_before *= 1.0 - file.chance
        left -= file.num_tokens
    return expected


def find_cheapest_order(files: Mapping[str, FileCost], current: Sequence[str] = ()) -> list[str]:
    """The order of all files with the least `estimate_prefill`: by ascending odds of a change per token.

    Swapping neighbours A, B changes it by pA nB (1 - pB) - pB nA (1 - pA) times what does not depend on their order, so
    A stands first where pA / (1 - pA) / nA is less. Equals stand as they do in `current`, then by path.
    """
    places = {path: place for place, path in enumerate(current)}
    return sorted(files, key=lambda path: (files[path].odds_per_token, places.get(path, len(places)), path))


def choose_order(
    current: Sequence[str],
    files: Mapping[str, FileCost],
    *,
    num_cached: int,
    num_behind: int,
    horizon: float = HORIZON_TURNS,
) -> list[str]:
    """The order of `files` for this prompt, given the last one's: what costs least over this turn and the next ones.

    num_cached: tokens of the files, in the current order, whose KV is there still: those before the first file that
    changed, came out or went in. num_behind: tokens behind the files, which are prefilled with any change before them.

    A file keeps its place unless the prefill of all behind it is paid back within `horizon` turns. Orders that share
    their beginning with the current one cost the same now, so of each such family only the cheapest later one counts:
    one order a file is compared, and the result is the best of all orders (a test compares it with them).
    """
    kept = [path for path in current if path in files]
    new = {path: file for path, file in files.items() if path not in set(kept)}
    best: list[str] = []
    least = inf
    for num_first in range(len(kept), -1, -1):
        first = kept[:num_first]
        order = first + find_cheapest_order({**{path: files[path] for path in kept[num_first:]}, **new}, kept)
        same = min(num_cached, _count_shared(order, kept, files))
        is_all = same == sum(files[path].num_tokens for path in order)
        now = 0 if is_all else sum(files[path].num_tokens for path in order) - same + num_behind
        cost = now + horizon * estimate_prefill(order, files)
        if cost < least * (1.0 - 1e-9):  # not for what rounding gives
            best, least = order, cost
    return best


def _count_shared(order: Sequence[str], current: Sequence[str], files: Mapping[str, FileCost]) -> int:
    """Tokens of the files that two orders begin with alike."""
    shared = 0
    for one, other in zip(order, current, strict=False):
        if one != other:
            break
        shared += files[one].num_tokens
    return shared


DECAY = 0.9
"""What a turn counts for beside the one after it: some ten turns back are remembered."""
PRIOR_CHANCE = 0.05
"""Of a file of which nothing was seen."""
PRIOR_TURNS = 10.0
"""How many turns the prior counts for: so many without a change halve it."""


@dataclass(slots=True)
class _FileHistory:
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
        self._seen: dict[str, _FileHistory] = {}

    def observe(self, paths: Iterable[str], changed: Collection[str]) -> None:
        """One turn: these files were in sight, and of them those changed."""
        self._turn += 1
        for path in paths:
            seen = self._seen.get(path) or _FileHistory(self._turn)
            faded = self._decay ** (self._turn - seen.turn)
            self._seen[path] = _FileHistory(
                self._turn, seen.num_turns * faded + 1.0, seen.num_changes * faded + (path in changed)
            )

    def estimate_chance(self, path: str) -> float:
        """That the file will have changed at the next turn."""
        seen = self._seen.get(path) or _FileHistory(self._turn)
        faded = self._decay ** (self._turn - seen.turn)
        num_changes = seen.num_changes * faded + self._prior_chance * self._prior_turns
        return num_changes / (seen.num_turns * faded + self._prior_turns)
