"""The k best monotone alignments of a snippet's lines with a file's, as changes of the file.

A path takes the items of the snippet and the file's lines in order, by these steps:

    match    a shown line that the file has            sub      a shown line in place of a line of the file
    insert   a shown line that is new                  delete   a line of the file that goes
    skip     lines of the file that stay: behind a marker, or left out without one
    mark     a marker                                  drop     a remark

Between steps it is in one of the states of `State`. The cost of the best way to the end is computed from the back for
every item and line, a row at a time; an A* search, for which that cost is the exact heuristic, then yields the paths of
the k best distinct texts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

import numpy as np

from editor.attribution.statements import IMPORT, find_key
from editor.execution import check_stopped
from editor.reader.candidates import FileLines, Floats, LineCandidates, Rewrite, Snippet, is_comment

MAX_STEPS = 12_000
"""Of the search for the best paths; past it those found so far are all."""

_WORD = re.compile(r"\w+")
_MOVE = re.compile(r"\bmov(?:e|es|ed|ing)\b", re.IGNORECASE)
_INF = 1e9
_BASE = 1_000_003
_MOD = (1 << 61) - 1
_MAX_EXITS = 24
_ROUNDING = 1e-6
_WHOLE_SHARE = 0.6
_MIN_UNIT = 4
_OPENS = ("{", ":", "do", "then", "(", "[", ">")

# What a path did last. UNBOUND: new lines of which nothing above is shown. CUT: deleting behind a gap.
BOUND, NEW, UNBOUND, DELETED, CUT, GAP, ELIDED, OUTSIDE = range(8)

Kind = Literal["match", "sub", "insert", "delete", "skip", "mark", "drop", "rewrite"]


class AlignmentStep(NamedTuple):
    """One step: the ranges of items and of file lines that it takes, the state before it."""

    kind: Kind
    item: int
    item_end: int
    line: int
    line_end: int
    state: int


@dataclass(frozen=True, slots=True)
class Path:
    """A way through snippet and file, and what it costs."""

    cost: float
    steps: tuple[AlignmentStep, ...]


@dataclass(frozen=True, slots=True)
class Costs:
    """What the steps cost; learned on snippets as models write them."""

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
    behind_guard: float = 0.8
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


class _Move(NamedTuple):
    """One step between two nodes: the least cost to the end of a path that takes it, its price, the least cost behind.

    The hash of a path's text is multiplied by `factor`, and `addend` added.
    """

    least: float
    price: float
    ahead: float
    node: _Node
    kind: Kind = "skip"
    start: _Node | None = None
    factor: int = 1
    addend: int = 0


MoveChain = tuple[_Move, "MoveChain | None"]
"""The moves of a path, last first."""


@dataclass(slots=True, eq=False)
class _Node:
    """A place in snippet and file, and the state there: the texts of the paths to it, and the moves from it.

    `moves` are in the order of lines; to a path with `crowded` room or more too many are open: only `best_moves` are.
    """

    at: int
    line: int
    state: int
    texts: set[int] = field(default_factory=set)
    moves: list[_Move] = field(default_factory=list)
    best_moves: list[_Move] = field(default_factory=list)
    crowded: float = _INF


class _Nodes(dict[tuple[int, int, int], _Node]):
    """The nodes that a search came to, by item, line and state; one that is asked for is made."""

    def __missing__(self, place: tuple[int, int, int]) -> _Node:
        node = self[place] = _Node(*place)
        return node


class Aligner:
    """Finds the best paths of one snippet and one file."""

    def __init__(self, file: FileLines, snippet: Snippet, bindings: LineCandidates, costs: Costs) -> None:
        self.file, self.snippet, self.costs = file, snippet, costs
        self.size, self.num_lines = len(snippet), len(file)
        self.bindings = bindings
        self.named = find_named_lines(file, snippet)
        self._named_places = find_named_places(file, snippet)
        self.is_whole = is_whole(file, snippet)
        self._compute_deletion_costs()
        self._ids: dict[str, int] = {}
        self._hash_lines()
        self._place_costs: dict[tuple[object, ...], Floats] = {}
        self._compute_best_costs()

    def _compute_deletion_costs(self) -> None:
        file, costs = self.file, self.costs
        names = {name for name in self.snippet.names if name}
        cost = np.array([costs.delete if any(map(str.isalnum, key)) else costs.delete_sign for key in file.keys])
        ends = np.full(self.num_lines + 1, costs.delete_then_gap)
        for first, end, name in file.definitions:
            lead = first
            while lead < end - 1 and file.keys[lead].startswith(("/*", "*", "//", "#", "@")):
                cost[lead] += costs.delete_lead
                lead += 1
            if name not in names and first not in self.named:
                cost[lead] += costs.delete_head
            ends[end] = costs.delete_unit_then_gap
        for at in self.named:
            cost[at] *= costs.named_share
            ends[at + 1] *= costs.named_share
        self.delete_cost = cost
        self.delete_sum = np.concatenate([[0.0], np.cumsum(cost)])
        self.end_cost = ends

    def _hash_lines(self) -> None:
        """Sum the hashes of the file's lines above each line, with the powers for as many lines and their inverses."""
        self._sums, self._powers, self._inverses = [0], [1], [1]
        inverse = pow(_BASE, -1, _MOD)
        for key in self.file.keys:
            self._sums.append((self._sums[-1] * _BASE + self._get_id(key)) % _MOD)
            self._powers.append(self._powers[-1] * _BASE % _MOD)
            self._inverses.append(self._inverses[-1] * inverse % _MOD)

    def _get_id(self, key: str) -> int:
        return self._ids.setdefault(key, len(self._ids) + 1)

    # -- costs of one item

    def _compute_take_costs(self, at: int) -> Floats:
        """Return what it costs to take an item at each line of the file: as it is, or in that line's place."""
        file, costs = self.file, self.costs
        row = np.full(self.num_lines + 1, _INF)
        item = self.snippet.items[at]
        if item.kind == "marker" or not self.num_lines:
            return row
        owner = self._compute_owner_costs(at)
        known = item.hunk in self.snippet.shifts
        width = self.snippet.compute_width(at)
        if item.elided is None:
            same = self.bindings.same[at]
            if len(same):
                weights = file.weights[same]
                shifted = (self._widths[same] != width) * (costs.shift if known else 0.0)
                row[same] = -weights + owner[same] + shifted * np.where(weights > 0.5, 1.0, 0.55)
        else:
            row[self.bindings.same[at]] = -costs.elided_head + owner[self.bindings.same[at]]
        name = self.snippet.names[at]
        for place, alike in self.bindings.alike[at].items():
            if alike < costs.least_alike or row[place] < _INF:
                continue
            value = -file.weights[place] * (alike - 0.35) * costs.alike + 1.5 * owner[place]
            if known and file.widths[place] != width:
                value += costs.shift * 0.4
            old = file.names[place]
            if name and old and old != name:
                stays = self.snippet.place.is_after(old) or self.snippet.place.is_before(old)
                if name in self._names or old in self._shown_names or stays:
                    continue
                value += 1.5 * costs.rename
                self.renamed[at, place] = costs.retitle_at_gap if _is_title(name) else costs.rename_at_gap
            if name and not old and self.snippet.keys[at] != find_key(file.keys[place]):
                value += costs.head_for_line
            row[place] = value
        return row

    def _compute_owner_costs(self, at: int) -> Floats:
        """Return what it costs that a line of the file lies in another definition than the item."""
        full = self.snippet.owners[at]
        chain = full[:-1] if self.snippet.names[at] and full else full
        weights = np.minimum(1.0, self.file.weights)
        total: Floats = np.zeros(self.num_lines)
        if not full:
            return total
        for name, inside in self._definition_masks.items():
            if name not in full:
                total = total + self.costs.owner_shown * (inside * weights)
        for name in chain[-2:]:
            if name not in self._names:
                return np.asarray(total + self.costs.new_owner * weights, dtype=np.float64)
            total = total + np.where(self.file.mask_definition(name), 0.0, self.costs.owner * weights)
        return total

    @cached_property
    def _definition_masks(self) -> dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Return for each definition that the snippet shows by its name which lines of the file lie right in it."""
        innermost = [chain[-1] if chain else "" for chain in self.file.owners]
        return {
            name: np.array([name == one for one in innermost], np.bool_)
            for name in sorted(self._shown_names.intersection(innermost))
        }

    def compute_place_costs(self, at: int) -> Floats:
        """Return what it costs to insert an item above each line of the file where nothing above it is shown."""
        file, costs = self.file, self.costs
        item = self.snippet.items[at]
        width = self.snippet.compute_width(at)
        is_import = IMPORT.match(item.key) is not None
        module = find_key(item.key) if is_import else None
        known = (width, bool(self.snippet.names[at]), module if is_import else None)
        if known in self._place_costs:
            return self._place_costs[known]
        above = np.concatenate([[0], self._widths]) if self.num_lines else np.zeros(1)
        below = np.concatenate([self._widths, [0]]) if self.num_lines else np.zeros(1)
        apart = (above != width) & (below != width)
        shallow = (above < width) | (below < width)
        cost: Floats = costs.depth * apart * np.where(shallow, 0.5, 1.0) + costs.within * ~file.can_insert_above
        cost = cost + costs.early * (below == width)
        cost[sorted(self._named_places)] -= costs.named_place
        if self.snippet.names[at]:
            blank = np.array([True, *(bool(rows) for rows in file.above[1:]), True])
            cost = cost + costs.no_blank * (~blank[: self.num_lines + 1] & (below >= width))
            if self._guard is not None:
                cost[self._guard] -= costs.early * (below[self._guard] == width)
                cost[self._guard + 1 :] += costs.behind_guard
        if is_import:
            near = np.zeros(self.num_lines + 1)
            for place in self._imports:
                value = 1.0 if find_key(file.keys[place]) == module else 0.6
                near[place] = max(near[place], value)
                near[place + 1] = max(near[place + 1], value)
            cost = cost + costs.import_apart * (1 - near)
            cost[self._imports] += costs.early_import
        self._place_costs[known] = cost
        return cost

    # -- best costs to the end

    def _compute_best_costs(self) -> None:
        size, num = self.size, self.num_lines
        costs = self.costs
        self._widths = np.array(self.file.widths, np.int64)
        self._names = {name for name in self.file.names if name}
        self._shown_names = {name for name in self.snippet.names if name}
        self._units = find_new_units(self.file, self.snippet)
        guards = (at for at, key in enumerate(self.file.keys) if key.startswith("if __name__"))
        self._guard = next(guards, None)
        self._imports = [at for at, key in enumerate(self.file.keys) if IMPORT.match(key)]
        more = costs.skip_closed * mask_closed_lines(self.file, self.snippet)
        more[find_stale_imports(self.file, self.snippet)] += costs.skip_stale
        self.skip_cost: dict[int, Floats] = {
            state: np.asarray(price + more, np.float64)
            for state, price in ((GAP, costs.skip), (OUTSIDE, costs.skip), (ELIDED, costs.skip_elided))
        }
        self.skip_sum: dict[int, Floats] = {
            state: np.concatenate([[0.0], np.cumsum(row)]) for state, row in self.skip_cost.items()
        }
        self.best = np.full((size + 1, 8, num + 1), _INF)
        self.exits = np.full((size + 1, 8, num + 1), _INF)
        self.take = np.full((size, num + 1), _INF)
        self.renamed = np.zeros((size, num + 1))
        weak = np.append(self.file.weights[:num] < 0.75, False)
        self.weak_gap = weak * costs.weak
        self.weak_unbound = weak * costs.weak_unbound
        self.places: dict[int, Floats] = {}
        self.insertions: dict[int, list[tuple[float, int]]] = {}
        self.insides: dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
        last = self.best[size]
        for state in (BOUND, NEW, GAP, ELIDED, OUTSIDE):
            self.exits[size, state, num] = 0.0
        self.exits[size, UNBOUND, num] = costs.unbound
        self.exits[size, DELETED, num] = self.end_cost[num]
        self._fill_from_exits(size, last)
        for at in range(size - 1, -1, -1):
            self._compute_item_costs(at)

    def _compute_item_costs(self, at: int) -> None:
        costs, behind = self.costs, self.best[at + 1]
        item = self.snippet.items[at]
        exits = self.exits[at]
        if item.kind != "marker":
            row = self._compute_take_costs(at)
            self.take[at] = row
            taken = np.full(self.num_lines + 1, _INF)
            taken[:-1] = row[:-1] + behind[BOUND, 1:]
            rewritten = np.full(self.num_lines + 1, _INF)
            for one in self.bindings.rewrites.get(at, ()):
                value = self._compute_rewrite_cost(one) + self.best[one.item_end, BOUND, one.line_end]
                rewritten[one.line] = min(rewritten[one.line], value)
            sure = np.minimum(taken, rewritten)
            in_gap = np.minimum(taken + self.weak_gap + self.renamed[at], rewritten)
            self.insertions[at] = list(self._list_insertions(at))
            new, unbound = (self._compute_insertion_costs(at, state) for state in (NEW, UNBOUND))
            place = self.places[at] = self.compute_place_costs(at)
            for state in (BOUND, DELETED, CUT):
                exits[state] = np.minimum(sure, costs.insert_first + new)
            if not at:
                exits[BOUND] = np.minimum(sure, costs.insert_first + place + unbound)
            exits[NEW] = np.minimum(sure, new)
            exits[UNBOUND] = np.minimum(np.minimum(taken + self.weak_unbound, rewritten), unbound)
            placed = costs.insert_first + place + unbound
            for state in (GAP, OUTSIDE, ELIDED):
                exits[state] = np.minimum(in_gap, placed)
            if item.kind == "remark":
                for state in range(8):
                    exits[state] = np.minimum(exits[state], costs.remark + behind[state])
        if item.kind in ("marker", "maybe_marker"):
            price = 0.0 if item.kind == "marker" else costs.maybe_marker
            after = behind[GAP if at else OUTSIDE] + price
            for state in (BOUND, NEW, GAP, OUTSIDE):
                exits[state] = np.minimum(exits[state], after)
            exits[UNBOUND] = np.minimum(exits[UNBOUND], after + costs.unbound)
            exits[DELETED] = np.minimum(exits[DELETED], after + self.end_cost)
        self._fill_from_exits(at, self.best[at])

    def _fill_from_exits(self, at: int, best: Floats) -> None:
        """Fill a row from its exits: the steps that take lines of the file and no item."""
        costs, exits = self.costs, self.exits[at]
        best[CUT] = _scan_back(exits[CUT], self.delete_sum) if at < self.size else _INF
        cut = np.full(self.num_lines + 1, _INF)
        cut[:-1] = costs.gap_then_delete + self.delete_cost + best[CUT, 1:]
        for state in (OUTSIDE, ELIDED):
            exits[state] = np.minimum(exits[state], cut)
            best[state] = _scan_back(exits[state], self.skip_sum[state])
        exits[GAP] = np.minimum(exits[GAP], cut)
        inside = self._mask_marker_scope(at)
        leave = np.full(self.num_lines + 1, _INF)
        leave[:-1] = np.where(inside, _INF, costs.leave_scope + self.skip_cost[OUTSIDE] + best[OUTSIDE, 1:])
        walls = np.concatenate([[0.0], np.cumsum(np.where(inside, self.skip_cost[GAP], 1e6))])
        best[GAP] = _scan_back(np.minimum(exits[GAP], leave), walls)
        elide = np.full(self.num_lines + 1, _INF)
        elide[:-1] = self.compute_elide_cost(at) + self.skip_cost[ELIDED] + best[ELIDED, 1:]
        best[DELETED] = _scan_back(np.minimum(exits[DELETED], elide + self.end_cost), self.delete_sum)
        gone = np.full(self.num_lines + 1, _INF)
        first = costs.delete_first + (0.0 if at else costs.gap_then_delete)
        gone[:-1] = first + self.delete_cost + best[DELETED, 1:]
        best[BOUND] = np.minimum(np.minimum(exits[BOUND], gone), elide)
        best[NEW] = np.minimum(exits[NEW], elide)
        best[UNBOUND] = np.minimum(exits[UNBOUND], elide + costs.unbound)

    def _mask_marker_scope(self, at: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Tell of each line whether the marker above an item may stand for it: it is not less indented."""
        if at not in self.insides:
            item = self.snippet.items[at - 1] if at else None
            if item is None or item.width <= 0 or item.kind == "line" or item.hunk not in self.snippet.shifts:
                inside = np.ones(self.num_lines, np.bool_)
            else:
                inside = self._widths >= item.width + self.snippet.shifts[item.hunk]
                inside = inside | (self.file.weights <= 0.3)
            self.insides[at] = inside
        return self.insides[at]

    def compute_insert_cost(self, at: int) -> float:
        """Return what it costs that an item is new."""
        item = self.snippet.items[at]
        cost = self.costs.insert if any(map(str.isalnum, item.key)) else self.costs.insert_sign
        return cost + (3.0 if item.elided is not None else 0.0)

    def _list_insertions(self, at: int) -> Iterator[tuple[float, int]]:
        """Yield what it costs to insert an item, or the new block that it begins, and the item behind.

        A block is new as a whole although its lines stand elsewhere: little of what they gain there is lost. That a new
        definition has only its head inserted, above lines of the file, is rare.
        """
        end = self._units.get(at)
        is_head = end is not None and self.snippet.names[at] is not None
        yield self.compute_insert_cost(at) + (self.costs.insert_unit_head if is_head else 0.0), at + 1
        if end is not None:
            gain = float(np.minimum(self.take[at:end].min(axis=1), 0.0).sum())
            cost = (
                self.costs.insert_unit + self.costs.insert_unit_line * (end - at) + self.costs.insert_unit_gain * gain
            )
            yield min(cost, sum(map(self.compute_insert_cost, range(at, end)))), end

    def _compute_insertion_costs(self, at: int, state: int) -> Floats:
        """Return for each line the least cost to the end where an item is inserted above it, which leaves `state`."""
        costs = [price + self.best[end, state] for price, end in self.insertions[at]]
        return np.asarray(np.min(costs, axis=0), np.float64)

    def compute_elide_cost(self, at: int) -> float:
        """Return what it costs to leave lines out above an item without a marker."""
        whole = self.costs.elide_whole if self.is_whole else 0.0
        if at == self.size:
            return self.costs.open_end + whole
        item = self.snippet.items[at]
        if item.kind == "marker":
            return _INF
        return whole + (self.costs.elide_head if self.snippet.names[at] and item.blanks else self.costs.elide)

    def _compute_rewrite_cost(self, one: Rewrite) -> float:
        size = max(one.line_end - one.line, one.item_end - one.item)
        renamed = 0.0
        if one.renames:
            titled = _is_title(self.snippet.names[one.item] or "")
            renamed = self.costs.rename + (self.costs.retitle_at_gap if titled else self.costs.rename_at_gap)
        laid_out = self.costs.rewrite_layout * (one.item_end - one.item) if one.likeness == 1.0 else 0.0
        return renamed - self.costs.rewrite * (one.likeness - 0.3) - 0.15 * min(6, size) - laid_out

    # -- the k best

    def find_best_paths(self, most: int, slack: float) -> list[Path]:
        """Return the best paths of distinct texts, cheapest first: so many at most, no dearer than the best by more."""
        opened = 0.0 if not self.size or self.snippet.items[0].kind == "marker" else self.costs.open_start
        nodes = _Nodes()
        heap: list[tuple[float, int, float, int, MoveChain | None, _Move]] = []
        for count, (state, cost) in enumerate(((BOUND, 0.0), (ELIDED, opened))):
            ahead = float(self.best[0, state, 0])
            heap.append((cost + ahead, count, cost, 7, None, _Move(0.0, 0.0, ahead, nodes[0, 0, state])))
        heapify(heap)
        limit = heap[0][0] + slack
        texts: set[int] = set()
        found: list[Path] = []
        count, steps = 2, 0
        while heap and len(found) < most and steps < MAX_STEPS:
            total, _, cost, text, way, move = heappop(heap)
            node = move.node
            steps += 1
            if not steps % 256:
                check_stopped()
            text = (text * move.factor + move.addend) % _MOD
            if text in node.texts:
                continue
            node.texts.add(text)
            way = (move, way)
            if node.at == self.size and node.line == self.num_lines:
                if text not in texts:
                    texts.add(text)
                    found.append(Path(total, _trace_steps(way)))
                continue
            room = limit - cost
            if not node.moves:
                self._expand(node, nodes, room)
            for move in node.moves if room < node.crowded else node.best_moves:
                before = cost + move.price
                whole = before + move.ahead
                if whole <= limit and move.least <= room:
                    count += 1
                    heappush(heap, (whole, -count, before, text, way, move))
        return found

    def _expand(self, node: _Node, nodes: _Nodes, room: float) -> None:
        """Find the moves from a node, once: whoever comes to it later has no more room."""
        at, line, state = node.at, node.line, node.state
        first: list[_Move] = []
        jumps: list[_Move] = []
        if state in (GAP, OUTSIDE, ELIDED):
            end = self._find_gap_end(at, line, state)
            if end < self.num_lines:
                sums = self.skip_sum[state]
                price = float(sums[end] - sums[line]) + self.costs.leave_scope + float(self.skip_cost[OUTSIDE][end])
                first.append(self._make_move(node, nodes, price, "skip", at, end + 1, OUTSIDE))
            jumps = self._find_jumps(node, nodes, end, room + _ROUNDING)
            if len(jumps) > _MAX_EXITS:
                node.crowded = jumps.pop().least
        last = [self._make_move(node, nodes, *one) for one in self._list_moves(at, line, state)]
        node.best_moves = [*first, *jumps, *last]
        node.moves = [*first, *sorted(jumps, key=lambda one: one.node.line), *last]

    def _make_move(
        self, node: _Node, nodes: _Nodes, price: float, kind: Kind, item_end: int, line_end: int, after: int
    ) -> _Move:
        factor, addend = self._hash_step(kind, node.at, item_end, node.line, line_end)
        ahead = float(self.best[item_end, after, line_end])
        return _Move(-_INF, price, ahead, nodes[item_end, line_end, after], kind, node, factor, addend)

    def _hash_step(self, kind: Kind, at: int, item_end: int, line: int, line_end: int) -> tuple[int, int]:
        """Return by what a step multiplies the hash of a text, and what it adds.

        Lines that stay change nothing: what the file's lines down to where a path is add is taken out of the hash.
        """
        if kind in ("match", "skip"):
            return 1, 0
        power, total = 1, self._sums[line]
        for item in range(at, item_end) if kind in ("sub", "insert", "rewrite") else ():
            power = power * _BASE % _MOD
            total = total * _BASE + self._get_id(self.snippet.items[item].key)
        inverse = self._inverses[line_end]
        return power * self._powers[line] * inverse % _MOD, (total - self._sums[line_end]) * inverse % _MOD

    def _list_moves(self, at: int, line: int, state: int) -> Iterator[tuple[float, Kind, int, int, int]]:
        """Yield the moves from a node but for jumps over several lines."""
        costs = self.costs
        if line < self.num_lines:
            gone = float(self.delete_cost[line])
            if state == BOUND:
                yield (
                    costs.delete_first + gone + (0.0 if at else costs.gap_then_delete),
                    "delete",
                    at,
                    line + 1,
                    DELETED,
                )
            elif state in (DELETED, CUT):
                yield gone, "delete", at, line + 1, state
            elif state in (GAP, OUTSIDE, ELIDED) and at < self.size:
                yield costs.gap_then_delete + gone, "delete", at, line + 1, CUT
            if state in (BOUND, NEW, UNBOUND, DELETED):
                more = costs.unbound if state == UNBOUND else float(self.end_cost[line]) if state == DELETED else 0.0
                yield (
                    self.compute_elide_cost(at) + float(self.skip_cost[ELIDED][line]) + more,
                    "skip",
                    at,
                    line + 1,
                    ELIDED,
                )
        if at == self.size:
            return
        item = self.snippet.items[at]
        if item.kind != "marker":
            yield from self._list_takes(at, line, state)
        if item.kind == "remark":
            yield costs.remark, "drop", at + 1, line, state
        if item.kind in ("marker", "maybe_marker") and state not in (CUT, ELIDED):
            more = costs.unbound if state == UNBOUND else float(self.end_cost[line]) if state == DELETED else 0.0
            more += costs.maybe_marker if item.kind == "maybe_marker" else 0.0
            yield more, "mark", at + 1, line, GAP if at else OUTSIDE

    def _list_takes(self, at: int, line: int, state: int) -> Iterator[tuple[float, Kind, int, int, int]]:
        costs = self.costs
        in_gap = state in (GAP, OUTSIDE, ELIDED)
        is_start = not at and state == BOUND
        price = float(self.take[at, line])
        if price < _INF / 2:
            item = self.snippet.items[at]
            is_same = item.elided is not None or item.key == self.file.keys[line]
            weak = self.weak_gap if in_gap else self.weak_unbound if state == UNBOUND else None
            more = 0.0 if weak is None else float(weak[line])
            more += float(self.renamed[at, line]) if in_gap else 0.0
            yield price + more, "match" if is_same else "sub", at + 1, line + 1, BOUND
        for one in self.bindings.rewrites.get(at, ()):
            if one.line == line:
                yield self._compute_rewrite_cost(one), "rewrite", one.item_end, one.line_end, BOUND
        is_apart = in_gap or is_start
        more = costs.insert_first if is_apart or state in (BOUND, DELETED, CUT) else 0.0
        more += float(self.places[at][line]) if is_apart else 0.0
        for insert, end in self.insertions[at]:
            yield insert + more, "insert", end, line, UNBOUND if is_apart or state == UNBOUND else NEW

    def _find_gap_end(self, at: int, line: int, state: int) -> int:
        """Return the first line from here on for which the marker above an item may not stand."""
        if state != GAP:
            return self.num_lines
        out = np.flatnonzero(~self._mask_marker_scope(at)[line:])
        return line + int(out[0]) if len(out) else self.num_lines

    def _find_jumps(self, node: _Node, nodes: _Nodes, end: int, room: float) -> list[_Move]:
        """Return the jumps over lines that stay, to where something cheap enough may follow: best first, not all."""
        at, line, state = node.at, node.line, node.state
        prices = self.skip_sum[state][line + 1 : end + 1] - self.skip_sum[state][line]
        values = self.exits[at, state, line + 1 : end + 1] + prices
        good = (values <= room).nonzero()[0]
        good = good[values[good].argsort(kind="stable")[: _MAX_EXITS + 1]]
        aheads = self.best[at, state, line + 1 + good]
        columns = values[good].tolist(), prices[good].tolist(), aheads.tolist(), good.tolist()
        return [
            _Move(value, price, ahead, nodes[at, line + 1 + row, state], "skip", node)
            for value, price, ahead, row in zip(*columns, strict=True)
        ]


