"""The features of the readings of a snippet: what each changes, for the learned order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import log1p

from editor.attribution.snippet import measure_indent
from editor.attribution.statements import IMPORT, find_key, find_name
from editor.reader.candidates import FileLines, Snippet
from editor.reader.costs import Path
from editor.reader.path_features import PathFeatures
from editor.reader.render import Row, Run
from editor.syntax import count_errors

_PATH = (
    "dearer", "match", "sub", "sub_known", "sub_other_key", "sub_at_gap", "sub_other_key_at_gap", "rewrite", "insert",
    "insert_runs", "insert_signs", "delete", "delete_runs", "delete_log", "delete_named", "delete_many",
    "delete_comments", "delete_at_top", "delete_then_gap", "delete_unit_then_gap", "gap_then_delete", "lost_names",
    "lost_names_said", "unbound", "elide", "elide_log", "elide_head", "elide_start", "elide_end", "leave_scope",
    "drop", "maybe_marker", "inserted_within", "brackets", "skip_closed", "skip_closed_log",
    "renamed_at_gap", "early", "skip_cut", "skip_cut_log",
    "skip_cut_bare", "whole_skips", "rewrite_renamed", "rewrite_renamed_at_gap",
)  # fmt: skip
_RUNS = (
    "removed_between", "removed_between_log", "removed_aside", "removed_aside_log", "removed_free", "pure_between",
    "pure_between_log", "pure_aside", "removed_edge", "added_between", "added_aside", "added_free", "heads_between",
    "heads_aside", "unpaired", "comments_between", "comments_aside", "as_many", "blanks_removed", "paired",
    "paired_other",
    "paired_equal", "paired_edge", "paired_edge_other", "rival_alike", "rival_first", "rival_key",
)  # fmt: skip
_TEXT = (
    "stale_imports", "moved_definition", "kept_definition",
    "errors", "double_lines", "double_names", "double_keys", "as_shown", "as_shown_imports", "as_shown_said", "moved",
    "gone", "reindented", "by_hunk", "place", "other_owner", "new_owner", "renamed", "comment_for_code", "kept_named",
    "kept_quoted", "adopted", "insert_known", "removed_twin", "unheeded",
    "more_runs", "stands", "deeper", "head_swapped",
)  # fmt: skip
_SAID = (
    "sub_added", "sub_gap_added", "added_changed", "old_said", "old_unsaid", "delete_unsaid", "delete_said",
    "delete_added", "after_named", "before_named", "named_place", "unnamed_place", "at_end",
)  # fmt: skip
_PROBLEM = ("num_markers", "share_shown", "log_items")

FEATURES: tuple[str, ...] = (*_PATH, *_RUNS, *_TEXT, *_SAID, *_PROBLEM)
"""The names of the features of a reading, in their order."""

_SPACING = re.compile(r"blank|empty line|spacing|sort|format|isort", re.I)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_AT_END = re.compile(r"\b(at the end|at the bottom|append)", re.I)
_AFTER = re.compile(r"(?:after|below|under|following|next to)\s+(?:the\s+|its\s+)?[`\"']?([\w$.\-/@]{3,})")
_BEFORE = re.compile(r"(?:before|above|ahead of|on top of)\s+(?:the\s+|its\s+)?[`\"']?([\w$.\-/@]{3,})")
_OPENS = ("then", "do", "else", "begin", "try")


@dataclass(frozen=True, slots=True)
class Draft:
    """A text that a snippet may mean, before the attribution check: its runs of rows and the path that made it.

    `as_shown`: lines that stay have the snippet's blank lines between them. `num_gone` lines that the path keeps are
    deleted. `movable`: the path keeps a definition at its old place that it also shows at a new one; `moved`: the old
    one, or an old line, is deleted. `by_hunk`: all lines of a fence are shifted as far as most of them.
    """

    text: str
    runs: Sequence[Run]
    path: Path
    as_shown: bool
    num_gone: int
    moved: bool
    movable: bool
    by_hunk: bool = False


class FeatureExtractor:
    """Computes the features of the readings of one snippet."""

    def __init__(self, file: FileLines, snippet: Snippet) -> None:
        self.file, self.snippet = file, snippet
        self._path_features = PathFeatures(file, snippet)
        self._removable = self._path_features.removable
        self._quoted = {at for at in self._removable if snippet.removal.quotes_line(file.lines[at])}
        self._after, self._before = _AFTER.findall(snippet.said), _BEFORE.findall(snippet.said)
        self._shown_counts = Counter(item.key for item in snippet.items if item.kind != "marker")
        self._file_names = Counter(name for name in file.names if name)
        self._snippet_names = Counter(name for name in snippet.names if name)
        # The drafts of one path follow each other.
        self._path: Path | None = None
        self._of_path: dict[str, float] = {}
        lines = [item for item in snippet.items if item.kind == "line"]
        self._problem = {
            "num_markers": min(4.0, sum(item.kind == "marker" for item in snippet.items)),
            "share_shown": sum(item.key in file.places for item in lines) / max(1, len(lines)),
            "log_items": log1p(len(lines)),
        }

    @cached_property
    def _num_errors(self) -> int:
        return count_errors(self.file.text, self.file.language) or 0

    def add_syntax_errors(self, features: Sequence[float], text: str) -> tuple[float, ...]:
        """Return the features of a reading with the number of syntax errors that its text adds."""
        errors = count_errors(text, self.file.language)
        more = min(3.0, max(0, (errors or 0) - self._num_errors))
        return tuple(more if name == "errors" else value for name, value in zip(FEATURES, features, strict=True))

    def extract(self, draft: Draft, dearer: float) -> tuple[float, ...]:
        """Return the features of a draft without its syntax errors; `dearer` is its cost above the cheapest draft's."""
        if draft.path is not self._path:
            self._path, self._of_path = draft.path, dict.fromkeys(FEATURES, 0.0) | self._problem
            self._path_features.add_steps(draft.path.steps, self._of_path)
            self._path_features.add_runs(draft.path.steps, self._of_path)
        found = self._of_path.copy()
        found["dearer"] = dearer
        rows = list(chain.from_iterable(draft.runs))
        shown: list[int] = []
        kept: set[int] = set()
        at = 0
        for run in draft.runs:
            if run[0].item is None and run[0].line is not None:
                kept.update(range(run[0].line, run[0].line + len(run)))
            else:
                shown += range(at, at + len(run))
            at += len(run)
        self._add_text(rows, shown, kept, found)
        found["as_shown"], found["by_hunk"] = float(draft.as_shown), float(draft.by_hunk)
        found["kept_named"] = log1p(len(self._removable & kept))
        found["kept_quoted"] = float(len(self._quoted & kept))
        found["as_shown_imports"] = float(draft.as_shown and bool(IMPORT.match(self.snippet.items[0].key or "-")))
        found["as_shown_said"] = float(draft.as_shown and bool(_SPACING.search(self.snippet.said)))
        found["moved"], found["gone"] = float(draft.moved), 0.0 if draft.moved else log1p(draft.num_gone)
        found["moved_definition"] = float(draft.moved and draft.movable)
        found["kept_definition"] = float(draft.movable and not draft.moved)
        self._add_said(rows, shown, found)
        return tuple(map(found.__getitem__, FEATURES))

    def _add_text(self, rows: Sequence[Row], shown: Sequence[int], kept: Set[int], found: dict[str, float]) -> None:
        """Add the features of the rows of a text.

        `shown` are the numbers of the rows that the snippet shows, `kept` the lines of the file that the others are.
        """
        file, snippet = self.file, self.snippet
        keys = Counter(rows[at].text.strip() for at in shown)
        found["double_lines"] = min(
            5.0,
            sum(
                many + _count_in(kept, file.places.get(key))
                > max(file.counts.get(key, 0), self._shown_counts.get(key, 0))
                for key, many in keys.items()
                if len(key) > 12
            ),
        )
        names: Counter[str] = Counter()
        for key, many in keys.items():
            defined = find_name(key)
            if defined:
                names[defined] += many
        found["double_names"] = min(
            3.0,
            sum(
                many + _count_in(kept, self._name_places.get(one))
                > max(self._file_names[one], self._snippet_names[one])
                for one, many in names.items()
            ),
        )
        double = 0
        for at in shown:
            row = rows[at]
            if row.line is None and row.item is not None:
                about = snippet.keys[row.item]
                beside = [rows[at + d] for d in (-3, -2, -1, 1, 2, 3) if 0 <= at + d < len(rows)]
                double += bool(about and len(about) > 2) and any(
                    one.item is None and one.line is not None and find_key(file.keys[one.line]) == about
                    for one in beside
                )
        found["double_keys"] = min(3.0, double)
        found["deeper"] = min(3.0, sum(self._is_deeper(rows, at) for at in shown))
        new = [rows[at].text for at in shown if rows[at].line is None]
        found["stale_imports"] = min(3.0, self._count_stale_imports(new, kept))
        matches = ((rows[at].line, rows[at].text) for at in shown)
        found["reindented"] = min(5, sum(line is not None and text != file.lines[line] for line, text in matches)) / 5

    @cached_property
    def _name_places(self) -> dict[str, list[int]]:
        """The lines of the file that define each name."""
        found: dict[str, list[int]] = {}
        for at, key in enumerate(self.file.keys):
            name = find_name(key)
            if name:
                found.setdefault(name, []).append(at)
        return found

    @staticmethod
    def _is_deeper(rows: Sequence[Row], at: int) -> bool:
        """Return whether a new line is deeper than its neighbours although the line above opens no block."""
        if rows[at].line is not None or not 0 < at < len(rows) - 1:
            return False
        above, width = rows[at - 1].text, measure_indent(rows[at].text)
        opens = above.rstrip().endswith(_OPENS) or not above.strip()[-1:].isalnum()
        return not opens and width > measure_indent(above) and width > measure_indent(rows[at + 1].text)

    def _count_stale_imports(self, added: Sequence[str], kept: Set[int]) -> int:
        """Return how many unshown imports stay although a new one of their module has all their names."""
        new: dict[str | None, set[str]] = {}
        for text in added:
            if IMPORT.match(text):
                new.setdefault(find_key(text), set()).update(_WORD.findall(text))
        stay = (self.file.lines[at] for at in self._imports if at in kept) if new else ()
        return sum(set(_WORD.findall(text)) <= new.get(find_key(text), set()) for text in stay)

    @cached_property
    def _imports(self) -> list[int]:
        return [at for at, line in enumerate(self.file.lines) if IMPORT.match(line)]

    def _add_said(self, rows: Sequence[Row], shown: Sequence[int], found: dict[str, float]) -> None:
        file = self.file
        for at in shown:
            if rows[at].line is not None:
                continue
            if self._after and at and rows[at - 1].line is not None:
                line = rows[at - 1].line or 0
                chain = file.owners[line]
                found["after_named"] += any(w in file.keys[line] or any(w in n for n in chain) for w in self._after)
            if self._before and at + 1 < len(rows) and rows[at + 1].line is not None:
                line = rows[at + 1].line or 0
                found["before_named"] += any(w in key for w in self._before for key in file.keys[line : line + 3])
        found["after_named"] = min(1.0, found["after_named"])
        found["before_named"] = min(1.0, found["before_named"])
        if _AT_END.search(self.snippet.said):
            found["at_end"] = float(any(row.line is None for row in rows[-2:]))


def _count_in(kept: Set[int], places: Sequence[int] | None) -> int:
    return sum(at in kept for at in places) if places else 0
