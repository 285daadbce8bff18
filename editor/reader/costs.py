"""The steps that align a snippet with its file, and their costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from editor.attribution.statements import IMPORT, find_key
from editor.reader.candidates import FileLines, Floats, LineCandidates, Mask, Rewrite, Snippet
from editor.reader.coverage import (
    find_lines_to_remove,
    find_named_places,
    find_stale_imports,
    is_whole,
    mask_closed_lines,
)

# What a path did last. UNBOUND: inserted lines below a gap. CUT: deletes lines below a gap. ELIDED: skips lines without
# a marker. OUTSIDE: skips lines less indented than the marker.
BOUND, NEW, UNBOUND, DELETED, CUT, GAP, ELIDED, OUTSIDE = range(8)

Kind = Literal["match", "sub", "insert", "delete", "skip", "mark", "drop", "rewrite"]


class AlignmentStep(NamedTuple):
    """One step: the items [item, item_end) and the file lines [line, line_end) that it takes, and the state before."""

    kind: Kind
    item: int
    item_end: int
    line: int
    line_end: int
    state: int


@dataclass(frozen=True, slots=True)
class Path:
    """An alignment of a whole snippet with a whole file, and its cost."""

    cost: float
    steps: tuple[AlignmentStep, ...]


INF = 1e9
"""The cost of a step that is not possible."""


@dataclass(frozen=True, slots=True)
class CostWeights:
    """The weights of the costs of steps, learned on snippets as models write them."""

    insert: float = 0.15
    insert_first: float = 0.4
    named_place: float = 1.5
    insert_sign: float = 0.06
    delete: float = 0.4
    delete_first: float = 0.6
    delete_sign: float = 0.2
    delete_then_gap: float = 2.0
    delete_unit_then_gap: float = 1.6
    gap_then_delete: float = 1.5
    delete_head: float = 1.2
    delete_lead: float = 0.2
    named_share: float = 0.1
    elide: float = 2.2
    elide_head: float = 1.32
    elide_whole: float = 1.0
    open_start: float = 0.6
    open_end: float = 0.6
    unbound: float = 1.0
    least_alike: float = 0.6
    alike: float = 0.8
    depth: float = 0.8
    within: float = 0.32
    no_blank: float = 0.24
    early: float = 0.3
    early_import: float = 0.05
    below_guard: float = 0.8
    import_apart: float = 1.2
    shift: float = 0.5
    owner: float = 1.0
    owner_shown: float = 3.0
    new_owner: float = 0.6
    rename: float = 0.5
    head_for_line: float = 1.0
    rename_at_gap: float = 1.5
    retitle_at_gap: float = 4.0
    leave_scope: float = 1.2
    weak: float = 0.3
    weak_unbound: float = 0.5
    remark: float = 0.05
    maybe_marker: float = 0.3
    rewrite: float = 1.6
    rewrite_layout: float = 1.2
    insert_unit: float = 1.0
    insert_unit_line: float = 0.02
    insert_unit_head: float = 1.5
    insert_unit_gain: float = 0.9
    elided_head: float = 1.3
    skip: float = 0.002
    skip_elided: float = 0.004
    skip_closed: float = 0.3
    skip_stale: float = 0.5


class StepCosts:
    """Computes the costs of the steps that align one snippet with one file.

    `delete` has the cost of deleting each line of the file, `delete_sum` its sums, and `delete_end` the cost of a gap
    directly below deleted lines. `skip` and `skip_sum` are the same for skipping lines, by the state of the path.
    `weak_gap` and `weak_unbound` are added where a shown line that says little is taken below a gap or below new lines.
    `rename[item, line]` is added where an item takes the place of another definition below a gap.
    """

    def __init__(self, file: FileLines, snippet: Snippet, candidates: LineCandidates, weights: CostWeights) -> None:
        self.file, self.snippet, self.candidates, self.weights = file, snippet, candidates, weights
        self.num_items, self.num_lines = len(snippet), len(file)
        self.widths = np.array(file.widths, np.int64)
        self.removable = find_lines_to_remove(file, snippet)
        self._named_places = sorted(find_named_places(file, snippet))
        self._is_whole = is_whole(file, snippet)
        self._file_names = {name for name in file.names if name}
        self._shown_names = {name for name in snippet.names if name}
        self._guard = next((at for at, key in enumerate(file.keys) if key.startswith("if __name__")), None)
        self._imports = [at for at, key in enumerate(file.keys) if IMPORT.match(key)]
        self._place_costs: dict[tuple[object, ...], Floats] = {}
        self._sum_deletions()
        self._sum_skips()
        weak = np.append(file.weights[: self.num_lines] < 0.75, False)
        self.weak_gap, self.weak_unbound = weak * weights.weak, weak * weights.weak_unbound
        self.rename = np.zeros((self.num_items, self.num_lines + 1))

    def _sum_deletions(self) -> None:
        file, weights = self.file, self.weights
        cost = np.array([weights.delete if any(map(str.isalnum, key)) else weights.delete_sign for key in file.keys])
        ends = np.full(self.num_lines + 1, weights.delete_then_gap)
        for first, end, name in file.definitions:
            lead = first
            while lead < end - 1 and file.keys[lead].startswith(("/*", "*", "//", "#", "@")):
                cost[lead] += weights.delete_lead
                lead += 1
            if name not in self._shown_names and first not in self.removable:
                cost[lead] += weights.delete_head
            ends[end] = weights.delete_unit_then_gap
        for at in self.removable:
            cost[at] *= weights.named_share
            ends[at + 1] *= weights.named_share
        self.delete, self.delete_end = cost, ends
        self.delete_sum = np.concatenate([[0.0], np.cumsum(cost)])

    def _sum_skips(self) -> None:
        weights = self.weights
        more = weights.skip_closed * mask_closed_lines(self.file, self.snippet)
        more[find_stale_imports(self.file, self.snippet)] += weights.skip_stale
        self.skip: dict[int, Floats] = {
            state: np.asarray(price + more, np.float64)
            for state, price in ((GAP, weights.skip), (OUTSIDE, weights.skip), (ELIDED, weights.skip_elided))
        }
        self.skip_sum: dict[int, Floats] = {
            state: np.concatenate([[0.0], np.cumsum(row)]) for state, row in self.skip.items()
        }

    def compute_takes(self, at: int) -> Floats:
        """Return the cost of taking an item at each line of the file: as that line, or in its place."""
        file, weights = self.file, self.weights
        row = np.full(self.num_lines + 1, INF)
        item = self.snippet.items[at]
        if item.kind == "marker" or not self.num_lines:
            return row
        owner = self._compute_owner_costs(at)
        known = item.hunk in self.snippet.shifts
        width = self.snippet.compute_width(at)
        if item.elided is None:
            same = self.candidates.same[at]
            if len(same):
                telling = file.weights[same]
                shifted = (self.widths[same] != width) * (weights.shift if known else 0.0)
                row[same] = -telling + owner[same] + shifted * np.where(telling > 0.5, 1.0, 0.55)
        else:
            row[self.candidates.same[at]] = -weights.elided_head + owner[self.candidates.same[at]]
        name = self.snippet.names[at]
        for line, alike in self.candidates.alike[at].items():
            if alike < weights.least_alike or row[line] < INF:
                continue
            value = -file.weights[line] * (alike - 0.35) * weights.alike + 1.5 * owner[line]
            if known and file.widths[line] != width:
                value += weights.shift * 0.4
            old = file.names[line]
            if name and old and old != name:
                stays = self.snippet.place.is_after(old) or self.snippet.place.is_before(old)
                if name in self._file_names or old in self._shown_names or stays:
                    continue
                value += 1.5 * weights.rename
                self.rename[at, line] = weights.retitle_at_gap if _is_title(name) else weights.rename_at_gap
            if name and not old and self.snippet.keys[at] != find_key(file.keys[line]):
                value += weights.head_for_line
            row[line] = value
        return row

    def _compute_owner_costs(self, at: int) -> Floats:
        """Return for each line of the file the cost of its lying in another definition than the item."""
        full = self.snippet.owners[at]
        chain = full[:-1] if self.snippet.names[at] and full else full
        telling = np.minimum(1.0, self.file.weights)
        total: Floats = np.zeros(self.num_lines)
        if not full:
            return total
        for name, inside in self._definition_masks.items():
            if name not in full:
                total = total + self.weights.owner_shown * (inside * telling)
        for name in chain[-2:]:
            if name not in self._file_names:
                return np.asarray(total + self.weights.new_owner * telling, dtype=np.float64)
            total = total + np.where(self.file.mask_definition(name), 0.0, self.weights.owner * telling)
        return total

    @cached_property
    def _definition_masks(self) -> dict[str, Mask]:
        """For each definition that the snippet shows by its name, the lines of the file directly in it."""
        innermost = [chain[-1] if chain else "" for chain in self.file.owners]
        return {
            name: np.array([name == one for one in innermost], np.bool_)
            for name in sorted(self._shown_names.intersection(innermost))
        }

    def compute_places(self, at: int) -> Floats:
        """Return the cost of inserting an item above each line of the file where nothing above it is shown."""
        file, weights = self.file, self.weights
        item = self.snippet.items[at]
        width = self.snippet.compute_width(at)
        is_import = IMPORT.match(item.key) is not None
        module = find_key(item.key) if is_import else None
        known = (width, bool(self.snippet.names[at]), module if is_import else None)
        if known in self._place_costs:
            return self._place_costs[known]
        above = np.concatenate([[0], self.widths]) if self.num_lines else np.zeros(1)
        below = np.concatenate([self.widths, [0]]) if self.num_lines else np.zeros(1)
        apart = (above != width) & (below != width)
        shallow = (above < width) | (below < width)
        cost: Floats = weights.depth * apart * np.where(shallow, 0.5, 1.0) + weights.within * ~file.can_insert_above
        cost = cost + weights.early * (below == width)
        cost[self._named_places] -= weights.named_place
        if self.snippet.names[at]:
            blank = np.array([True, *(bool(rows) for rows in file.above[1:]), True])
            cost = cost + weights.no_blank * (~blank[: self.num_lines + 1] & (below >= width))
            if self._guard is not None:
                cost[self._guard] -= weights.early * (below[self._guard] == width)
                cost[self._guard + 1 :] += weights.below_guard
        if is_import:
            near = np.zeros(self.num_lines + 1)
            for line in self._imports:
                value = 1.0 if find_key(file.keys[line]) == module else 0.6
                near[line] = max(near[line], value)
                near[line + 1] = max(near[line + 1], value)
            cost = cost + weights.import_apart * (1 - near)
            cost[self._imports] += weights.early_import
        self._place_costs[known] = cost
        return cost

    def compute_insert(self, at: int) -> float:
        """Return the cost of inserting an item."""
        item = self.snippet.items[at]
        cost = self.weights.insert if any(map(str.isalnum, item.key)) else self.weights.insert_sign
        return cost + (3.0 if item.elided is not None else 0.0)

    def compute_elide(self, at: int) -> float:
        """Return the cost of leaving out lines above an item without a marker."""
        whole = self.weights.elide_whole if self._is_whole else 0.0
        if at == self.num_items:
            return self.weights.open_end + whole
        item = self.snippet.items[at]
        if item.kind == "marker":
            return INF
        return whole + (self.weights.elide_head if self.snippet.names[at] and item.blanks else self.weights.elide)

    def compute_rewrite(self, one: Rewrite) -> float:
        """Return the cost of replacing a statement by another form of it."""
        weights = self.weights
        size = max(one.line_end - one.line, one.item_end - one.item)
        renamed = 0.0
        if one.renames:
            titled = _is_title(self.snippet.names[one.item] or "")
            renamed = weights.rename + (weights.retitle_at_gap if titled else weights.rename_at_gap)
        laid_out = weights.rewrite_layout * (one.item_end - one.item) if one.likeness == 1.0 else 0.0
        return renamed - weights.rewrite * (one.likeness - 0.3) - 0.15 * min(6, size) - laid_out


def _is_title(name: str) -> bool:
    """Return whether a name is a title in quotes or of several words, as those of tests."""
    return not name.replace(".", "").isidentifier()
