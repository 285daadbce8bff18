"""One level of a file and of a snippet: in which order their units stand in the result, and which of them go.

Between two pairs the snippet shows everything, unless a marker stands there: then the file's units stay, and new ones
go next to the neighbour that they are shown with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from editor.lazy.choices import Choices, Decisions
from editor.lazy.pairing import pair
from editor.lazy.siblings import Siblings

_TAIL = re.compile(r"\s*(?:if __name__\b|export default\b|module\.exports\b|export \{|#\[cfg\(test\)\])")


@dataclass(frozen=True, slots=True)
class Placed:
    """One unit of the result: unit `f` of the file, `s` of the snippet, or both merged.

    `in_place` tells a merged unit that stays where the file has it, away from its neighbours in the snippet.
    """

    f: int | None
    s: int | None
    in_place: bool = False


class Level:
    """The siblings of one level of the file and of the snippet.

    Units of the file that bear one of the names `removed` go, unless the snippet shows them. `outermost` tells the
    level that is the whole file. What comes up while they are put into order is told to `seen`.
    """

    def __init__(
        self,
        file: Siblings,
        snippet: Siblings,
        removed: frozenset[str],
        choices: Choices,
        seen: Decisions,
        *,
        outermost: bool,
    ) -> None:
        self._file = file
        self._snippet = snippet
        self._choices = choices
        self._seen = seen
        self._outermost = outermost
        pairing = pair(file, snippet)
        self._pairs = pairing.in_order
        paired = set(self._pairs.values())
        self._removed = {f for f in range(len(file.units)) if file.name(f) in removed and f not in paired}
        self._moved = {f: s for s, f in pairing.moved.items()}

    def placed(self) -> Iterator[Placed]:
        """Yield the units of the result from top to bottom."""
        if self._moved:
            self._seen.moved = True
            self._seen.moved_together |= any(self._has_neighbour(s) for s in self._moved.values())
        last_f, last_s = -1, -1
        for s, f in [*sorted(self._pairs.items()), (len(self._snippet.units), len(self._file.units))]:
            yield from self._gap(range(last_f + 1, f), range(last_s + 1, s))
            if s < len(self._snippet.units):
                yield Placed(f, s)
            last_f, last_s = f, s

    def _gap(self, hidden: range, shown: range) -> Iterator[Placed]:
        """Yield what stands between two pairs: the file's units there, and the snippet's new ones."""
        units = self._snippet.units
        marks = [at for at in shown if units[at].is_marker]
        new = [at for at in shown if not units[at].is_marker and not self._stays_in_place(at)]
        if marks:
            yield from self._elided_gap(hidden, shown, marks, new)
        elif self._is_open_below(shown):
            yield from self._open_gap(hidden, new, new_first=hidden.start > 0)
        elif self._outermost and hidden.start == 0 and shown.start == 0:
            yield from self._open_gap(hidden, new, new_first=False)
        else:
            yield from self._shown_gap(hidden, new)

    def _elided_gap(self, hidden: range, shown: range, marks: Sequence[int], new: Sequence[int]) -> Iterator[Placed]:
        """Yield a gap with markers: new units next to the neighbour that they are shown with, the others free."""
        above = [at for at in new if at < marks[0]]
        below = [at for at in new if at > marks[-1]]
        free = [at for at in new if marks[0] < at < marks[-1]]
        if free and len(hidden) > 0:
            self._seen.placed = True
        if hidden.start == 0 and shown.start == 0 and all(self._snippet.is_import(s) for s in above):
            above, free = [], [*above, *free]
        if hidden.stop == len(self._file.units) and shown.stop == len(self._snippet.units):
            below, free = [], [*free, *below]
        yield from _new(above)
        yield from self._with_free(hidden, free)
        yield from _new(below)

    def _with_free(self, hidden: range, free: Sequence[int]) -> Iterator[Placed]:
        """Yield hidden units, and among them the new ones that nothing holds in place: imports go to imports."""
        imports = [s for s in free if self._snippet.is_import(s)]
        others = [s for s in free if s not in imports]
        last_import = max((f for f in hidden if self._file.is_import(f)), default=hidden.start - 1)
        place = self._place_for_free(hidden)
        for f in range(hidden.start, hidden.stop + 1):
            if f == last_import + 1:
                yield from _new(imports)
            if f == place:
                yield from _new(others)
            yield from self._kept([f] if f < hidden.stop else [])

    def _place_for_free(self, hidden: range) -> int:
        """Return before which hidden unit of the file new units go that nothing else holds in place."""
        if self._choices.early:
            return hidden.start
        place = hidden.stop
        while place > hidden.start and self._is_tail(place - 1):
            place -= 1
        return place

    def _open_gap(self, hidden: range, new: Sequence[int], *, new_first: bool) -> Iterator[Placed]:
        if new_first:
            yield from _new(new)
        yield from self._kept(hidden)
        if not new_first:
            yield from _new(new)

    def _shown_gap(self, hidden: range, new: Sequence[int]) -> Iterator[Placed]:
        """Yield a gap of which the snippet shows everything: the file's other units go, or stay above the new ones."""
        if any(f not in self._moved for f in hidden):
            self._seen.unshown = True
        yield from self._kept(f for f in hidden if self._choices.keep_unshown or f in self._moved)
        yield from _new(new)

    def _kept(self, hidden: Iterable[int]) -> Iterator[Placed]:
        """Yield units of the file, those that the snippet shows elsewhere changed in place, or not if they move."""
        for f in hidden:
            if f in self._removed:
                continue
            if f not in self._moved:
                yield Placed(f, None)
            elif not self._choices.move:
                yield Placed(f, self._moved[f], in_place=True)

    def _stays_in_place(self, s: int) -> bool:
        return not self._choices.move and s in self._moved.values()

    def _is_open_below(self, shown: range) -> bool:
        """Tell whether a gap lies at the end of a level that no closing line ends, so that nothing shows its end."""
        units = self._snippet.units
        return shown.stop == len(units) and not (units and units[-1].continues)

    def _is_tail(self, f: int) -> bool:
        return self._file.units[f].continues or _TAIL.match(self._file.heads[f]) is not None

    def _has_neighbour(self, s: int) -> bool:
        """Tell whether a unit is shown right next to another, no marker between them."""
        units = self._snippet.units
        return any(0 <= at < len(units) and not units[at].is_marker for at in (s - 1, s + 1))


def _new(units: Iterable[int]) -> Iterator[Placed]:
    return (Placed(None, s) for s in units)