def _is_title(name: str) -> bool:
    """Tell whether a name is a title in quotes or of several words, as those of tests."""
    return not name.replace(".", "").isidentifier()


def _scan_back(exits: Floats, sums: Floats) -> Floats:
    """Return for each line the least of what it costs to walk down to some line and to leave there."""
    return np.minimum.accumulate((exits + sums)[::-1])[::-1] - sums


def _trace_steps(way: MoveChain | None) -> tuple[AlignmentStep, ...]:
    """Return the steps of a way in order, a definition that was inserted as a whole line by line."""
    steps: list[AlignmentStep] = []
    while way is not None:
        move, way = way
        start, end = move.start, move.node
        if start is None:
            break
        step = AlignmentStep(move.kind, start.at, end.at, start.line, end.line, start.state)
        if step.kind == "insert":
            after = UNBOUND if step.state in (GAP, OUTSIDE, ELIDED, UNBOUND) or not step.item else NEW
            rest = range(step.item_end - 1, step.item, -1)
            steps += (step._replace(item=at, item_end=at + 1, state=after) for at in rest)
            step = step._replace(item_end=step.item + 1)
        steps.append(step)
    return tuple(reversed(steps))


def find_new_units(file: FileLines, snippet: Snippet) -> dict[int, int]:
    """Return where new blocks begin and end in a snippet, those without a marker.

    They are definitions that the file does not have, or that are said to move, and statements with a body whose first
    line the file does not have.
    """
    known = {name for name in file.names if name} - _find_moved_words(snippet.said)
    found = {}
    for at, name in enumerate(snippet.names):
        item = snippet.items[at]
        if item.kind != "line" or (name in known if name else item.key in file.places or not item.key.endswith(_OPENS)):
            continue
        end = at + 1
        while end < len(snippet) and snippet.items[end].kind != "marker" and _is_inside(snippet, end, at):
            end += 1
        if end - at >= _MIN_UNIT and (end == len(snippet) or snippet.items[end].width <= item.width):
            found[at] = end
    return found


