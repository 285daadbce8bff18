"""The values of anchoring: one block of a snippet, and what it does to the file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """One block without the blank lines next to placeholders; `gap_*` tell how many there were."""

    lines: tuple[str, ...]
    gap_above: int
    gap_below: int
    open_above: bool
    open_below: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Lines [start, end) of the file become `lines`."""

    start: int
    end: int
    lines: tuple[str, ...]
