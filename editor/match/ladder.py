"""The matching ladder: finds lines in a file, exact comparison first.

Indentation is the same if every line has one run of blanks more (or less), or if one side has tabs where the other
has a fixed number of spaces. Nothing else counts.

    exact            the lines are equal
    trailing_space   they are equal except for spaces, tabs and carriage returns at line ends
    reindent         they are equal except for one mapping of indentations (`find_mapping`), if there are words
    folded           they are equal except for that, and for characters that look alike (`fold`)

The first rung that finds anything decides. More than one place on it is an ambiguity, which no looser rung can resolve.
The rungs `elided` (`editor/match/elision.py`) and `fuzzy` (`editor/match/near_miss.py`) are built on these four.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from editor.errors import TooMuchWorkError
from editor.execution import check_stopped
from editor.types import Rung

BLANKS = " \t\r"
SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_LOOK_ALIKES: dict[int, str] = {
    **dict.fromkeys(map(ord, SPACES), " "),
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u02bc"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033"), '"'),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63"), "-"),
    **dict.fromkeys(map(ord, "\u200b\u2060\ufeff\u00ad"), ""),
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
    0x2026: "...",
}


def fold(text: str) -> str:
    """Return a text with each look-alike, such as a no-break space, replaced by its common form.

    Unicode spaces become a space, curly quotes and primes straight quotes, dashes and the minus sign `-`, `…` three
    dots, fullwidth forms ASCII. Combining marks are composed (NFC), zero-width characters and soft hyphens are dropped.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text).translate(_LOOK_ALIKES)


Key = Callable[[str], str]
# After so many searches for near misses in one text, no more are made.
_MAX_SEARCHES = 100


def identity(line: str) -> str:
    """Compare lines as they are."""
    return line


def rstrip_blanks(line: str) -> str:
    """Return a line without the trailing blanks that the second rung ignores; NBSP and form feed stay."""
    return line.rstrip(BLANKS)


def strip_blanks(line: str) -> str:
    """Return a line without the blanks at both ends."""
    return line.strip(BLANKS)


def fold_line(line: str) -> str:
    """Return a line with look-alikes folded and without blanks at both ends: the loosest comparison."""
    return fold(line).strip(BLANKS)


MAX_COMPARED = 8_000_000
"""The number of places that are compared for all blocks or hunks of one edit."""

# Above this, places are not compared one by one: in periodic texts that takes quadratic time.
_MANY_COMPARED = 4


class LineIndex:
    """The lines of one text with their places; the lines must not change while it is used.

    `language` is that of the text (`editor.grammars`), None if it is not known. `searches_left` bounds the searches of
    the whole text for similar lines.
    """

    def __init__(self, lines: Sequence[str], language: str | None = None) -> None:
        self.lines = lines
        self.language = language
        self.searches_left = _MAX_SEARCHES
        self._by_key: dict[Key, KeyedLines] = {}
        self._is_ascii: bool | None = None
        self._folded: list[str] | None = None

    @property
    def is_ascii(self) -> bool:
        """Return whether there is nothing to fold."""
        if self._is_ascii is None:
            self._is_ascii = all(map(str.isascii, self.lines))
        return self._is_ascii

    @property
    def canonical_lines(self) -> Sequence[str]:
        """Return the lines with look-alikes folded, blanks at both ends included."""
        if self._folded is None:
            self._folded = [fold(line) for line in self.lines]
        return self._folded

    def key_by(self, key: Key) -> KeyedLines:
        """Return the lines under one way of comparing."""
        if key is fold_line and self.is_ascii:
            key = strip_blanks
        known = self._by_key.get(key)
        if known is None:
            check_stopped()
            known = KeyedLines(list(self.lines) if key is identity else [key(line) for line in self.lines])
            self._by_key[key] = known
        return known


