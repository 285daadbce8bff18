"""What a stream tells while an edit is merged or a question answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_runtime.generation.watcher import Piece


@dataclass(frozen=True, slots=True)
class Phase:
    """Another phase begins, named as in `timings` without its `_ms`: parse, merge, prefill, decode, verify, ..."""

    name: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """The model wrote these for one region (from 0) of the file; of an answer to a question there is one region."""

    pieces: tuple[Piece, ...]
    region: int = 0

    @property
    def text(self) -> str:
        """All of them."""
        return "".join(piece.text for piece in self.pieces)


def phase_from_json(data: dict[str, Any]) -> Phase:
    """Of the event `phase`."""
    return Phase(str(data["phase"]))


def tokens_from_json(data: dict[str, Any]) -> Tokens:
    """Of the event `tokens`."""
    pieces = tuple(Piece(str(piece["text"]), piece["origin"]) for piece in data["pieces"])
    return Tokens(pieces, int(data.get("region", 0)))
