"""Lines of tokens: where they begin, their indentation, and the same line at another indentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
BLANKS = b" \t"


@dataclass(frozen=True, slots=True)
class Kind:
    """What one token is: its bytes, the number of its bytes, and that of its bytes without the blanks before."""

    data: bytes
    ends_line: bool
    is_blank: bool
    number: int
    bare_number: int


class TokenLines:
    """What a model's tokens are in terms of lines; without `token_bytes` all is one line that is not indented.

    Byte-level tokenizers put the end of a line last in its token, and of the blanks before a word all but the last
    into tokens of their own: "    def" is "   ", " def". So the same line, indented otherwise, has the same tokens but
    for the first few, and its first word may have lost its blank ("def").
    """

    def __init__(self, token_bytes: Sequence[bytes] | None) -> None:
        self._token_bytes = token_bytes
        self._kinds: dict[int, Kind] = {}
        self._ids = {} if token_bytes is None else _ids_by_bytes(token_bytes)
        self._numbers: dict[bytes | int, int] = {}

    @property
    def known(self) -> bool:
        """Whether anything is known of lines."""
        return self._token_bytes is not None

    def kind(self, token_id: int) -> Kind:
        """What a token is."""
        known = self._kinds.get(token_id)
        return self._learn(token_id) if known is None else known

    def text(self, token_ids: Sequence[int]) -> bytes:
        """What these tokens stand for, one behind the other."""
        return b"".join([self.kind(token_id).data for token_id in token_ids])

    def find(self, data: bytes) -> int | None:
        """The token that stands for exactly these bytes."""
        return self._ids.get(data)

    def unindented(self, token_ids: Ids, at_line_start: bool) -> tuple[Ids, Ids, bool]:
        """The tokens without their lines' indentation, where those kept stand, and whether a line begins behind them.

        The tokens are numbers that are equal where the bytes are; the first word of a line counts without its blank.
        """
        if self._token_bytes is None or not len(token_ids):
            return token_ids, np.arange(len(token_ids)), at_line_start
        met, inverse = np.unique(token_ids, return_inverse=True)
        kinds = [self.kind(token_id) for token_id in met.tolist()]
        ends = np.array([kind.ends_line for kind in kinds])[inverse]
        blank = np.array([kind.is_blank for kind in kinds])[inverse]
        begins = np.concatenate([[at_line_start], ends[:-1]])
        indent = begins & blank
        while True:  # blanks behind blanks at the beginning of a line: two rounds, as a rule
            more = indent | (np.concatenate([[False], indent[:-1]]) & blank)
            if (more == indent).all():
                break
            indent = more
        first = begins | np.concatenate([[False], indent[:-1]])
        numbers = np.array([kind.number for kind in kinds])[inverse]
        bare = np.array([kind.bare_number for kind in kinds])[inverse]
        kept = np.flatnonzero(~indent)
        return np.where(first, bare, numbers)[kept], kept, bool(ends[-1] or indent[-1])

    def _learn(self, token_id: int) -> Kind:
        known = self._token_bytes is not None and 0 <= token_id < len(self._token_bytes)
        data = self._token_bytes[token_id] if self._token_bytes is not None and known else b""
        bare = data.lstrip(BLANKS)
        kind = Kind(
            data=data,
            ends_line=data.endswith(b"\n"),
            is_blank=bool(data) and not bare,
            number=self._number(data or token_id),
            bare_number=self._number(bare or data or token_id),
        )
        self._kinds[token_id] = kind
        return kind

    def _number(self, what: bytes | int) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


_TABLES: list[tuple[Sequence[bytes], dict[bytes, int]]] = []


def _ids_by_bytes(token_bytes: Sequence[bytes]) -> dict[bytes, int]:
    for table, ids in _TABLES:
        if table is token_bytes:
            return ids
    ids = {data: number for number, data in reversed(list(enumerate(token_bytes))) if data}
    _TABLES.append((token_bytes, ids))
    del _TABLES[:-4]
    return ids


SIGNS = (b"...", "…".encode(), b"unchanged", b"existing", b"remains")
"""What a line says that stands for code left out, if the original does not have this line."""


def block_ends(update: Sequence[int], original: Sequence[int], lines: TokenLines) -> list[tuple[int, int]]:
    """Tokens [start, end) of the update that are not copied, in order; the last such range ends with the update.

    A range begins with the token before: the last one of a block may end its line otherwise than the file does, where
    a blank line follows.
    """
    known: frozenset[bytes] | None = None
    ends: list[tuple[int, int]] = []
    start, line = 0, b""
    for place, token_id in enumerate(update, start=1):
        kind = lines.kind(token_id)
        line += kind.data
        if kind.ends_line or place == len(update):
            if any(sign in line for sign in SIGNS):
                known = known or frozenset(line.strip() for line in lines.text(original).split(b"\n"))
                if line.strip() not in known:
                    ends.append((max(0, start - 1), place))
            start, line = place, b""
    return [*ends, (max(0, len(update) - 1), len(update))]


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