class KeyedLines:
    """The keys of a text's lines in order, and where each key is.

    The first query scans the keys; the index of places is built at the second one.
    """

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self._places: dict[str, list[int]] = {}
        self._was_asked = False
        self._num_compared = 0

    @property
    def places(self) -> dict[str, list[int]]:
        """Return all places of every key."""
        if not self._places:
            for at, key in enumerate(self.keys):
                self._places.setdefault(key, []).append(at)
        return self._places

    def find_starts(self, sought: Sequence[str]) -> tuple[int, ...]:
        """Return all places where the sought keys are one after the other; only the places of one key are compared.

        Raises `TooMuchWorkError` if all calls together have compared too many places.
        """
        check_stopped()
        if self._was_asked or self._places:
            pivot, found = self._find_rarest(sought)
        else:
            self._was_asked = True
            pivot = max(range(len(sought)), key=lambda at: len(sought[at]))
            found = self._scan(sought[pivot])
        wanted, size, last = list(sought), len(sought), len(self.keys) - len(sought)
        is_periodic = len(found) * size > _MANY_COMPARED * len(self.keys)
        self._num_compared += len(self.keys) if is_periodic else len(found)
        if self._num_compared > MAX_COMPARED:
            raise TooMuchWorkError(f"its lines stand in more than {MAX_COMPARED} places together")
        if is_periodic:
            return tuple(find_runs(self.keys, wanted))
        if size == 1:
            return tuple(found)
        candidates = (at - pivot for at in found)
        return tuple(at for at in candidates if 0 <= at <= last and self.keys[at : at + size] == wanted)

    def _find_rarest(self, sought: Sequence[str]) -> tuple[int, Sequence[int]]:
        """Return the key that occurs least often (perhaps nowhere), and its places."""
        rarest, fewest = 0, self.places.get(sought[0], [])
        for offset, key in enumerate(sought):
            if not fewest:
                break
            places = self.places.get(key, [])
            if len(places) < len(fewest):
                rarest, fewest = offset, places
        return rarest, fewest

    def _scan(self, key: str) -> Sequence[int]:
        found: list[int] = []
        at = -1
        try:
            while True:
                at = self.keys.index(key, at + 1)
                found.append(at)
        except ValueError:
            return found


def find_runs(keys: Sequence[str], wanted: Sequence[str]) -> Iterator[int]:
    """Yield where all wanted keys are one after the other; each key is compared at most twice, whatever the text.

    Knuth, Morris and Pratt, 1977.
    """
    borders = _compute_borders(wanted)
    matched = 0
    for at, key in enumerate(keys):
        while matched and (matched == len(wanted) or wanted[matched] != key):
            matched = borders[matched - 1]
        matched += wanted[matched] == key
        if matched == len(wanted):
            yield at + 1 - matched


def _compute_borders(wanted: Sequence[str]) -> list[int]:
    """Return for every prefix of the keys the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(wanted)
    matched = 0
    for at in range(1, len(wanted)):
        while matched and wanted[matched] != wanted[at]:
            matched = borders[matched - 1]
        matched += wanted[matched] == wanted[at]
        borders[at] = matched
    return borders


_TABS_THEN_SPACES = re.compile(r"(\t*)( *)")
_UNITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class Shift:
    """The difference of the file's indentation from that of the lines looked for: blanks `added` or `removed`.

    `mixes` says that the file itself has tabs and spaces in one indentation here.
    """

    added: str = ""
    removed: str = ""
    mixes: bool = False

    def apply(self, line: str) -> str | None:
        """Return a line moved to the file's indentation; None if it cannot be moved, or would mix tabs and spaces."""
        if not line.strip(BLANKS):
            return line
        if not line.startswith(self.removed):
            return None
        rest = line[len(self.removed) :]
        return None if not self.mixes and _is_mixed(self.added, get_indent(rest)) else self.added + rest


@dataclass(frozen=True, slots=True)
class Retab:
    """One tab of the file for every `unit` spaces of the edit (`to_tabs`), or the reverse, `depth` levels deeper."""

    unit: int
    depth: int
    to_tabs: bool

    def apply(self, line: str) -> str | None:
        """Return a line with the file's kind of indentation; None if its own is not spaces, or tabs before spaces."""
        if not line.strip(BLANKS):
            return line
        own = get_indent(line)
        levels = _count_levels(own, self.unit, spaces=self.to_tabs)
        if levels is None or levels[0] + self.depth < 0:
            return None
        level, rest = levels[0] + self.depth, " " * levels[1]
        return ("\t" * level if self.to_tabs else " " * (self.unit * level)) + rest + line[len(own) :]


IndentMapping = Shift | Retab


def find_mapping(found: Sequence[str], wanted: Sequence[str]) -> IndentMapping | None:
    """Return the one mapping from `wanted` to `found` that holds on every line that is not blank, or None."""
    pairs = [
        (get_indent(line), get_indent(sought))
        for line, sought in zip(found, wanted, strict=True)
        if sought.strip(BLANKS)
    ]
    return (_find_shift(pairs) or _find_retab(pairs)) if pairs else None


def get_indent(line: str) -> str:
    """Return the spaces and tabs that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t"))]


def measure_width(line: str) -> int:
    """Return the columns of a line's indentation, a tab as four."""
    return len(get_indent(line).expandtabs(4))


