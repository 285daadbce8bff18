"""Lines of tokens: where they begin, their indentation, and the same line at another indentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from threading import Lock

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

Ids = NDArray[np.int64]
BLANKS = b" \t"


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """One token: its bytes, the number of its bytes, and the number of its bytes without leading blanks."""

    data: bytes
    ends_line: bool
    is_blank: bool
    number: int
    bare_number: int


class TokenLines:
    """Describes a model's tokens in terms of lines; without `token_bytes` everything is one line without indentation.

    Byte-level tokenizers put the end of a line last in its token, and all blanks before a word but the last into tokens
    of their own: " def" is " ", " def". So the same line with another indentation has the same tokens except for the
    first few, and its first word may have lost its blank ("def").
    """

    def __init__(self, token_bytes: Sequence[bytes] | None) -> None:
        self._token_bytes = token_bytes
        self._kinds: dict[int, TokenInfo] = {}
        self._ids = {} if token_bytes is None else _index_by_bytes(token_bytes)[0]
        self._numbers: dict[bytes | int, int] = {}

    @property
    def has_lines(self) -> bool:
        """Whether the tokens' bytes, and so the lines, are known."""
        return self._token_bytes is not None

    def describe(self, token_id: int) -> TokenInfo:
        """Return the description of a token."""
        known = self._kinds.get(token_id)
        return self._learn(token_id) if known is None else known

    def text(self, token_ids: Sequence[int]) -> bytes:
        """Return the bytes of these tokens."""
        return b"".join([self.describe(token_id).data for token_id in token_ids])

    def find(self, data: bytes) -> int | None:
        """Return the token with exactly these bytes."""
        return self._ids.get(data)

    def strip_indents(self, token_ids: Ids, at_line_start: bool) -> tuple[Ids, Ids, bool]:
        """Return the tokens without their lines' indentation, the indices of those kept, and whether a line begins
        after them.

        The tokens are numbers that are equal where the bytes are; the first word of a line counts without its blank.
        """
        if self._token_bytes is None or not len(token_ids):
            return token_ids, np.arange(len(token_ids)), at_line_start
        met, inverse = np.unique(token_ids, return_inverse=True)
        kinds = [self.describe(token_id) for token_id in met.tolist()]
        ends = np.array([kind.ends_line for kind in kinds])[inverse]
        blank = np.array([kind.is_blank for kind in kinds])[inverse]
        begins = np.concatenate([[at_line_start], ends[:-1]])
        indent = begins & blank
        while True:  # blanks after blanks at the beginning of a line: two rounds, as a rule
            more = indent | (np.concatenate([[False], indent[:-1]]) & blank)
            if (more == indent).all():
                break
            indent = more
        first = begins | np.concatenate([[False], indent[:-1]])
        numbers = np.array([kind.number for kind in kinds])[inverse]
        bare = np.array([kind.bare_number for kind in kinds])[inverse]
        kept = np.flatnonzero(~indent)
        return np.where(first, bare, numbers)[kept], kept, bool(ends[-1] or indent[-1])

    def _learn(self, token_id: int) -> TokenInfo:
        known = self._token_bytes is not None and 0 <= token_id < len(self._token_bytes)
        data = self._token_bytes[token_id] if self._token_bytes is not None and known else b""
        bare = data.lstrip(BLANKS)
        kind = TokenInfo(
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


@cached(LRUCache(maxsize=4), key=id, lock=Lock())
def _index_by_bytes(token_bytes: Sequence[bytes]) -> tuple[dict[bytes, int], Sequence[bytes]]:
    """Return the first token id of each byte string, and the table itself, so that no other gets its `id` meanwhile."""
    return {data: number for number, data in reversed(list(enumerate(token_bytes))) if data}, token_bytes


SIGNS = (b"...", "…".encode(), b"unchanged", b"existing", b"remains")
"""Marks of a line that stands for omitted code, if the original does not have this line."""


def find_block_ends(update: Sequence[int], original: Sequence[int], lines: TokenLines) -> list[tuple[int, int]]:
    """Return tokens [start, end) of the update that are not copied, in order; the last such range ends with the update.

    A range begins with the token before: the last token of a block may end its line otherwise than the file does, where
    a blank line follows.
    """
    known: frozenset[bytes] | None = None
    ends: list[tuple[int, int]] = []
    start, line = 0, b""
    for place, token_id in enumerate(update, start=1):
        kind = lines.describe(token_id)
        line += kind.data
        if kind.ends_line or place == len(update):
            if any(sign in line for sign in SIGNS):
                known = known or frozenset(line.strip() for line in lines.text(original).split(b"\n"))
                if line.strip() not in known:
                    ends.append((max(0, start - 1), place))
            start, line = place, b""
    return [*ends, (max(0, len(update) - 1), len(update))]


TAB_WIDTH = 4
"""How many spaces usually become a tab, if the model's first blanks leave this open."""


def get_indent(data: bytes) -> bytes:
    """Return the blanks that a line begins with."""
    return data[: len(data) - len(data.lstrip(BLANKS))]


class Reindent:
    """Pairs of a source line's indentation and that of the line as the model wrote it, the newest last.

    >>> Reindent({b"": b"    "})(b"  ")  # a block that is four columns deeper
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
        """Return the new indentation of a line; the old one if the pairs do not tell."""
        if indent in self.pairs:
            return self.pairs[indent]
        unit = self._unit()
        for old, new in reversed(self.pairs.items()):
            if indent.startswith(old):
                return new + _convert_indent(indent[len(old) :], unit)
            more = _convert_indent(old[len(indent) :], unit)
            if old.startswith(indent) and new.endswith(more):
                return new[: len(new) - len(more)]
        return indent

    def _unit(self) -> tuple[bytes, bytes]:
        """Return how much indentation in the source is how much in the output."""
        ordered = sorted(self.pairs.items(), key=lambda pair: len(pair[0]))
        steps = [(more[len(less) :], new[len(old_new) :]) for (less, old_new), (more, new) in pairwise(ordered)]
        for old, new in [*steps, *self.pairs.items()]:
            if old and new and (old[:1] != new[:1] or (old, new) in steps):
                times = gcd(len(old), len(new))
                return old[: len(old) // times], new[: len(new) // times]
        return b"", b""


def _convert_indent(indent: bytes, unit: tuple[bytes, bytes]) -> bytes:
    old, new = unit
    return new * (len(indent) // len(old)) if old and len(indent) % len(old) == 0 else indent


def reindent_line(line: Sequence[int], reindent: Reindent, lines: TokenLines) -> list[int]:
    """Return the tokens of a whole line at its new indentation; unchanged if no tokens exist for that."""
    old, word, rest = split_line(line, lines)
    new = reindent(old)
    spelled = None if not word.strip() or new == old else _spell(new, word, lines)
    return list(line) if spelled is None else [*spelled, *rest]


def split_line(line: Sequence[int], lines: TokenLines) -> tuple[bytes, bytes, Sequence[int]]:
    """Return a line's indentation, its first word and the tokens after that."""
    first = 0
    while first < len(line) - 1 and lines.describe(line[first]).is_blank:
        first += 1
    data = b"".join(lines.describe(token_id).data for token_id in line[: first + 1])
    word = data.lstrip(BLANKS)
    return data[: len(data) - len(word)], word, line[first + 1 :]


def complete_line(
    line: Sequence[int], written: Sequence[int], lines: TokenLines
) -> tuple[list[int], dict[bytes, bytes]]:
    """Return the rest of a line whose indentation the model has begun to write, and what this says about
    other lines.
    """
    if list(line[: len(written)]) == list(written):
        return list(line[len(written) :]), {}
    old, word, rest = split_line(line, lines)
    begun = b"".join(lines.describe(token_id).data for token_id in written)
    several = sorted(
        (begun + begun[-1:], begun), key=lambda new: new[:1] == old[:1] or TAB_WIDTH * len(new) != len(old)
    )
    for new in several:
        spelled = _spell(new, word, lines) or []
        if spelled[: len(written)] == list(written):
            return [*spelled[len(written) :], *rest], {old: new}
    return list(line[len(line) - len(rest) - 1 :]), {old: begun}


def _spell(indent: bytes, word: bytes, lines: TokenLines) -> list[int] | None:
    """Return tokens for blanks and the first word; the last blank belongs to the word if there is such a token."""
    for blanks, rest in ((indent[:-1], indent[-1:] + word), (indent[:-1], indent[-1:]), (indent, b"")):
        parts = [blanks, rest] if rest.endswith(word) else [blanks, rest, word]
        found = [
            _spell_blanks(part, lines) if not part.strip(BLANKS) else _find_one(part, lines) for part in parts if part
        ]
        if all(found):
            return [token_id for ids in found if ids for token_id in ids]
    return None


def _find_one(data: bytes, lines: TokenLines) -> list[int] | None:
    token_id = lines.find(data)
    return None if token_id is None else [token_id]


def _spell_blanks(data: bytes, lines: TokenLines) -> list[int] | None:
    """Return a run of blanks as known tokens, the longest first."""
    ids: list[int] = []
    while data:
        size = next((size for size in range(len(data), 0, -1) if lines.find(data[:size]) is not None), 0)
        if not size:
            return None
        ids.append(lines.find(data[:size]) or 0)
        data = data[size:]
    return ids
