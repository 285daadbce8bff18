"""Types of the editor: edits in one intermediate form, merge outcomes, checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from editor.diff import LineOp

FormatName = Literal["lazy", "search_replace", "udiff", "v4a", "whole", "replace", "lines"]
"""The edit formats of interfaces.md."""

Rung = Literal["exact", "trailing_space", "reindent", "folded", "elided", "anchored", "syntax", "fuzzy"]
"""The rung of the matching ladder that found a place, strictest first."""

RUNGS: tuple[Rung, ...] = get_args(Rung)

Policy = Literal["strict", "lenient"]
"""`strict`: any failed check rejects a merge; `lenient`: only checks that always mean damage do."""

Action = Literal["update", "create", "delete"]


@dataclass(frozen=True, slots=True)
class Hint:
    """The place that an edit names for a change. A hint chooses among matching places; it never makes one match.

    `line` is the index (from 0) of the original's line at which the change begins. `scopes` are lines above it,
    outermost first (V4A's `@@ class A`, the section heading of a diff). `at_end` says that the change ends with the
    file. `pinned` says that exactly the lines at `line` are meant; `num_unseen` of them are then removed although the
    edit does not quote them.
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
    `verbatim` is the block as it was sent, if line numbers were removed from its lines.
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

    def to_replacement(self) -> Replacement:
        """Return the substitution as lines; a newline that ends both texts, or a removed text, ends a line."""
        old, new = self.old, self.new
        if old.endswith("\n") and (new.endswith("\n") or not new):
            return Replacement(tuple(old[:-1].split("\n")), tuple(new[:-1].split("\n")) if new else ())
        return Replacement(tuple(old.split("\n")), tuple(new.split("\n")))


@dataclass(frozen=True, slots=True)
class Substitutions:
    """Substitutions that are applied one after the other, each to the result of the ones before it."""

    items: tuple[Substitution, ...]


@dataclass(frozen=True, slots=True)
class Sketch:
    """A lazy snippet: blocks of literal lines, separated by markers such as `// ... existing code ...`.

    `blocks` holds the literal lines in order; `opens_elided` and `closes_elided` say whether a marker is before the
    first and after the last block. Two neighbouring blocks always have a marker between them. `marker_indents` may be
    empty, or has the indentations of the markers of every such gap, in order. `complete` says that the sender declared
    the snippet to be the whole file; it then has one block and no marker. `fences` has for each block the number of its
    code fence, and is empty for one fence or none; the order of fences may differ from the order of the file.
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
    names, "" if it names none; `move_to` is its new name, "" if it keeps the old. `ordered` says that the
    replacements are in the order of the file and do not overlap, like the hunks of a diff. `final_newline` says whether
    the result ends with a newline; None leaves it as it was. A `delete` of a diff has the lines that it deletes, of a
    V4A patch no changes. `prose` is the text outside of the edit itself: the sentences around a code fence, between
    blocks, below a diff. `left_out` are the other files that the edit names.
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
        """The literal lines that should be in the result, without markers."""
        if isinstance(self.changes, Sketch):
            return tuple(line for block in self.changes.blocks for line in block)
        if isinstance(self.changes, Substitutions):
            return tuple(line for item in self.changes.items for line in item.new.split("\n"))
        return tuple(line for change in self.changes for line in change.after)

    @property
    def old_lines(self) -> tuple[str, ...]:
        """The lines that the edit quotes from the file and may remove; a sketch quotes none."""
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
    """An edit merged without a model: by a rule with one place for every change, or as its most probable reading.

    `confidence` is the calibrated probability, in [0, 1], that the reading is right; None if a rule
    decided. `candidates` are all readings that were considered, best first, beginning with this one; () for a rule.
    `ops` turn the original's lines into the result's, with one unequal op for each change of the edit; () if not known.
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
    """One reading of an edit that no rule proves: the whole merged text, and its probability.

    `score` is in (0, 1], comparable among the candidates of one edit only. `why` names the assumption in a few words
    ("SEARCH taken at lines 12-15"). `confidence` is the calibrated probability, in [0, 1], that the reading is right;
    the sum over one edit is at most 1, the rest is the probability that none is right. None without calibration.
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
    "conflict",
]
"""`stale`: the quoted lines are not those that are at the line given. `too_much_work`: the edit is past a bound that
keeps it from taking seconds. `file_missing` and `file_exists` are about whole files. `uncertain`: there is a merge, and
its certainty is below the one that was asked for. `conflict`: the file has changed where the edit changes its base."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An edit that no rule decides; a model may. `reason` and the other fields are for the sender.

    `num_candidates` counts the places (or readings) that were considered; `candidates` are those that can be written
    out, best first, for a model to choose from. `nearest` is the closest miss, as text with line numbers, or
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
"""The fault of an unaccounted line. `removed` and `missing` lines are not in the result; the others are."""


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
class Attribution:
    """The lines of a result that no reading explains; none if the result is a legal reading.

    `repaired` is the result rebuilt from the file and the accounted changes, None where a line of the snippet has no
    place. `bound` names the bound that stopped the search, or is "".
    """

    faults: tuple[UnaccountedLine, ...]
    repaired: str | None = None
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a merged text: its name, whether it held, and details.

    `lines` are lines that the check is about, at most ten (`accounted`).
    """

    name: str
    ok: bool
    detail: str
    lines: tuple[UnaccountedLine, ...] = ()
