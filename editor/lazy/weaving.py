"""One reading of a lazy snippet as a merged text: the snippet's units woven into the file's, level by level.

Units that are the same (`editor/lazy/pairing.py`) hold the two together. Between two of them the snippet shows
everything, unless a marker stands there: then the file's units stay, and new ones go next to the neighbour that they
are shown with. A unit of the snippet without a marker inside replaces its counterpart whole; one with a marker is woven
in turn. What remains open is answered by `Choices`, so that the same snippet gives a text for every reading.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from editor.alignment import line_opcodes
from editor.lazy.edges import NOTE
from editor.lazy.pairing import Siblings, pair
from editor.lazy.units import Unit, is_comment
from editor.matching.indentation import mapping
from editor.matching.ladder import rstripped

_TAIL = re.compile(r"\s*(?:if __name__\b|export default\b|module\.exports\b|export \{|#\[cfg\(test\)\])")
_REMOVES = re.compile(r"\b(?:remov|delet|drop)(?:e|es|ed|ing|ped|ping)?\b", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")


@dataclass(frozen=True, slots=True)
class Choices:
    """How one reading answers what a snippet leaves open.

    `keep_unshown`: a file's units between two neighbours of the snippet stay. `early`: new units between two markers go
    to the first place that they can have, not the last. `move`: units in another order than the file's are moved, not
    changed in place. `bare`: the file's comments above a unit that the snippet shows without any go.
    """

    keep_unshown: bool = False
    early: bool = False
    move: bool = False
    bare: bool = False


@dataclass(slots=True)
class Decisions:
    """Which questions came up while weaving, so that only readings that differ are tried."""

    unshown: bool = False
    placed: bool = False
    moved: bool = False
    moved_together: bool = False
    leads: bool = False
    dropped_lines: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """One unit of the result. `f` and `s` are its indices among its siblings, None if it is not of that side."""

    lines: Sequence[str]
    f: int | None
    s: int | None
    tight: bool


class Weaver:
    """Weaves snippets into one file under one set of choices."""

    def __init__(self, file: Sequence[str], snippet: Sequence[str], choices: Choices, seen: Decisions) -> None:
        self.file = file
        self.snippet = snippet
        self.choices = choices
        self.seen = seen

    def woven(self, in_file: Sequence[Unit], in_snippet: Sequence[Unit], start: int, end: int) -> list[str]:
        """Return the merged lines of one level, which takes lines [start, end) of the file."""
        level = _Level(self, in_file, in_snippet, start, end)
        return level.lines()

    def merged_unit(self, have: Unit, sent: Unit) -> list[str]:
        """Return a unit of the file as the snippet wants it."""
        if sent.elides or (self.choices.keep_unshown and _is_partial(have, sent)) or _is_cut(have, sent):
            head = self._head(have, sent)
            return head + self.woven(have.parts, sent.parts, have.core + 1, have.end)
        lead = self._kept_lead(have, sent)
        lines = self.shifted(sent.start, sent.end, sent, have)
        return [*lead, *in_spelling_of(self.file[have.start : have.end], lines)]

    def shifted(self, start: int, end: int, sent: Unit, like: Unit | None) -> list[str]:
        """Return lines of the snippet at the indentation of a unit of the file."""
        lines = list(self.snippet[start:end])
        if like is None:
            return lines
        found, wanted = [self.file[like.core]], [self.snippet[sent.core]]
        have, had = self.file[like.start : like.end], self.snippet[sent.start : sent.end]
        for op in line_opcodes([line.strip() for line in have], [line.strip() for line in had]):
            if op.equal:
                found += have[op.a_start : op.a_end]
                wanted += had[op.b_start : op.b_end]
        how = mapping(found, wanted) or mapping(found[:1], wanted[:1])
        moved = [line if how is None else how.apply(line) for line in lines]
        return lines if None in moved else [line for line in moved if line is not None]

    def _head(self, have: Unit, sent: Unit) -> list[str]:
        lines = self.shifted(sent.start, sent.core + 1, sent, have)
        return [*self._kept_lead(have, sent), *in_spelling_of(self.file[have.start : have.core + 1], lines)]

    def _kept_lead(self, have: Unit, sent: Unit) -> list[str]:
        if have.core == have.start or sent.core > sent.start:
            return []
        lead = self.file[have.start : have.core]
        if not all(is_comment(line) or not line.strip() for line in lead):
            return []  # an attribute left out is an attribute taken away
        self.seen.leads = True
        return [] if self.choices.bare else list(lead)


class _Level:
    """The siblings of one level while they are woven."""

    def __init__(
        self, weaver: Weaver, in_file: Sequence[Unit], in_snippet: Sequence[Unit], start: int, end: int
    ) -> None:
        self.weaver = weaver
        self.outermost = start == 0
        self.file = Siblings(weaver.file, in_file)
        self.notes = {at for at, unit in enumerate(in_snippet) if self._is_note(unit)}
        kept = [unit for at, unit in enumerate(in_snippet) if at not in self.notes]
        self.snippet = Siblings(weaver.snippet, kept)
        self.start, self.end = start, end
        pairing = pair(self.file, self.snippet)
        self.pairs = pairing.in_order
        self.removed = self._named_in_notes([in_snippet[at] for at in self.notes])
        self.in_place = {f: s for s, f in pairing.moved.items()}
        if pairing.moved:
            weaver.seen.moved = True
            weaver.seen.moved_together |= any(self._has_neighbour(s) for s in pairing.moved)

    def lines(self) -> list[str]:
        """Return all lines of the level, the blank ones at its end included."""
        pieces = list(self._pieces())
        merged: list[str] = []
        for at, piece in enumerate(pieces):
            merged += self._blanks(pieces[at - 1] if at else None, piece)
            merged += piece.lines
        last = self.file.units[-1].end if self.file.units else self.start
        return [*merged, *self.weaver.file[last : self.end]]

    def _pieces(self) -> Iterator[_Piece]:
        last_f, last_s = -1, -1
        for s, f in [*sorted(self.pairs.items()), (len(self.snippet.units), len(self.file.units))]:
            yield from self._gap(range(last_f + 1, f), range(last_s + 1, s))
            if s < len(self.snippet.units):
                merged = self.weaver.merged_unit(self.file.units[f], self.snippet.units[s])
                yield _Piece(merged, f, s, len(merged) == 1)
            last_f, last_s = f, s

    def _gap(self, hidden: range, shown: range) -> Iterator[_Piece]:
        """Yield what stands between two pairs: the file's units there, and the snippet's new ones."""
        units = self.snippet.units
        marks = [at for at in shown if units[at].is_marker]
        new = [at for at in shown if not units[at].is_marker and not self._stays_in_place(at)]
        if not marks and self._is_open_below(shown):
            yield from self._open_gap(hidden, [*map(self._new, new)], held_above=hidden.start > 0)
            return
        if not marks and self.outermost and hidden.start == 0 and shown.start == 0:
            yield from self._open_gap(hidden, [*map(self._new, new)], held_above=False)
            return
        if not marks:
            yield from self._shown_gap(hidden, new)
            return
        first, last = marks[0], marks[-1]
        above = [at for at in new if at < first]
        below = [at for at in new if at > last]
        between = [at for at in new if first < at < last]
        if between and len(hidden) > 0:
            self.weaver.seen.placed = True
        above, below, free = self._free(hidden, shown, above, below, between)
        yield from map(self._new, above)
        yield from self._with_free(hidden, free)
        yield from map(self._new, below)

    def _with_free(self, hidden: range, free: Sequence[int]) -> Iterator[_Piece]:
        """Yield hidden units, and among them the new ones that nothing holds in place: imports go to imports."""
        imports = [s for s in free if self.snippet.is_import(s)]
        others = [s for s in free if s not in imports]
        last_import = max((f for f in hidden if self.file.is_import(f)), default=hidden.start - 1)
        place = self._place_for(hidden, others)
        for f in range(hidden.start, hidden.stop + 1):
            if f == last_import + 1:
                yield from map(self._new, imports)
            if f == place:
                yield from map(self._new, others)
            yield from self._kept([f] if f < hidden.stop else [])

    def _is_open_below(self, shown: range) -> bool:
        """Tell whether a gap lies at the end of a level that no closing line ends, so that nothing shows its end."""
        units = self.snippet.units
        return shown.stop == len(units) and not (units and units[-1].continues)

    def _open_gap(self, hidden: range, new: Sequence[_Piece], *, held_above: bool) -> Iterator[_Piece]:
        if held_above:
            yield from new
            yield from self._kept(hidden)
        else:
            yield from self._kept(hidden)
            yield from new

    def _free(
        self, hidden: range, shown: range, above: list[int], below: list[int], between: list[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Take new units that no neighbour holds in place out of `above` and `below`."""
        at_top, at_bottom = hidden.start == 0, hidden.stop == len(self.file.units)
        if at_top and shown.start == 0 and all(self.snippet.is_import(s) for s in above):
            between, above = [*above, *between], []
        if at_bottom and shown.stop == len(self.snippet.units):
            between, below = [*between, *below], []
        return above, below, between

    def _shown_gap(self, hidden: range, new: list[int]) -> Iterator[_Piece]:
        gone = [f for f in hidden if f not in self.in_place]
        if gone:
            self.weaver.seen.unshown = True
        keeps = self.weaver.choices.keep_unshown
        if not keeps:
            self.weaver.seen.dropped_lines += sum(self.file.units[f].end - self.file.units[f].start for f in gone)
        if keeps:
            yield from self._kept(hidden)
        else:
            yield from self._kept([f for f in hidden if f in self.in_place])
        yield from map(self._new, new)

    def _stays_in_place(self, s: int) -> bool:
        return not self.weaver.choices.move and s in self.in_place.values()

    def _kept(self, hidden: Sequence[int]) -> Iterator[_Piece]:
        for f in hidden:
            unit = self.file.units[f]
            if f in self.removed:
                continue
            s = self.in_place.get(f)
            if s is None:
                yield _Piece(self.weaver.file[unit.start : unit.end], f, None, unit.end == unit.start + 1)
            elif not self.weaver.choices.move:
                merged = self.weaver.merged_unit(unit, self.snippet.units[s])
                yield _Piece(merged, f, None, len(merged) == 1)

    def _new(self, s: int) -> _Piece:
        unit = self.snippet.units[s]
        like = next((have for have in self.file.units if not have.continues), None)
        return _Piece(self.weaver.shifted(unit.start, unit.end, unit, like), None, s, unit.end == unit.start + 1)

    def _place_for(self, hidden: range, new: list[int]) -> int:
        """Return before which hidden unit of the file new units go that nothing else holds in place."""
        if self.weaver.choices.early:
            return hidden.start
        place = hidden.stop
        while place > hidden.start and self._is_tail(place - 1):
            place -= 1
        return place

    def _is_tail(self, f: int) -> bool:
        return self.file.units[f].continues or _TAIL.match(self.file.heads[f]) is not None

    def _has_neighbour(self, s: int) -> bool:
        """Tell whether a unit is shown right next to another, no marker between them."""
        units = self.snippet.units
        return any(0 <= at < len(units) and not units[at].is_marker for at in (s - 1, s + 1))

    def _is_note(self, unit: Unit) -> bool:
        lines = self.weaver.snippet[unit.start : unit.end]
        if unit.is_marker or len(lines) != 1 or not NOTE.match(lines[0]) or not _REMOVES.search(lines[0]):
            return False
        return lines[0].strip() not in {line.strip() for line in self.weaver.file}

    def _named_in_notes(self, notes: Sequence[Unit]) -> set[int]:
        words = {word for unit in notes for word in _WORD.findall(self.weaver.snippet[unit.start])}
        paired = set(self.pairs.values())
        return {f for f in range(len(self.file.units)) if self.file.name(f) in words and f not in paired}

    def _blanks(self, above: _Piece | None, piece: _Piece) -> Sequence[str]:
        """Return the blank lines to stand between two pieces, as in the file or as in the snippet."""
        if above is None:
            if self.file.units and piece.f is None and self.snippet.units and piece.s == 0:
                return self._file_blanks(0)
            return self._file_blanks(piece.f if piece.f is not None else 0)
        together = piece.s is not None and above.s is not None and piece.s == above.s + 1
        if piece.f is not None and above.f is not None and piece.f == above.f + 1:
            have = self._file_blanks(piece.f)
            return (
                have
                if not together or self._snippet_blanks(piece.s) == len(have)
                else [""] * self._snippet_blanks(piece.s)
            )
        if together:
            return [""] * self._snippet_blanks(piece.s)
        unit = self._unit(piece)
        if unit.continues or self._unit(above).continues:
            return self._file_blanks(piece.f) if piece.f is not None else []
        if piece.f is not None and above.f is not None:
            return self._file_blanks(piece.f)
        usual = self._usual_blanks(piece, above)
        have = self._file_blanks(piece.f) if piece.f is not None else ()
        return have if len(have) >= usual else [""] * usual

    def _unit(self, piece: _Piece) -> Unit:
        if piece.f is not None:
            return self.file.units[piece.f]
        assert piece.s is not None
        return self.snippet.units[piece.s]

    def _file_blanks(self, f: int) -> Sequence[str]:
        if f >= len(self.file.units):
            return []
        above = self.file.units[f - 1].end if f else self.start
        return self.weaver.file[above : self.file.units[f].start]

    def _snippet_blanks(self, s: int | None) -> int:
        assert s is not None
        units = self.snippet.units
        return units[s].start - units[s - 1].end

    def _usual_blanks(self, piece: _Piece, above: _Piece) -> int:
        """Return how many blank lines part such units in the file, or else in the snippet."""
        tight = piece.tight and above.tight
        for units in (self.file.units, self.snippet.units):
            counts = Counter(
                low.start - high.end
                for high, low in pairwise(units)
                if not low.continues
                and not low.is_marker
                and not high.is_marker
                and tight == (low.end == low.start + 1 and high.end == high.start + 1)
            )
            if counts:
                return counts.most_common(1)[0][0]
        return 0 if tight else 1


def in_spelling_of(have: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the lines, those that differ from the file's only by spaces at their end as they stand there."""
    merged = list(lines)
    for op in line_opcodes([rstripped(line) for line in have], [rstripped(line) for line in lines]):
        if op.equal:
            merged[op.b_start : op.b_end] = have[op.a_start : op.a_end]
    return merged


def _is_partial(have: Unit, sent: Unit) -> bool:
    """Tell whether a unit without a marker shows only some of the definitions of its counterpart."""
    names = {part.name for part in have.parts if part.kind}
    return bool(sent.parts) and len(names - {part.name for part in sent.parts if part.kind}) > 0


def _is_cut(have: Unit, sent: Unit) -> bool:
    """Tell whether a unit that no closing line ends shows the first definitions of its counterpart, and no others."""
    shown = [part.name for part in sent.parts if part.kind]
    names = [part.name for part in have.parts if part.kind]
    closed = bool(sent.parts) and sent.parts[-1].continues
    return not closed and 0 < len(shown) < len(names) and names[: len(shown)] == shown