def _find_moved_words(said: str) -> set[str]:
    """Return the words of what is said beside a snippet, where something is said to move."""
    return set(_WORD.findall(said)) if _MOVE.search(said) else set()


def _is_inside(snippet: Snippet, at: int, head: int) -> bool:
    """Tell whether an item lies in the definition that another begins, or closes it."""
    item, name = snippet.items[at], snippet.names[head]
    if item.kind == "line" and name:
        return name in snippet.owners[at]
    closes = item.key[:1] in ")]}" or item.key == "end"
    return item.width > snippet.items[head].width or (closes and item.width == snippet.items[head].width)


def is_whole(file: FileLines, snippet: Snippet) -> bool:
    """Tell whether a snippet looks like the whole file: no marker, the same begin, and most of its lines."""
    if not len(file) or any(item.kind != "line" for item in snippet.items):
        return False
    first, other = snippet.items[0].key, file.keys[0]
    if first != other and find_key(first) != find_key(other):
        return False
    return sum(key in snippet.shown for key in file.keys) >= _WHOLE_SHARE * len(file)


def find_closed_names(file: FileLines, snippet: Snippet) -> list[str]:
    """Return the names that file and snippet define once, and the snippet with lines in it and no marker between."""
    counts, stood = Counter(name for name in snippet.names if name), Counter(name for name in file.names if name)
    found = []
    for at, name in enumerate(snippet.names):
        if not name or counts[name] != 1 or stood[name] != 1:
            continue
        end = at + 1
        while end < len(snippet) and snippet.items[end].kind == "line" and name in snippet.owners[end]:
            end += 1
        is_marked = end < len(snippet) and snippet.items[end].kind != "line"
        deep = is_marked and snippet.items[end].width > snippet.items[at].width
        if end > at + 1 and end < len(snippet) and not deep:
            found.append(name)
    return found


