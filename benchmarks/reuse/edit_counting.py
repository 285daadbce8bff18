"""What each mode runs again of the turn behind one edit, by the engine's own bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.reuse.counting import Books, TurnCount
from benchmarks.reuse.pairs import EditPair


@dataclass(frozen=True, slots=True)
class EditCount:
    """One edit: by mode, what became of the second prompt's tokens; `exact` is among them."""

    id: str
    source: str
    by_mode: Mapping[str, TurnCount]

    def vs_prefix(self, mode: str) -> float:
        """What is run, of what exact prefix caching runs."""
        return self.by_mode[mode].recomputed / self.by_mode["exact"].recomputed


def count_edits(pairs: Sequence[EditPair], modes: Sequence[str]) -> list[EditCount]:
    """Count both turns of each pair in each mode, every time with nothing cached or stored before."""
    return [
        EditCount(pair.id, pair.source, {mode: _second_turn(pair, mode) for mode in dict.fromkeys(["exact", *modes])})
        for pair in pairs
    ]


def _second_turn(pair: EditPair, mode: str) -> TurnCount:
    books = Books()
    engine_mode: Any = "exact" if mode == "balanced" else mode
    books.turn(pair.first, engine_mode)
    return books.turn(pair.overlaid if mode == "balanced" else pair.second, engine_mode)
