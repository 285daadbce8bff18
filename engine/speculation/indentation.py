"""Writes the lines of a source at another indentation: what the model did to one line, it will do to the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd

from engine.speculation.token_lines import BLANKS, TokenLines

TAB_WIDTH = 4
"""How many spaces most often become a tab, where the model's first blanks leave this open."""


def indent_of(data: bytes) -> bytes:
    """The blanks that a line begins with."""
    return data[: len(data) - len(data.lstrip(BLANKS))]


class Reindent:
    """Pairs of a source line's indentation and that of the line as the model wrote it, the newest last.

    >>> Reindent({b"": b"    "})(b"  ")  # a block that stands four columns deeper
    b'      '
    >>> Reindent({b"    ": b"\\t"})(b"        ")  # four spaces are a tab
    b'\\t\\t'
    """

    def __init__(self, pairs: dict[bytes, bytes] | None = None) -> None:
        self.pairs = dict(pairs or {})

    @property
    def is_identity(self) -> bool:
        """Whether every line keeps its indentation, as far as is known."""
        return all(old == new for old, new in self.pairs.items())

    def __call__(self, indent: bytes) -> bytes:
        """What a line's indentation becomes; itself where the pairs do not tell."""
        if indent in self.pairs:
            return self.pairs[indent]
        unit = self._unit()
        for old, new in reversed(self.pairs.items()):
            if indent.startswith(old):
                return new + _converted(indent[len(old) :], unit)
            more = _converted(old[len(indent) :], unit)
            if old.startswith(indent) and new.endswith(more):
                return new[: len(new) - len(more)]
        return indent

    def _unit(self) -> tuple[bytes, bytes]:
        """How much indentation in the source is how much in the output."""
        ordered = sorted(self.pairs.items(), key=lambda pair: len(pair[0]))
        steps = [(more[len(less) :], new[len(old_new) :]) for (less, old_new), (more, new) in pairwise(ordered)]
        for old, new in [*steps, *self.pairs.items()]:
            if old and new and (old[:1] != new[:1] or (old, new) in steps):
                times = gcd(len(old), len(new))
                return old[: len(old) // times], new[: len(new) // times]
        return b"", b""


def _converted(indent: bytes, unit: tuple[bytes, bytes]) -> bytes:
    old, new = unit
    return new * (len(indent) // len(old)) if old and len(indent) % len(old) == 0 else indent


def reindented(line: Sequence[int], reindent: Reindent, lines: TokenLines) -> list[int]:
    """The tokens of a whole line at its new indentation; as they are where the tokens for that are not known."""
    old, word, rest = taken_apart(line, lines)
    new = reindent(old)
    spelled = None if not word.strip() or new == old else _spelled(new, word, lines)
    return list(line) if spelled is None else [*spelled, *rest]


def taken_apart(line: Sequence[int], lines: TokenLines) -> tuple[bytes, bytes, Sequence[int]]:
    """A line's indentation, its first word and the tokens behind that."""
    first = 0
    while first < len(line) - 1 and lines.kind(line[first]).is_blank:
        first += 1
    data = b"".join(lines.kind(token_id).data for token_id in line[: first + 1])
    word = data.lstrip(BLANKS)
    return data[: len(data) - len(word)], word, line[first + 1 :]


def continued(line: Sequence[int], written: Sequence[int], lines: TokenLines) -> tuple[list[int], dict[bytes, bytes]]:
    """The rest of a line whose indentation the model began to write, and what this says of other lines."""
    if list(line[: len(written)]) == list(written):
        return list(line[len(written) :]), {}
    old, word, rest = taken_apart(line, lines)
    begun = b"".join(lines.kind(token_id).data for token_id in written)
    several = sorted(
        (begun + begun[-1:], begun), key=lambda new: new[:1] == old[:1] or TAB_WIDTH * len(new) != len(old)
    )
    for new in several:
        spelled = _spelled(new, word, lines) or []
        if spelled[: len(written)] == list(written):
            return [*spelled[len(written) :], *rest], {old: new}
    return list(line[len(line) - len(rest) - 1 :]), {old: begun}


def _spelled(indent: bytes, word: bytes, lines: TokenLines) -> list[int] | None:
    """Blanks and the first word: the last blank belongs to the word where there is such a token."""
    for blanks, rest in ((indent[:-1], indent[-1:] + word), (indent[:-1], indent[-1:]), (indent, b"")):
        parts = [blanks, rest] if rest.endswith(word) else [blanks, rest, word]
        found = [_blanks(part, lines) if not part.strip(BLANKS) else _one(part, lines) for part in parts if part]
        if all(found):
            return [token_id for ids in found if ids for token_id in ids]
    return None


def _one(data: bytes, lines: TokenLines) -> list[int] | None:
    token_id = lines.find(data)
    return None if token_id is None else [token_id]


def _blanks(data: bytes, lines: TokenLines) -> list[int] | None:
    """A run of blanks in as few known tokens as the longest first gives."""
    ids: list[int] = []
    while data:
        size = next((size for size in range(len(data), 0, -1) if lines.find(data[:size]) is not None), 0)
        if not size:
            return None
        ids.append(lines.find(data[:size]) or 0)
        data = data[size:]
    return ids