def strip_blank_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return lines without the blank ones at both ends."""
    solid = [at for at, line in enumerate(lines) if line.strip()]
    return tuple(lines[solid[0] : solid[-1] + 1]) if solid else ()


def _find_shift(pairs: Sequence[tuple[str, str]]) -> Shift | None:
    """Return the shift of all pairs (indentation of the file, of the edit)."""
    have, had = pairs[0]
    if have.endswith(had):
        added, removed = have[: len(have) - len(had)], ""
    elif had.endswith(have):
        added, removed = "", had[: len(had) - len(have)]
    else:
        return None
    if any(have != added + had[len(removed) :] or not had.startswith(removed) for have, had in pairs):
        return None
    return Shift(added, removed, any(" " in have and "\t" in have for have, _ in pairs))


def _find_retab(pairs: Sequence[tuple[str, str]]) -> Retab | None:
    to_tabs = any("\t" in have for have, _ in pairs)
    if to_tabs == any("\t" in had for _, had in pairs):
        return None
    found = [one for unit in _UNITS for one in _find_retabs(unit, pairs, to_tabs)]
    level = [one for one in found if one.depth == 0]
    return next(iter(level), None) if level or len(found) != 1 else found[0]


def _find_retabs(unit: int, pairs: Sequence[tuple[str, str]], to_tabs: bool) -> Iterator[Retab]:
    depths: set[int] = set()
    for have, had in pairs:
        in_file = _count_levels(have, unit, spaces=not to_tabs)
        in_edit = _count_levels(had, unit, spaces=to_tabs)
        if in_file is None or in_edit is None or in_file[1] != in_edit[1]:
            return
        depths.add(in_file[0] - in_edit[0])
    if len(depths) == 1:
        yield Retab(unit, depths.pop(), to_tabs)


def _count_levels(own: str, unit: int, *, spaces: bool) -> tuple[int, int] | None:
    """Return (levels, spaces left over) of an indentation of spaces, or of tabs with a few spaces after them."""
    if spaces:
        return None if "\t" in own else divmod(len(own), unit)
    parts = _TABS_THEN_SPACES.fullmatch(own)
    return (len(parts[1]), len(parts[2])) if parts is not None and len(parts[2]) < unit else None


def _is_mixed(outer: str, inner: str) -> bool:
    # One space after tabs is the ` *` of a block comment.
    return ("\t" in outer and inner.startswith("  ")) or (" " in outer and "\t" in inner)


MAX_LINES_MAPPED = 1_000_000
"""The number of lines whose indentation is compared at all places of one block."""


@dataclass(frozen=True, slots=True)
class Places:
    """All places of one rung: `starts` are line indices; `shifts` belong to them one by one."""

    rung: Rung
    starts: tuple[int, ...]
    shifts: tuple[IndentMapping, ...]


def find_places(lines: Sequence[str] | LineIndex, wanted: Sequence[str]) -> Places | None:
    """Return the places of the strictest rung that finds `wanted` in `lines`; None if no rung does.

    `wanted` must hold a line that is not blank: blank lines alone are everywhere. A caller that looks for many runs of
    lines in one text passes an index of it.
    """
    index = lines if isinstance(lines, LineIndex) else LineIndex(lines)
    starts = index.key_by(identity).find_starts(wanted)
    if starts:
        return Places("exact", starts, (Shift(),) * len(starts))
    starts = index.key_by(rstrip_blanks).find_starts([rstrip_blanks(line) for line in wanted])
    if starts:
        return Places("trailing_space", starts, (Shift(),) * len(starts))
    if not any(char.isalnum() for line in wanted for char in line):
        # Brackets and quotes occur at any indentation by chance.
        return None
    starts = index.key_by(strip_blanks).find_starts([strip_blanks(line) for line in wanted])
    reindented = _filter_by_mapping("reindent", starts, index.lines, wanted)
    if reindented is not None or (index.is_ascii and all(map(str.isascii, wanted))):
        return reindented
    starts = index.key_by(fold_line).find_starts([fold_line(line) for line in wanted])
    return (
        _filter_by_mapping("folded", starts, index.canonical_lines, [fold(line) for line in wanted]) if starts else None
    )


def _filter_by_mapping(rung: Rung, starts: Sequence[int], lines: Sequence[str], wanted: Sequence[str]) -> Places | None:
    size = len(wanted)
    if len(starts) > 1 and len(starts) * size > MAX_LINES_MAPPED:
        raise TooMuchWorkError(f"{size} lines that stand in {len(starts)} places, but at another indentation")
    found = [(at, one) for at in starts if (one := find_mapping(lines[at : at + size], wanted)) is not None]
    return Places(rung, tuple(at for at, _ in found), tuple(one for _, one in found)) if found else None
