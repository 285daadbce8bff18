"""One reading of a lazy snippet as a merged text: the snippet's units woven into the file's, level by level.

Units that are the same (`pairing.py`) hold the two together; what stands between them, `levels.py` puts into order. A
unit of the snippet without a marker inside replaces its counterpart whole; one with a marker is woven in turn. What
remains open is answered by `Choices`, so that the same snippet gives a text for every reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from editor.alignment import line_opcodes
from editor.lazy.choices import Choices, Decisions
from editor.lazy.levels import Level, Placed
from editor.lazy.notes import without_notes
from editor.lazy.siblings import Siblings
from editor.lazy.spacing import Piece, Spacing
from editor.lazy.units import Unit, is_comment
from editor.matching.indentation import mapping
from editor.matching.spelling import in_spelling_of


class Weaver:
    """Weaves a snippet into a file under one set of choices; `seen` is told which questions came up."""

    def __init__(self, file: Sequence[str], snippet: Sequence[str], choices: Choices, seen: Decisions) -> None:
        self._file = file
        self._snippet = snippet
        self._choices = choices
        self._seen = seen

    def woven(self, in_file: Sequence[Unit], in_snippet: Sequence[Unit], start: int, end: int) -> list[str]:
        """Return the merged lines of one level, which takes lines [start, end) of the file."""
        shown, removed = without_notes(in_snippet, self._snippet, self._file)
        file, snippet = Siblings(self._file, in_file), Siblings(self._snippet, shown)
        level = Level(file, snippet, removed, self._choices, self._seen, outermost=start == 0)
        like = next((unit for unit in in_file if not unit.continues), None)
        pieces = [self._piece(one, in_file, shown, like) for one in level.placed()]
        last = in_file[-1].end if in_file else start
        return [*Spacing(self._file, start, in_file, shown).joined(pieces), *self._file[last:end]]

    def _piece(self, placed: Placed, in_file: Sequence[Unit], shown: Sequence[Unit], like: Unit | None) -> Piece:
        """Return the lines of one unit; a new one comes at the indentation of `like`, a unit of its level."""
        have = None if placed.f is None else in_file[placed.f]
        sent = None if placed.s is None else shown[placed.s]
        if have is not None and sent is not None:
            lines = self._merged_unit(have, sent)
        elif have is not None:
            lines = list(self._file[have.start : have.end])
        else:
            assert sent is not None
            lines = self._shifted(sent, sent.end, like)
        return Piece(lines, placed.f, None if placed.in_place else placed.s)

    def _merged_unit(self, have: Unit, sent: Unit) -> list[str]:
        """Return a unit of the file as the snippet wants it."""
        if sent.elides or (self._choices.keep_unshown and _is_partial(have, sent)) or _is_cut(have, sent):
            head = self._head(have, sent)
            return head + self.woven(have.parts, sent.parts, have.core + 1, have.end)
        lead = self._kept_lead(have, sent)
        lines = self._shifted(sent, sent.end, have)
        return [*lead, *in_spelling_of(self._file[have.start : have.end], lines)]

    def _shifted(self, sent: Unit, end: int, like: Unit | None) -> list[str]:
        """Return a unit of the snippet, up to line `end` of it, at the indentation of a unit of the file."""
        lines = list(self._snippet[sent.start : end])
        if like is None:
            return lines
        found, wanted = [self._file[like.core]], [self._snippet[sent.core]]
        have, had = self._file[like.start : like.end], self._snippet[sent.start : sent.end]
        for op in line_opcodes([line.strip() for line in have], [line.strip() for line in had]):
            if op.equal:
                found += have[op.a_start : op.a_end]
                wanted += had[op.b_start : op.b_end]
        how = mapping(found, wanted) or mapping(found[:1], wanted[:1])
        moved = [line if how is None else how.apply(line) for line in lines]
        return lines if None in moved else [line for line in moved if line is not None]

    def _head(self, have: Unit, sent: Unit) -> list[str]:
        """Return what stands above the inner units."""
        lines = self._shifted(sent, sent.core + 1, have)
        return [*self._kept_lead(have, sent), *in_spelling_of(self._file[have.start : have.core + 1], lines)]

    def _kept_lead(self, have: Unit, sent: Unit) -> list[str]:
        """Return the comments above a unit of the file, which the snippet may have left out for brevity."""
        if have.core == have.start or sent.core > sent.start:
            return []
        lead = self._file[have.start : have.core]
        if not all(is_comment(line) or not line.strip() for line in lead):
            return []  # an attribute left out is an attribute taken away
        self._seen.leads = True
        return [] if self._choices.bare else list(lead)


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
