"""Where every line of a text stands, under each way of comparing lines; made once, and only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from editor.folding import BLANKS, fold

Key = Callable[[str], str]


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


class LineIndex:
    """The lines of one text with their places; the lines must not change while it is used."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self._by_key: dict[Key, KeyedLines] = {}
        self._is_ascii: bool | None = None

    @property
    def is_ascii(self) -> bool:
        """Tell whether there is nothing to fold."""
        if self._is_ascii is None:
            self._is_ascii = all(map(str.isascii, self.lines))
        return self._is_ascii

    def by(self, key: Key) -> KeyedLines:
        """Return the lines under one way of comparing."""
        if key is folded and self.is_ascii:
            key = stripped
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = KeyedLines([key(line) for line in self.lines])
        return known


class KeyedLines:
    """The keys of a text's lines in order, and where each key stands."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.places: dict[str, list[int]] = {}
        for at, key in enumerate(keys):
            self.places.setdefault(key, []).append(at)

    def starts(self, sought: Sequence[str]) -> tuple[int, ...]:
        """Return all places where the sought keys stand one below the other; only those of the rarest are looked at."""
        rarest, fewest = 0, len(self.keys) + 1
        for offset, key in enumerate(sought):
            places = self.places.get(key)
            if places is None:
                return ()
            if len(places) < fewest:
                rarest, fewest = offset, len(places)
        wanted, size, last = list(sought), len(sought), len(self.keys) - len(sought)
        candidates = (at - rarest for at in self.places[sought[rarest]])
        return tuple(at for at in candidates if 0 <= at <= last and self.keys[at : at + size] == wanted)
