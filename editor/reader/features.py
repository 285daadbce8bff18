"""What tells the readings of one snippet apart: features of what each changes, for the learned order."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from math import log1p

from rapidfuzz import fuzz

from editor.attribution.snippet import measure_indent
from editor.attribution.statements import IMPORT, find_key, find_name
from editor.reader.alignment import (
    ELIDED,
    GAP,
    OUTSIDE,
    UNBOUND,
    AlignmentStep,
    Path,
    find_named_lines,
    find_named_places,
    is_whole,
    mask_closed_lines,
)
from editor.reader.candidates import FileLines, Snippet, is_comment, measure_likeness
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
    "sub_added",
    "sub_gap_added",
    "added_changed",
    "old_said",
    "old_unsaid",
    "delete_unsaid",
    "delete_said",
    "delete_added",
    "after_named",
    "before_named",
    "named_place",
    "unnamed_place",
    "at_end",
)
_PROBLEM = ("num_markers", "share_shown", "log_items")

FEATURES: tuple[str, ...] = (*_PATH, *_RUNS, *_TEXT, *_SAID, *_PROBLEM)
"""The names of the features of a reading, in their order."""

_REMOVES = re.compile(
    r"\b(remov|delet|drop|get rid|strip|unused|no longer|replac|switch|instead|simplif|inline|collapse|rename|move|"
    r"shorten|clean|swap|extract)",
    re.I,
)
_ADDS = re.compile(r"\b(add|insert|append|introduc|new|document)\b", re.I)
_CHANGES = re.compile(
    r"\b(chang|updat|renam|switch|set|bump|replac|us(?:e|ing)|mak(?:e|ing)|turn|rewrit|convert|return|fix|pass|rework|"
    r"increas|decreas|raise|lower|instead)\w*\b",
    re.I,
)
_SPACING = re.compile(r"blank|empty line|spacing|sort|format|isort", re.I)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_AT_END = re.compile(r"\b(at the end|at the bottom|append)", re.I)
_AFTER = re.compile(r"(?:after|below|under|following|next to)\s+(?:the\s+|its\s+)?[`\"']?([\w$.\-/@]{3,})")
_BEFORE = re.compile(r"(?:before|above|ahead of|on top of)\s+(?:the\s+|its\s+)?[`\"']?([\w$.\-/@]{3,})")
_QUOTED = re.compile(r"[\"'<]([^\"'>]+)[\"'>]")
_VARIABLE = ("const", "let", "var")
_GAPS = (GAP, ELIDED, OUTSIDE)
_OPENS = ("then", "do", "else", "begin", "try")
_HEAD_ENDS = ("{", ":", *_OPENS)
_SAME_HEAD = 85.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A text before it is accounted for: its runs of rows, the path that made it, and how.

    `as_shown` has the snippet's blank lines between lines that stay; `num_gone` lines that the path keeps go all the
    same. `movable` tells that a definition shown at a new place stands at its old one in the path, `moved` that it,
    or a line, goes there. `by_hunk`: all lines of a fence are moved as far as most of them.
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
        self.named = find_named_lines(file, snippet)
        self.quoted = {at for at in self.named if snippet.removal.quotes_line(file.lines[at])}
        self.closed: list[int] = [0, *accumulate(mask_closed_lines(file, snippet).tolist())]
        self.last_name = find_last_name(file, snippet)
        self.names = {name for name in snippet.names if name}
        self.ends = {end for _, end, _ in file.definitions}
        self.stands = has_lines_in_order(file, snippet)
        said = snippet.said
        self.changes = bool(_CHANGES.search(said))
        self.words = {word for word in _WORD.findall(said) if len(word) > 2}
        self.removes, self.adds = bool(_REMOVES.search(said)), bool(_ADDS.search(said))
        self.after, self.before = _AFTER.findall(said), _BEFORE.findall(said)
        self.named_places = find_named_places(file, snippet)
        self.items_count = Counter(item.key for item in snippet.items if item.kind != "marker")
        self.file_names = Counter(name for name in file.names if name)
        self.snippet_names = Counter(name for name in snippet.names if name)
        solid = [item for item in snippet.items if item.kind == "line"]
        self.is_whole = is_whole(file, snippet)
        # The drafts of a path come one after the other.
        self._path: Path | None = None
        self._of_path: dict[str, float] = {}
        self.problem = {
            "num_markers": min(4.0, sum(item.kind == "marker" for item in snippet.items)),
            "share_shown": sum(item.key in file.places for item in solid) / max(1, len(solid)),
            "log_items": log1p(len(solid)),
        }

    @cached_property
    def _num_errors(self) -> int:
        return count_errors(self.file.text, self.file.language) or 0

    def add_syntax_errors(self, features: Sequence[float], text: str) -> tuple[float, ...]:
        """Return the features of a reading with how many syntax errors its text has more than the file."""
        errors = count_errors(text, self.file.language)
        more = min(3.0, max(0, (errors or 0) - self._num_errors))
        return tuple(more if name == "errors" else value for name, value in zip(FEATURES, features, strict=True))

    def extract(self, draft: Draft, dearer: float) -> tuple[float, ...]:
        """Return the features of a draft but for its syntax errors; `dearer` is by how much than the cheapest draft."""
        if draft.path is not self._path:
            self._path, self._of_path = draft.path, dict.fromkeys(FEATURES, 0.0) | self.problem
            self._add_path(draft.path.steps, self._of_path)
            self._add_runs(draft.path.steps, self._of_path)
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
        found["kept_named"] = log1p(len(self.named & kept))
        found["kept_quoted"] = float(len(self.quoted & kept))
        found["as_shown_imports"] = float(draft.as_shown and bool(IMPORT.match(self.snippet.items[0].key or "-")))
        found["as_shown_said"] = float(draft.as_shown and bool(_SPACING.search(self.snippet.said)))
        found["moved"], found["gone"] = float(draft.moved), 0.0 if draft.moved else log1p(draft.num_gone)
        found["moved_definition"] = float(draft.moved and draft.movable)
        found["kept_definition"] = float(draft.movable and not draft.moved)
        self._add_said(rows, shown, found)
        return tuple(map(found.__getitem__, FEATURES))

    def _add_path(self, steps: Sequence[AlignmentStep], found: dict[str, float]) -> None:
        num_elided = num_closed = num_cut = 0
        new = {step.item for step in steps if step.kind == "insert"}
        for number, step in enumerate(steps):
            above = steps[number - 1].kind if number else "start"
            below = steps[number + 1].kind if number + 1 < len(steps) else "end"
            if step.kind in ("match", "sub"):
                parent = self.snippet.items[step.item].parent
                found["adopted"] += parent in new and self.file.widths[step.line] == self.snippet.compute_width(
                    step.item
                )
            if step.kind == "match":
                found["match"] += self.file.weights[step.line]
                self._add_owner(step.item, step.line, found)
            elif step.kind == "sub":
                self._add_sub(step, step.state in _GAPS or below in ("mark", "skip", "end"), found)
            elif step.kind == "insert":
                self._add_insert(step, above, found)
            elif step.kind == "delete":
                self._add_delete(step, above, found)
            elif step.kind == "skip":
                num_elided += self._add_skip(step, above, found)
                cut = bool(self.last_name) and step.item == len(self.snippet)
                num_cut += cut and int(self.file.mask_definition(self.last_name)[step.line : step.line_end].sum())
                num_closed += self.closed[step.line_end] - self.closed[step.line]
            elif step.kind == "mark":
                found["maybe_marker"] += self.snippet.items[step.item].kind == "maybe_marker"
            else:
                found[step.kind] += 1
                if step.kind == "rewrite":
                    name, old = self.snippet.names[step.item], self.file.names[step.line]
                    is_renamed = bool(name and old and name != old)
                    found["rewrite_renamed"] += is_renamed
                    found["rewrite_renamed_at_gap"] += is_renamed and step.state in _GAPS
            if above == "delete" and step.kind in ("mark", "skip"):
                found["delete_then_gap"] += 1
                found["delete_unit_then_gap"] += step.line in self.ends
            if step.kind in ("mark", "skip") and step.state == UNBOUND:
                found["unbound"] += 1
        found["unbound"] += bool(steps) and steps[-1].kind == "insert" and steps[-1].state in (UNBOUND, GAP, ELIDED)
        num_deleted = sum(step.kind == "delete" for step in steps)
        found["delete_log"] = log1p(num_deleted)
        found["delete_many"] = max(0.0, num_deleted - 8) / 8
        found["elide_log"] = log1p(num_elided) if found["elide"] + found["elide_start"] else 0.0
        shown = (step.line for step in steps if step.kind == "match" and step.item)
        in_body = (at for at in shown if self.file.names[at] != self.last_name)
        is_bare = num_cut > 0 and not any(self.last_name in self.file.owners[at] for at in in_body)
        found["skip_cut_bare"] = float(is_bare)
        num_skipped = sum(step.line_end - step.line for step in steps if step.kind == "skip")
        found["whole_skips"] = log1p(num_skipped) if self.is_whole else 0.0
        found["skip_cut"], found["skip_cut_log"] = float(num_cut > 0), log1p(num_cut)
        found["skip_closed"], found["skip_closed_log"] = float(num_closed > 0), log1p(num_closed)
        found["brackets"] = min(3.0, abs(found["brackets"]))
        found["insert_known"] = min(3.0, found["insert_known"])
        is_gone = num_deleted or found["sub"] or found["rewrite"]
        found["stands"] = float(self.stands and bool(new or found["sub"] or found["rewrite"]))
        found["unheeded"] = float(self.snippet.removal.says_anything and not is_gone)
        found["delete_unsaid"] = (not self.removes) * found["delete_log"]
        found["delete_said"] = self.removes * found["delete_log"]
        only_adds = self.adds and not self.removes and not self.changes
        found["sub_added"] = float(only_adds and found["sub"] > 0)
        found["sub_gap_added"] = float(only_adds and found["sub_other_key_at_gap"] > 0)
        found["added_changed"] = float(
            (self.changes or self.removes) and not self.adds and not found["sub"] + found["rewrite"] + num_deleted
        )
        found["delete_added"] = float(self.adds and not self.removes and num_deleted > 0)

    def _add_sub(self, step: AlignmentStep, beside_gap: bool, found: dict[str, float]) -> None:
        at, line = step.item, step.line
        key, old = self.snippet.keys[at], find_key(self.file.keys[line])
        other = bool(key and old and key != old)
        name, old_name = self.snippet.names[at], self.file.names[line]
        found["sub"] += 1
        found["sub_known"] += self.snippet.items[at].key in self.file.places and self.file.weights[line] > 0.3
        found["sub_other_key"] += other
        found["sub_at_gap"] += beside_gap
        found["sub_other_key_at_gap"] += beside_gap and other
        found["head_swapped"] += not name and self._is_head_swapped(self.snippet.items[at].key, self.file.keys[line])
        if other and old:
            found["old_said" if self.words.intersection(_WORD.findall(old)) else "old_unsaid"] += 1
        is_renamed = bool(name and old_name and name != old_name)
        found["renamed"] += is_renamed
        found["renamed_at_gap"] += is_renamed and step.state in _GAPS
        found["brackets"] += _count_open_brackets(self.snippet.items[at].key) - _count_open_brackets(
            self.file.keys[line]
        )
        self._add_owner(at, line, found)

    def _add_insert(self, step: AlignmentStep, above: str, found: dict[str, float]) -> None:
        key = self.snippet.items[step.item].key
        found["insert" if any(map(str.isalnum, key)) else "insert_signs"] += 0.2
        found["insert_known"] += self.file.counts[key] == 1 and len(key) > 3 and any(map(str.isalnum, key))
        found["brackets"] += _count_open_brackets(key)
        if above != "insert":
            found["insert_runs"] += 1
            found["inserted_within"] += not self.file.can_insert_above[step.line]
        if step.state in _GAPS or not step.item:
            found["place"] += self._measure_place(step.item, step.line)
            if self.named_places and self.snippet.names[step.item]:
                found["named_place" if step.line in self.named_places else "unnamed_place"] += 1
            is_named = bool(self.snippet.names[step.item]) and step.line < len(self.file)
            if is_named and not self.file.keys[step.line].startswith("if __name__"):
                found["early"] += self.file.widths[step.line] == self.snippet.compute_width(step.item)

    def _add_delete(self, step: AlignmentStep, above: str, found: dict[str, float]) -> None:
        line = step.line
        key, name = self.file.keys[line], self.file.names[line]
        found["brackets"] -= _count_open_brackets(key)
        found["delete_named" if line in self.named else "delete"] += 0.2
        found["delete_comments"] += is_comment(self.file.lines[line])
        found["delete_at_top"] += step.item == 0
        if above != "delete":
            found["delete_runs"] += 1
            found["gap_then_delete"] += step.state in _GAPS
        if name and name not in self.names and not key.startswith(_VARIABLE):
            found["lost_names_said" if name.strip("\"'`") in self.snippet.said else "lost_names"] += 1

    def _add_owner(self, at: int, line: int, found: dict[str, float]) -> None:
        chain = self.snippet.owners[at]
        chain = chain[:-1] if self.snippet.names[at] else chain
        if not chain:
            return
        weight = min(1.0, float(self.file.weights[line]))
        if chain[-1] not in self.file_names:
            found["new_owner"] += weight
        elif chain[-1] not in self.file.owners[line]:
            found["other_owner"] += weight

    def _add_skip(self, step: AlignmentStep, above: str, found: dict[str, float]) -> int:
        if above != "skip":
            if step.state == ELIDED and step.item == 0:
                found["elide_start"] += 1
            elif step.state not in (GAP, ELIDED, OUTSIDE):
                if step.item < len(self.snippet):
                    found["elide"] += 1
                    item = self.snippet.items[step.item]
                    found["elide_head"] += bool(self.snippet.names[step.item] and item.blanks)
                else:
                    found["elide_end"] += 1
        if step.state == GAP and step.line_end == step.line + 1:
            marker = self.snippet.items[step.item - 1]
            outside = marker.width > 0 and self.file.widths[step.line] < marker.width
            found["leave_scope"] += outside and any(map(str.isalnum, self.file.keys[step.line]))
        return step.line_end - step.line if step.state not in (GAP, OUTSIDE) else 0

    def _measure_place(self, at: int, line: int) -> float:
        file, width = self.file, self.snippet.compute_width(at)
        above = file.widths[line - 1] if line else 0
        below = file.widths[line] if line < len(file) else 0
        apart = 0.0 if width in (above, below) else 0.5 if min(above, below) < width else 1.0
        key = self.snippet.items[at].key
        if IMPORT.match(key):
            near = [file.keys[one] for one in (line - 1, line) if 0 <= one < len(file) and IMPORT.match(file.keys[one])]
            apart += 1.0 if not near else 0.0 if _find_package(key) in map(_find_package, near) else 0.2
        return apart

    def _add_runs(self, steps: Sequence[AlignmentStep], found: dict[str, float]) -> None:
        """Add what each run of changes removes and adds, by whether shown lines stand on both its sides."""
        removed: list[int] = []
        added: list[int] = []
        left = False
        line = num_runs = 0
        for step in (*steps, None):
            if step is not None and step.kind in ("sub", "insert", "delete", "rewrite"):
                line = line if removed or added else step.line
                removed += range(step.line, step.line_end)
                added += range(step.item, step.item_end)
                continue
            if step is not None and step.kind == "drop":
                continue
            right = step is not None and step.kind == "match"
            if removed or added:
                num_runs += 1
                self._add_run(removed, added, left, right, found)
                beside = (removed[0] - 1, removed[-1] + 1) if removed and left and right else ()
                found["removed_twin"] += len(added) < len(removed) and any(
                    self.file.counts[self.file.keys[at]] > 1 and any(map(str.isalnum, self.file.keys[at]))
                    for at in beside
                )
                if added and not removed:
                    self._add_rivals(added, line, left, right, found)
                removed, added = [], []
            left = right
        found["more_runs"] = max(0, num_runs - 1)

    def _add_run(
        self, removed: Sequence[int], added: Sequence[int], left: bool, right: bool, found: dict[str, float]
    ) -> None:
        file, snippet = self.file, self.snippet
        where = "between" if left and right else "aside" if left or right else "free"
        if not removed:
            found[f"added_{where}"] += 1
            return
        is_code = any(not is_comment(file.lines[at]) and file.keys[at].strip("{}()[];, ") for at in removed)
        found["comment_for_code"] += (
            bool(added) and is_code and all(is_comment(snippet.items[item].line) for item in added)
        )
        pairs = self._pair_lines(removed, added)
        last = len(removed) - 1
        for a, b, value in pairs:
            old, new = find_key(file.keys[removed[a]]), snippet.keys[added[b]]
            other = bool(old and new and old != new)
            found["paired_equal" if value == 1 else "paired_other" if other else "paired"] += value
            if value < 1 and ((a == 0 and not left) or (a == last and not right)):
                found["paired_edge"] += 1
                found["paired_edge_other"] += other
        paired = {a for a, _, _ in pairs}
        lone = [a for a in range(len(removed)) if a not in paired and removed[a] not in self.named]
        if not lone:
            return
        found[f"removed_{where}"] += 1
        if where != "free":
            found[f"removed_{where}_log"] += log1p(len(lone))
        side = "between" if where == "between" else "aside"
        if not pairs and not added:
            found[f"pure_{side}"] += 1
            found["pure_between_log"] += log1p(len(lone)) * (side == "between")
        elif not pairs:
            found["unpaired"] += 1
        found["removed_edge"] += (0 in lone and not left) + (last in lone and not right)
        heads = [
            file.names[removed[a]]
            for a in lone
            if file.names[removed[a]] and not file.keys[removed[a]].startswith(_VARIABLE)
        ]
        found[f"heads_{side}"] += min(3, sum(name not in self.names for name in heads))
        found[f"comments_{side}"] += all(is_comment(file.lines[removed[a]]) for a in lone)
        found["blanks_removed"] += sum(bool(file.above[removed[a]]) for a in lone if a) / len(lone)
        found["as_many"] += len(added) >= len(lone)

    def _add_rivals(self, added: Sequence[int], line: int, left: bool, right: bool, found: dict[str, float]) -> None:
        """Add how much new lines that replace nothing are like the unshown lines beside them."""
        keys = self.file.keys
        beside = [] if left else [(added[0], at) for at in range(line - 1, max(-1, line - 4), -1)]
        beside += [] if right else [(added[-1], at) for at in range(line, min(len(keys), line + 3))]
        telling = [(item, at) for item, at in beside if any(map(str.isalnum, keys[at]))]
        alike = [
            # One decorator may take another's place whatever it is called.
            1.0
            if keys[at][0] == "@" == self.snippet.items[item].key[0]
            else self._measure_likeness(keys[at], self.snippet.items[item].key)
            for item, at in telling
        ]
        found["rival_alike"] = max(found["rival_alike"], *alike, 0.0)
        first = [value for value, (_, at) in zip(alike, telling, strict=True) if at in (line - 1, line)]
        found["rival_first"] = max(found["rival_first"], *first, 0.0)
        abouts = [(self.snippet.keys[item], find_key(keys[at])) for item, at in telling]
        found["rival_key"] += any(a is not None and a == b for a, b in abouts)

    def _pair_lines(self, removed: Sequence[int], added: Sequence[int]) -> list[tuple[int, int, float]]:
        """Return which removed line pairs with which added one, in order, for the most likeness."""
        if len(removed) * len(added) > 2_500:
            return []
        num, many = len(removed), len(added)
        table = [[0.0] * (many + 1) for _ in range(num + 1)]
        values: dict[tuple[int, int], float] = {}
        for a in range(num - 1, -1, -1):
            for b in range(many - 1, -1, -1):
                value = values[a, b] = self._measure_likeness(
                    self.file.keys[removed[a]], self.snippet.items[added[b]].key
                )
                pair = table[a + 1][b + 1] + value - 0.4 if value > 0.5 else 0.0
                table[a][b] = max(table[a + 1][b], table[a][b + 1], pair)
        found = []
        a = b = 0
        while a < num and b < many:
            value = values[a, b]
            if value > 0.5 and table[a][b] == table[a + 1][b + 1] + value - 0.4:
                found.append((a, b, value))
                a, b = a + 1, b + 1
            elif table[a][b] == table[a + 1][b]:
                a += 1
            else:
                b += 1
        return found

    @cached_property
    def _likenesses(self) -> dict[tuple[str, str], float]:
        return {}

    def _measure_likeness(self, old: str, new: str) -> float:
        if old == new:
            return 1.0
        value = self._likenesses.get((old, new))
        if value is None:
            value = self._likenesses[old, new] = measure_likeness(old, new, fuzz.ratio(old, new, score_cutoff=25) / 100)
        return value

    def _add_text(self, rows: Sequence[Row], shown: Sequence[int], kept: Set[int], found: dict[str, float]) -> None:
        """Add what the rows of a text show; `shown` are the numbers of those that the snippet shows.

        `kept` are the lines of the file that the others are: they alone double nothing that is not double in the file.
        """
        file, snippet = self.file, self.snippet
        keys = Counter(rows[at].text.strip() for at in shown)
        found["double_lines"] = min(
            5.0,
            sum(
                many + _count_in(kept, file.places.get(key))
                > max(file.counts.get(key, 0), self.items_count.get(key, 0))
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
                many + _count_in(kept, self._name_places.get(one)) > max(self.file_names[one], self.snippet_names[one])
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
    def _is_head_swapped(new: str, old: str) -> bool:
        """Tell whether the head of a block is neither like the one whose place it takes nor holds its words."""
        if not (new.endswith(_HEAD_ENDS) and old.endswith(_HEAD_ENDS)) or fuzz.ratio(new, old) >= _SAME_HEAD:
            return False
        words, others = set(_WORD.findall(new)), set(_WORD.findall(old))
        return not (words <= others or others <= words)

    @staticmethod
    def _is_deeper(rows: Sequence[Row], at: int) -> bool:
        """Tell whether a new line is deeper than its neighbours although that above opens nothing."""
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
            if self.after and at and rows[at - 1].line is not None:
                line = rows[at - 1].line or 0
                chain = file.owners[line]
                found["after_named"] += any(w in file.keys[line] or any(w in n for n in chain) for w in self.after)
            if self.before and at + 1 < len(rows) and rows[at + 1].line is not None:
                line = rows[at + 1].line or 0
                found["before_named"] += any(w in key for w in self.before for key in file.keys[line : line + 3])
        found["after_named"] = min(1.0, found["after_named"])
        found["before_named"] = min(1.0, found["before_named"])
        if _AT_END.search(self.snippet.said):
            found["at_end"] = float(any(row.line is None for row in rows[-2:]))


def has_lines_in_order(file: FileLines, snippet: Snippet) -> bool:
    """Tell whether all shown lines stand in the file one below the other: the edit may have been made already."""
    below = 0
    for item in snippet.items:
        if item.kind == "line":
            places = file.places.get(item.key, [])
            at = bisect_left(places, below)
            if at == len(places):
                return False
            below = places[at] + 1
    return True


def _count_in(kept: Set[int], places: Sequence[int] | None) -> int:
    return sum(at in kept for at in places) if places else 0


def _find_package(key: str) -> str:
    """Return the folder or the outermost package that a line imports from."""
    quoted = _QUOTED.search(key)
    if quoted is not None:
        return quoted[1].rpartition("/")[0]
    words = key.split()
    return re.split(r"[.:;]", words[1])[0] if len(words) > 1 else ""


def _count_open_brackets(key: str) -> int:
    return sum(map(key.count, "([{")) - sum(map(key.count, ")]}"))


def find_last_name(file: FileLines, snippet: Snippet) -> str:
    """Return the name of the definition that a snippet ends in, with lines and no marker in it; "" for none."""
    at = len(snippet) - 1
    if at < 1 or snippet.items[at].kind != "line" or not snippet.owners[at]:
        return ""
    name = snippet.owners[at][-1]
    while at and snippet.items[at].kind == "line" and snippet.names[at] != name:
        at -= 1
    is_shown = snippet.names[at] == name and at < len(snippet) - 1
    return name if is_shown and snippet.names.count(name) == 1 and file.names.count(name) == 1 else ""
