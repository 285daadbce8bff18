"""How tokens make lines: where lines begin, how they are indented, and the text with its indentation left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
