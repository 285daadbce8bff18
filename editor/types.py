"""The values that the editor takes and gives: edits in one intermediate form, merges, checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from editor.diff import LineOp

FormatName = Literal["lazy", "search_replace", "udiff", "v4a", "whole", "replace", "lines"]
"""The edit formats of interfaces.md."""

Rung = Literal["exact", "trailing_space", "reindent", "folded", "elided", "anchored", "syntax", "fuzzy"]
"""The rung of the matching ladder that found a place, strictest first."""

Policy = Literal["strict", "lenient"]
"""`strict`: any failed check rejects a merge; `lenient`: only those that are damage whatever was meant."""

Action = Literal["update", "create", "delete"]


@dataclass(frozen=True, slots=True)
class Hint:
    """Where an edit says that a change belongs. A hint chooses among places that fit; it never makes one fit.

    `line` is the index (from 0) of the original's line at which the change is said to begin. `scopes` are lines said to
    are above it, outermost first (V4A's `@@ class A`, the section heading of a diff). `at_end` says that it ends with
    the file. `pinned` says that the lines at `line` are meant and no others, whatever else looks the same;
    `num_unseen` of them are then to go although the edit does not quote them.
    """

    line: int | None = None
    scopes: tuple[str, ...] = ()
    at_end: bool = False
    pinned: bool = False
    num_unseen: int = 0


@dataclass(frozen=True, slots=True)
class Replacement:
    """`before` is to be found in the file, `after` replaces it: a SEARCH block, a hunk, a range of lines.

    Lines carry no line endings. An empty `before` creates or fills an empty file, or, with a hint, only inserts.
    `verbatim` is the block as it was sent, where its lines were taken to begin with line numbers.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    hint: Hint = Hint()
    verbatim: Replacement | None = None


@dataclass(frozen=True, slots=True)
class Substitution:
    """`old` is to be found as a run of characters, `new` replaces it; everywhere with `replace_all`.

    `count` is how many places `replace_all` must find; None if the edit does not say.
    """

    old: str
    new: str
    replace_all: bool = False
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Substitutions:
    """Substitutions that are applied one after the other, each to what the ones before it made."""

    items: tuple[Substitution, ...]


@dataclass(frozen=True, slots=True)
class Sketch:
    """A lazy snippet: blocks of literal lines, parted by markers such as `// ... existing code ...`.

    `blocks` holds the literal lines in order; `opens_elided` and `closes_elided` tell whether a marker is before
    the first and after the last block. Two neighbouring blocks always have a marker between them. `marker_indents` has
    an entry for every such gap, in order: the indentation of each marker that is there (several may be one below
    the other); it may be empty. `complete` says that the sender declared the snippet to be the whole file; it has then
    one block and no marker. `fences` has for each block the number of the code fence that it is in; fences may
    be in another order than their lines are in the file. It may be empty: one fence, or none.
    """

    blocks: tuple[tuple[str, ...], ...]
    opens_elided: bool
    closes_elided: bool
    complete: bool = False
    marker_indents: tuple[tuple[str, ...], ...] = ()
    fences: tuple[int, ...] = ()

    @property
    def elides(self) -> bool:
        """Return whether the snippet has any marker; without one it may be a whole file or a part of it."""
        return self.opens_elided or self.closes_elided or len(self.blocks) > 1


@dataclass(frozen=True, slots=True)
class ParsedEdit:
    """The edit of one file in the intermediate form, whatever format it was written in.

    `detected` says in a few words why `format` was taken ("2 SEARCH/REPLACE blocks"). `path` is the file that the edit
    names, "" if it names none; `move_to` is its new name, "" if it keeps the old. `ordered` says that the replacements
    are in the order of the file and do not overlap, as the hunks of a diff do. `final_newline` says whether the
    result ends with a newline; None leaves it as it was. A `delete` of a diff has the
    lines that it deletes, of a V4A patch no changes. `prose` is all text of the edit outside of what was read as the
    edit itself: the sentences around a code fence, between blocks, below a diff. `left_out` are the other files that
    the edit was also for.
    """

    format: FormatName
    changes: tuple[Replacement, ...] | Substitutions | Sketch
    detected: str
    path: str = ""
    action: Action = "update"
    move_to: str = ""
    ordered: bool = False
    final_newline: bool | None = None
    prose: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def new_lines(self) -> tuple[str, ...]:
        """The literal lines that the edit wants to be in the result, markers left out."""
        if isinstance(self.changes, Sketch):
            return tuple(line for block in self.changes.blocks for line in block)
        if isinstance(self.changes, Substitutions):
            return tuple(line for item in self.changes.items for line in item.new.split("\n"))
        return tuple(line for change in self.changes for line in change.after)

    @property
    def old_lines(self) -> tuple[str, ...]:
        """The lines that the edit quotes from the file and may take away; a sketch quotes none."""
        if isinstance(self.changes, Sketch):
            return ()
        if isinstance(self.changes, Substitutions):
            return tuple(line for item in self.changes.items for line in item.old.split("\n"))
        return tuple(line for change in self.changes for line in change.before)


ReadingCertainty = Literal["certain", "likely"]
"""How sure a merge without a model is. `certain`: a rule proves it, or its confidence is above the strict bar.
`likely`: no rule proves it, and its confidence is above the lower bar."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The edit applied without a model: by a rule that has one place at every change, or as its most probable reading.

    `confidence` is the calibrated probability, in [0, 1], that the reading is right; None where a rule decided and
    nothing was read. `candidates` are the readings that came into question, best first, this one first; () for a rule.
    `ops` turn the original's lines into the result's, a change of the edit in each that is not equal; () if not known.
    """

    text: str
    rung: Rung
    num_candidates: int = 1
    ops: tuple[LineOp, ...] = field(default=(), compare=False)
    certainty: ReadingCertainty = "certain"
    confidence: float | None = None
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class AlreadyApplied:
    """The result of the edit is already in the file; there is nothing to do."""

    detail: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One reading of an edit that no rule proves: the whole merged text, and how likely it is.

    `score` is in (0, 1], comparable among the candidates of one edit only. `why` says what was assumed, in a few words
    ("SEARCH taken at lines 12-15"). `confidence` is the calibrated probability, in [0, 1], that the reading is right;
    those of one edit sum to 1 or less, the rest being that none of them is. None where nothing was calibrated.
    """

    text: str
    score: float
    why: str
    confidence: float | None = None


ReasonCode = Literal[
    "not_found",
    "ambiguous",
    "open_intent",
    "stale",
    "empty_edit",
    "only_markers",
    "malformed",
    "several_files",
    "too_much_work",
    "file_missing",
    "file_exists",
    "uncertain",
]
"""`stale`: the quoted lines are not those that are at the line given. `too_much_work`: the edit is past a bound that
keeps it from taking seconds. `file_missing` and `file_exists` are about whole files. `uncertain`: there is a merge, and
its certainty is below the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """No rule decides this edit; a model may. `reason` and the rest are for whoever sent the edit.

    `num_candidates` counts the places (or readings) that came into question; `candidates` are those of them that can be
    written out, best first, for a model to choose from. `nearest` is the closest miss, as text with line numbers, or
    ''. `suggestion` is what to send instead.
    """

    code: ReasonCode
    reason: str
    num_candidates: int = 0
    nearest: str = ""
    suggestion: str = ""
    candidates: tuple[Candidate, ...] = ()


MergeOutcome = Merged | AlreadyApplied | Unresolved


LineKind = Literal["added", "removed", "altered", "missing", "misplaced", "blank_lines", "ending"]
"""What is wrong with an unaccounted line. `removed` and `missing` are not in the result; the others are."""


@dataclass(frozen=True, slots=True)
class UnaccountedLine:
    """One changed line that the edit does not account for.

    `line` counts from 1: in the original for `removed`, in the result for the other kinds, 0 for a `missing` line of
    the edit.
    """

    line: int
    kind: LineKind
    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """One verification of a merged text: what was checked, whether it held, and what was seen.

    `lines` are lines that the check is about, at most ten (`accounted`).
    """

    name: str
    ok: bool
    detail: str
    lines: tuple[UnaccountedLine, ...] = ()
