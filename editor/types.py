"""The values that the editor takes and gives: edits in one intermediate form, merges, checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FormatName = Literal["lazy", "search_replace"]
"""The edit formats that are understood so far (interfaces.md names the rest)."""

Rung = Literal["exact", "trailing_space", "reindent", "anchored"]
"""The rung of the matching ladder that found a place, strictest first."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One search/replace block: `before` is to be found in the file, `after` stands in its place.

    Lines carry no line endings. An empty `before` means that the block creates or fills an empty file.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sketch:
    """A lazy snippet: blocks of literal lines, parted by markers such as `// ... existing code ...`.

    `blocks` holds the literal lines in order; `opens_elided` and `closes_elided` tell whether a marker stands before
    the first and behind the last block. Two neighbouring blocks always have a marker between them.
    """

    blocks: tuple[tuple[str, ...], ...]
    opens_elided: bool
    closes_elided: bool

    @property
    def elides(self) -> bool:
        """Tell whether the snippet has any marker; without one it may be a whole file or a part of it."""
        return self.opens_elided or self.closes_elided or len(self.blocks) > 1


@dataclass(frozen=True, slots=True)
class ParsedEdit:
    """An edit in the intermediate form, whatever format it was written in.

    `detected` says in a few words why `format` was taken ("2 SEARCH/REPLACE blocks").
    """

    format: FormatName
    changes: tuple[Replacement, ...] | Sketch
    detected: str

    @property
    def added_lines(self) -> tuple[str, ...]:
        """The literal lines that the edit wants to stand in the result, markers left out."""
        if isinstance(self.changes, Sketch):
            return tuple(line for block in self.changes.blocks for line in block)
        return tuple(line for change in self.changes for line in change.after)


@dataclass(frozen=True, slots=True)
class Merged:
    """The edit applied by rule: one place at every change, so the result is certain."""

    text: str
    rung: Rung
    num_candidates: int = 1


@dataclass(frozen=True, slots=True)
class AlreadyApplied:
    """What the edit wants already stands in the file; there is nothing to do."""

    detail: str


ReasonCode = Literal["not_found", "ambiguous", "open_intent", "empty_edit", "only_markers", "malformed"]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """No rule decides this edit; a model may. `reason` and the rest are for whoever sent the edit.

    `num_candidates` counts the places (or readings) that came into question. `nearest` is the closest miss, as text
    with line numbers, or ''. `suggestion` is what to send instead.
    """

    code: ReasonCode
    reason: str
    num_candidates: int = 0
    nearest: str = ""
    suggestion: str = ""


MergeOutcome = Merged | AlreadyApplied | Unresolved


@dataclass(frozen=True, slots=True)
class Check:
    """One verification of a merged text: what was checked, whether it held, and what was seen."""

    name: str
    ok: bool
    detail: str
