"""How many tokens stand where: counted with a tokenizer, or estimated from bytes."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.prompt_difference import first_difference

BYTES_PER_TOKEN = 3.4
"""Of Qwen2.5-Coder's tokenizer on recorded agent sessions; what is assumed without a tokenizer."""

RUN = 8
"""A shorter run of equal tokens is not worth taking over (`engine.reuse.planning.FEWEST_TOKENS`)."""

_PIECE = re.compile(r"\w+|\s+|[^\w\s]+")


class Encoder(Protocol):
    """What counting needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token."""
        ...


@dataclass(frozen=True, slots=True)
class Counts:
    """Of the second prompt: all tokens, those before the first that differs, and those behind it whose content the
    first prompt has too, wherever it stands, in runs of `RUN`. `estimated`: from bytes.
    """

    num_tokens: int
    num_kept: int
    num_same: int
    estimated: bool


def count(first: str, second: str, place: int, encoder: Encoder | None) -> Counts:
    """Count; `place` is the first character that differs."""
    if encoder is not None:
        one, other = encoder.encode(first), encoder.encode(second)
        difference = first_difference(one, other)
        num_kept = len(other) if difference is None else difference.index
        found = sum(length for _, length in runs(one, other, num_kept))
        return Counts(len(other), num_kept, found, estimated=False)
    kept, behind = _tokens(second[:place]), second[place:]
    pieces = _PIECE.findall(behind)
    same = sum(
        len("".join(pieces[start : start + length]).encode("utf-8", "replace"))
        for start, length in runs(_PIECE.findall(first), pieces, 0)
    )
    return Counts(kept + _tokens(behind), kept, round(same / BYTES_PER_TOKEN), estimated=True)


def runs(first: Sequence[Hashable], second: Sequence[Hashable], start: int) -> list[tuple[int, int]]:
    """Where `second` behind `start` has runs of `RUN` and more that stand in `first` too: places and lengths."""
    places = {tuple(first[place : place + RUN]): place for place in reversed(range(len(first) - RUN + 1))}
    found = []
    while start + RUN <= len(second):
        place = places.get(tuple(second[start : start + RUN]))
        if place is None:
            start += 1
            continue
        length = RUN
        while (
            start + length < len(second)
            and place + length < len(first)
            and second[start + length] == first[place + length]
        ):
            length += 1
        found.append((start, length))
        start += length
    return found


def _tokens(text: str) -> int:
    return round(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)
