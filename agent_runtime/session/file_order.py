"""Orders the files of a prompt by how often they change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

HORIZON_TURNS = 3
"""Turns within which a new order has to pay for itself. Measured (docs/reuse.md): 1 to 10 differ little; 100 loses a
third of the gain, since files do not stay in the prompt, nor keep their rate of change, for so long.
"""

DECAY = 0.9
"""Weight of a turn relative to the next one: about ten turns are remembered."""

PRIOR_CHANCE = 0.05
"""Chance of a change of an unknown file."""

PRIOR_TURNS = 10.0
"""Weight of the prior in turns: after so many without a change the chance has halved."""


@dataclass(frozen=True, slots=True)
class FileCost:
    """A file's tokens in the prompt, and the chance that it changes before the next turn, in [0, 1)."""

    num_tokens: int
    chance: float

    @property
    def odds_per_token(self) -> float:
        """The sort key: files with low odds come first."""
        return self.chance / (1.0 - self.chance) / self.num_tokens if self.num_tokens else inf


def estimate_prefill(order: Sequence[str], files: Mapping[str, FileCost]) -> float:
    """Return the expected number of file tokens that the next turn prefills: all from the first changed file on.

    Files change independently, and a changed file counts as a whole. The text after the files is left out: any change
    prefills it, whatever the order.
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
    """Return the order with the least `estimate_prefill`: ascending odds of a change per token.

    Swapping neighbours A, B changes the estimate by pA nB (1 - pB) - pB nA (1 - pA), times a factor that does not
    depend on their order: A comes first if pA / (1 - pA) / nA is less. Ties keep `current`'s order, then by path.
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
    """Return the order of `files` that costs least over this turn and the next `horizon` turns.

    current: the order in the last prompt. num_cached: file tokens, in the current order, whose KV is still valid: those
    before the first file that changed, left or came in. num_behind: tokens after the files, which any change before
    them prefills.

    A file keeps its place unless moving it saves more than the prefill of everything after it. Orders that share a
    prefix with the current one cost the same now, so for each prefix only the cheapest continuation is compared: one
    order a file. The result is the best of all orders (a test compares them).
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
        if cost < least * (1.0 - 1e-9):  # a rounding error is no gain
            best, least = order, cost
    return best


def _count_shared(order: Sequence[str], current: Sequence[str], files: Mapping[str, FileCost]) -> int:
    """Return the tokens of the files in the common prefix of two orders."""
    shared = 0
    for one, other in zip(order, current, strict=False):
        if one != other:
            break
        shared += files[one].num_tokens
    return shared


@dataclass(slots=True)
class _FileHistory:
    """Decayed sums of one file, as of a turn."""

    turn: int
    num_turns: float = 0.0
    num_changes: float = 0.0


class ChangeRates:
    """Estimates each file's chance of a change: the decayed share of turns at which it had changed, with a prior.

    A file that has been out of the prompt for long counts as unknown again.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._histories: dict[str, _FileHistory] = {}

    def observe(self, paths: Iterable[str], changed: Collection[str]) -> None:
        """Record a turn: the files in the prompt, and which of them had changed."""
        self._turn += 1
        for path in paths:
            history = self._histories.get(path) or _FileHistory(self._turn)
            faded = DECAY ** (self._turn - history.turn)
            self._histories[path] = _FileHistory(
                self._turn, history.num_turns * faded + 1.0, history.num_changes * faded + (path in changed)
            )

    def estimate_chance(self, path: str) -> float:
        """Return the chance that the file will have changed at the next turn, strictly between 0 and 1."""
        history = self._histories.get(path) or _FileHistory(self._turn)
        faded = DECAY ** (self._turn - history.turn)
        num_changes = history.num_changes * faded + PRIOR_CHANCE * PRIOR_TURNS
        return num_changes / (history.num_turns * faded + PRIOR_TURNS)