def mask_closed_lines(file: FileLines, snippet: Snippet) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell of each line of a file whether it lies in a definition that the snippet shows without a marker."""
    names = set(find_closed_names(file, snippet))
    return np.array([bool(names.intersection(chain)) for chain in file.owners], np.bool_)


def find_stale_imports(file: FileLines, snippet: Snippet) -> list[int]:
    """Return the unshown imports of a file whose names a new import of the same module in the snippet has."""
    new: dict[str | None, set[str]] = defaultdict(set)
    for item in snippet.items:
        if item.kind == "line" and item.key not in file.places and IMPORT.match(item.key):
            new[find_key(item.key)].update(_WORD.findall(item.key))
    unshown = (at for at, key in enumerate(file.keys) if key not in snippet.shown and IMPORT.match(key)) if new else ()
    return [at for at in unshown if set(_WORD.findall(file.keys[at])) <= new.get(find_key(file.keys[at]), set())]


def find_named_places(file: FileLines, snippet: Snippet) -> set[int]:
    """Return the lines of the file above which new code goes, as the instruction says."""
    place = snippet.place
    if not place.says_anything:
        return set()
    ends = {end for _, end, name in file.definitions if place.is_after(name)}
    return ends | {first for first, _, name in file.definitions if place.is_before(name)}


def find_named_lines(file: FileLines, snippet: Snippet) -> frozenset[int]:
    """Return the lines of the file that the words around the snippet say are to go, and that it does not show."""
    removal = snippet.removal
    if not removal.says_anything:
        return frozenset()
    names = {name for name in snippet.names if name}
    found: set[int] = set()
    for first, end, name in file.definitions:
        if name not in names and removal.names_definition(name):
            found.update(range(first, end))
    for at, line in enumerate(file.lines):
        if at in found or file.keys[at] in snippet.shown:
            continue
        if removal.quotes_line(line) or (not is_comment(line) and removal.names_line(line)):
            found.add(at)
    return frozenset(found)
