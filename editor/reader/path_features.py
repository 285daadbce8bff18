"""The features of a path: what its steps change, one by one and in runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from math import log1p

from rapidfuzz import fuzz

from editor.attribution.statements import IMPORT, find_key
from editor.reader.candidates import FileLines, Snippet, is_comment, measure_likeness
from editor.reader.costs import ELIDED, GAP, OUTSIDE, UNBOUND, AlignmentStep
from editor.reader.coverage import (
    find_last_name,
    find_lines_to_remove,
    find_named_places,
    has_lines_in_order,
    is_whole,
    mask_closed_lines,
)

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
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_QUOTED = re.compile(r"[\"'<]([^\"'>]+)[\"'>]")
_VARIABLE = ("const", "let", "var")
_GAPS = (GAP, ELIDED, OUTSIDE)
_HEAD_ENDS = ("{", ":", "then", "do", "else", "begin", "try")
_SAME_HEAD = 85.0


class PathFeatures:
    """Computes the features of paths of one snippet and file; each method adds to the features in `found`."""

    def __init__(self, file: FileLines, snippet: Snippet) -> None:
        self.file, self.snippet = file, snippet
        self.removable = find_lines_to_remove(file, snippet)
        self._closed: list[int] = [0, *accumulate(mask_closed_lines(file, snippet).tolist())]
        self._last_name = find_last_name(file, snippet)
        self._shown_names = {name for name in snippet.names if name}
        self._file_names = {name for name in file.names if name}
        self._ends = {end for _, end, _ in file.definitions}
        self._stands = has_lines_in_order(file, snippet)
        self._named_places = find_named_places(file, snippet)
        self._is_whole = is_whole(file, snippet)
        self._likenesses: dict[tuple[str, str], float] = {}
        said = snippet.said
        self._words = {word for word in _WORD.findall(said) if len(word) > 2}
        self._changes, self._adds = bool(_CHANGES.search(said)), bool(_ADDS.search(said))
        self._removes = bool(_REMOVES.search(said))

    def add_steps(self, steps: Sequence[AlignmentStep], found: dict[str, float]) -> None:
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
                cut = bool(self._last_name) and step.item == len(self.snippet)
                num_cut += cut and int(self.file.mask_definition(self._last_name)[step.line : step.line_end].sum())
                num_closed += self._closed[step.line_end] - self._closed[step.line]
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
                found["delete_unit_then_gap"] += step.line in self._ends
            if step.kind in ("mark", "skip") and step.state == UNBOUND:
                found["unbound"] += 1
        found["unbound"] += bool(steps) and steps[-1].kind == "insert" and steps[-1].state in (UNBOUND, GAP, ELIDED)
        num_deleted = sum(step.kind == "delete" for step in steps)
        found["delete_log"] = log1p(num_deleted)
        found["delete_many"] = max(0.0, num_deleted - 8) / 8
        found["elide_log"] = log1p(num_elided) if found["elide"] + found["elide_start"] else 0.0
        shown = (step.line for step in steps if step.kind == "match" and step.item)
        in_body = (at for at in shown if self.file.names[at] != self._last_name)
        is_bare = num_cut > 0 and not any(self._last_name in self.file.owners[at] for at in in_body)
        found["skip_cut_bare"] = float(is_bare)
        num_skipped = sum(step.line_end - step.line for step in steps if step.kind == "skip")
        found["whole_skips"] = log1p(num_skipped) if self._is_whole else 0.0
        found["skip_cut"], found["skip_cut_log"] = float(num_cut > 0), log1p(num_cut)
        found["skip_closed"], found["skip_closed_log"] = float(num_closed > 0), log1p(num_closed)
        found["brackets"] = min(3.0, abs(found["brackets"]))
        found["insert_known"] = min(3.0, found["insert_known"])
        is_gone = num_deleted or found["sub"] or found["rewrite"]
        found["stands"] = float(self._stands and bool(new or found["sub"] or found["rewrite"]))
        found["unheeded"] = float(self.snippet.removal.says_anything and not is_gone)
        found["delete_unsaid"] = (not self._removes) * found["delete_log"]
        found["delete_said"] = self._removes * found["delete_log"]
        only_adds = self._adds and not self._removes and not self._changes
        found["sub_added"] = float(only_adds and found["sub"] > 0)
        found["sub_gap_added"] = float(only_adds and found["sub_other_key_at_gap"] > 0)
        found["added_changed"] = float(
            (self._changes or self._removes) and not self._adds and not found["sub"] + found["rewrite"] + num_deleted
        )
        found["delete_added"] = float(self._adds and not self._removes and num_deleted > 0)

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
        found["head_swapped"] += not name and _is_head_swapped(self.snippet.items[at].key, self.file.keys[line])
        if other and old:
            found["old_said" if self._words.intersection(_WORD.findall(old)) else "old_unsaid"] += 1
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
            if self._named_places and self.snippet.names[step.item]:
                found["named_place" if step.line in self._named_places else "unnamed_place"] += 1
            is_named = bool(self.snippet.names[step.item]) and step.line < len(self.file)
            if is_named and not self.file.keys[step.line].startswith("if __name__"):
                found["early"] += self.file.widths[step.line] == self.snippet.compute_width(step.item)

    def _add_delete(self, step: AlignmentStep, above: str, found: dict[str, float]) -> None:
        line = step.line
        key, name = self.file.keys[line], self.file.names[line]
        found["brackets"] -= _count_open_brackets(key)
        found["delete_named" if line in self.removable else "delete"] += 0.2
        found["delete_comments"] += is_comment(self.file.lines[line])
        found["delete_at_top"] += step.item == 0
        if above != "delete":
            found["delete_runs"] += 1
            found["gap_then_delete"] += step.state in _GAPS
        if name and name not in self._shown_names and not key.startswith(_VARIABLE):
            found["lost_names_said" if name.strip("\"'`") in self.snippet.said else "lost_names"] += 1

    def _add_owner(self, at: int, line: int, found: dict[str, float]) -> None:
        chain = self.snippet.owners[at]
        chain = chain[:-1] if self.snippet.names[at] else chain
        if not chain:
            return
        weight = min(1.0, float(self.file.weights[line]))
        if chain[-1] not in self._file_names:
            found["new_owner"] += weight
        elif chain[-1] not in self.file.owners[line]:
            found["other_owner"] += weight

    def _add_skip(self, step: AlignmentStep, above: str, found: dict[str, float]) -> int:
        """Add the features of a skip; return how many lines it leaves out without a marker."""
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
        """Return how badly an item fits above a line, by its indentation and among imports."""
        file, width = self.file, self.snippet.compute_width(at)
        above = file.widths[line - 1] if line else 0
        below = file.widths[line] if line < len(file) else 0
        apart = 0.0 if width in (above, below) else 0.5 if min(above, below) < width else 1.0
        key = self.snippet.items[at].key
        if IMPORT.match(key):
            near = [file.keys[one] for one in (line - 1, line) if 0 <= one < len(file) and IMPORT.match(file.keys[one])]
            apart += 1.0 if not near else 0.0 if _find_package(key) in map(_find_package, near) else 0.2
        return apart

    def add_runs(self, steps: Sequence[AlignmentStep], found: dict[str, float]) -> None:
        """Add what each run of changes removes and adds, by whether shown lines stand on both sides of it."""
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
        lone = [a for a in range(len(removed)) if a not in paired and removed[a] not in self.removable]
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
        found[f"heads_{side}"] += min(3, sum(name not in self._shown_names for name in heads))
        found[f"comments_{side}"] += all(is_comment(file.lines[removed[a]]) for a in lone)
        found["blanks_removed"] += sum(bool(file.above[removed[a]]) for a in lone if a) / len(lone)
        found["as_many"] += len(added) >= len(lone)

    def _add_rivals(self, added: Sequence[int], line: int, left: bool, right: bool, found: dict[str, float]) -> None:
        """Add how much new lines that replace nothing are like the unshown lines next to them."""
        keys = self.file.keys
        beside = [] if left else [(added[0], at) for at in range(line - 1, max(-1, line - 4), -1)]
        beside += [] if right else [(added[-1], at) for at in range(line, min(len(keys), line + 3))]
        telling = [(item, at) for item, at in beside if any(map(str.isalnum, keys[at]))]
        alike = [
            # One decorator may replace another of any name.
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
        """Return the pairs of a removed and an added line, in order, with the greatest sum of likenesses."""
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

    def _measure_likeness(self, old: str, new: str) -> float:
        if old == new:
            return 1.0
        value = self._likenesses.get((old, new))
        if value is None:
            ratio = fuzz.ratio(old, new, score_cutoff=25) / 100
            value = self._likenesses[old, new] = measure_likeness(old, new, ratio)
        return value


def _is_head_swapped(new: str, old: str) -> bool:
    """Return whether the head of a block is neither like the one that it replaces nor holds its words."""
    if not (new.endswith(_HEAD_ENDS) and old.endswith(_HEAD_ENDS)) or fuzz.ratio(new, old) >= _SAME_HEAD:
        return False
    words, others = set(_WORD.findall(new)), set(_WORD.findall(old))
    return not (words <= others or others <= words)


def _find_package(key: str) -> str:
    """Return the folder or the outermost package from which a line imports."""
    quoted = _QUOTED.search(key)
    if quoted is not None:
        return quoted[1].rpartition("/")[0]
    words = key.split()
    return re.split(r"[.:;]", words[1])[0] if len(words) > 1 else ""


def _count_open_brackets(key: str) -> int:
    return sum(map(key.count, "([{")) - sum(map(key.count, ")]}"))
