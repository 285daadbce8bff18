"""Where every line of a text stands, under each way of comparing lines; made once, and only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from editor.effort import look
from editor.errors import TooMuchWorkError
from editor.matching.folding import BLANKS, fold

Key = Callable[[str], str]
# Of an edit with more changes than this that are done already, the rest is not asked for near misses.
_MAX_SEARCHES = 100


def exact(line: str) -> str:
    """Compare lines as they are."""
    return line


def rstripped(line: str) -> str:
    """Return a line without the blanks at its end that the second rung forgives; NBSP and form feed stay."""
    return line.rstrip(BLANKS)


def stripped(line: str) -> str:
    """Return a line without the blanks at both ends."""
    return line.strip(BLANKS)


def folded(line: str) -> str:
    """Return a line with look-alikes folded, without blanks at both ends: the loosest way of comparing."""
    return fold(line).strip(BLANKS)


MAX_COMPARED = 8_000_000
"""The places that are compared for all blocks or hunks of one edit."""

# From here on each of the places is not compared over all lines: in periodic texts that takes time by the square.
_MANY_COMPARED = 4


class LineIndex:
    """The lines of one text with their places; the lines must not change while it is used.

    `language` is that of the text (`editor.languages`), None if it is not known. `searches_left` bounds how often the
    whole text is looked through for lines that are only like others.
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
        """Tell whether there is nothing to fold."""
        if self._is_ascii is None:
            self._is_ascii = all(map(str.isascii, self.lines))
        return self._is_ascii

    @property
    def folded_lines(self) -> Sequence[str]:
        """Return the lines with look-alikes folded, blanks at both ends included."""
        if self._folded is None:
            self._folded = [fold(line) for line in self.lines]
        return self._folded

    def by(self, key: Key) -> KeyedLines:
        """Return the lines under one way of comparing."""
        if key is folded and self.is_ascii:
            key = stripped
        known = self._by_key.get(key)
        if known is None:
            look()
            known = KeyedLines(list(self.lines) if key is exact else [key(line) for line in self.lines])
            self._by_key[key] = known
        return known


class KeyedLines:
    """The keys of a text's lines in order, and where each key stands.

    The places are worth their making from the second question on; the first is answered by looking through the keys.
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

    def starts(self, sought: Sequence[str]) -> tuple[int, ...]:
        """Return all places where the sought keys stand one below the other; only those of one key are looked at.

        Raises `TooMuchWorkError` when all questions together have compared too many places.
        """
        look()
        if self._was_asked or self._places:
            pivot, found = self._rarest(sought)
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
            return tuple(starts_in(self.keys, wanted))
        if size == 1:
            return tuple(found)
        candidates = (at - pivot for at in found)
        return tuple(at for at in candidates if 0 <= at <= last and self.keys[at : at + size] == wanted)

    def _rarest(self, sought: Sequence[str]) -> tuple[int, Sequence[int]]:
        """Return which of the keys stands least often, and where; nowhere is least."""
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


def starts_in(keys: Sequence[str], wanted: Sequence[str]) -> Iterator[int]:
    """Yield where all wanted keys stand one below the other, periodic or not, each key looked at once or twice.

    Knuth, Morris and Pratt, 1977.
    """
    borders = _borders(wanted)
    matched = 0
    for at, key in enumerate(keys):
        while matched and (matched == len(wanted) or wanted[matched] != key):
            matched = borders[matched - 1]
        matched += wanted[matched] == key
        if matched == len(wanted):
            yield at + 1 - matched


def _borders(wanted: Sequence[str]) -> list[int]:
    """Return for every beginning of the keys how long the longest shorter one is that also ends it."""
    borders = [0] * len(wanted)
    matched = 0
    for at in range(1, len(wanted)):
        while matched and wanted[matched] != wanted[at]:
            matched = borders[matched - 1]
        matched += wanted[matched] == wanted[at]
        borders[at] = matched
    return borders
