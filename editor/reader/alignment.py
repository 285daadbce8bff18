"""The k best monotone alignments of a snippet's lines with a file's, as changes of the file.

A path takes the items of the snippet and the file's lines in order, by these steps:

    match    a shown line that the file has            sub      a shown line in place of a line of the file
    insert   a shown line that is new                  delete   a line of the file that goes
    rewrite  shown lines in place of a statement       drop     a remark
    mark     a marker                                  skip     lines of the file that stay and are not shown

Between steps it is in one of the states of `editor.reader.costs`. The least cost to the end is computed backwards for
every item and line, a row at a time. An A* search, for which that cost is the exact heuristic, then yields the paths of
the k best distinct texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from editor.execution import check_stopped
from editor.reader.candidates import FileLines, Floats, LineCandidates, Mask, Snippet
from editor.reader.costs import (
    BOUND,
    CUT,
    DELETED,
    ELIDED,
    GAP,
    INF,
    NEW,
    OUTSIDE,
    UNBOUND,
    AlignmentStep,
    CostWeights,
    Kind,
    Path,
    StepCosts,
)
from editor.reader.coverage import find_new_units

MAX_STEPS = 12_000
"""The most nodes that one search visits; it then returns the paths found so far."""

_BASE = 1_000_003
_MOD = (1 << 61) - 1
_MAX_EXITS = 24
_ROUNDING = 1e-6


class _Move(NamedTuple):
    """One step from one node to another.

    `least` is the least cost to the end of a path that takes it, `price` its own cost, `ahead` the least cost after it.
    It multiplies the hash of the path's text by `factor` and adds `addend`.
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
    """An item, a line and a state of the search, with the texts of the paths that reached it and its moves.

    `moves` are in the order of lines. A path that has `crowded` or more left to spend may take only `best_moves`: too
    many moves are open to it.
    """

    at: int
    line: int
    state: int
    texts: set[int] = field(default_factory=set)
    moves: list[_Move] = field(default_factory=list)
    best_moves: list[_Move] = field(default_factory=list)
    crowded: float = INF


_GetNode = Callable[[int, int, int], _Node]


class Aligner:
    """Finds the best paths of one snippet and one file.

    `best[item, state, line]` is the least cost from there to the end; `exits` is the same for a path that next takes an
    item. `take` is the cost of taking an item at a line.
    """

    def __init__(self, file: FileLines, snippet: Snippet, candidates: LineCandidates, weights: CostWeights) -> None:
        self.file, self.snippet, self.weights = file, snippet, weights
        self.size, self.num_lines = len(snippet), len(file)
        self.rewrites = candidates.rewrites
        self.costs = StepCosts(file, snippet, candidates, weights)
        self._ids: dict[str, int] = {}
        self._hash_lines()
        self._units = find_new_units(file, snippet)
        self._scopes: dict[int, Mask] = {}
        self._places: dict[int, Floats] = {}
        self._insertions: dict[int, list[tuple[float, int]]] = {}
        self._compute_best_costs()

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

    def _compute_best_costs(self) -> None:
        shape = (self.size + 1, 8, self.num_lines + 1)
        self.best, self.exits = np.full(shape, INF), np.full(shape, INF)
        self.take = np.full((self.size, self.num_lines + 1), INF)
        last = self.exits[self.size, :, self.num_lines]
        last[[BOUND, NEW, GAP, ELIDED, OUTSIDE]] = 0.0
        last[UNBOUND] = self.weights.unbound
        last[DELETED] = self.costs.delete_end[self.num_lines]
        self._fill_from_exits(self.size, self.best[self.size])
        for at in range(self.size - 1, -1, -1):
            self._compute_item_costs(at)

    def _compute_item_costs(self, at: int) -> None:
        """Fill the rows of an item from those of the items after it."""
        weights, costs, below = self.weights, self.costs, self.best[at + 1]
        item = self.snippet.items[at]
        exits = self.exits[at]
        if item.kind != "marker":
            row = costs.compute_takes(at)
            self.take[at] = row
            taken = np.full(self.num_lines + 1, INF)
            taken[:-1] = row[:-1] + below[BOUND, 1:]
            rewritten = np.full(self.num_lines + 1, INF)
            for one in self.rewrites.get(at, ()):
                value = costs.compute_rewrite(one) + self.best[one.item_end, BOUND, one.line_end]
                rewritten[one.line] = min(rewritten[one.line], value)
            sure = np.minimum(taken, rewritten)
            in_gap = np.minimum(taken + costs.weak_gap + costs.rename[at], rewritten)
            self._insertions[at] = list(self._list_insertions(at))
            new, unbound = (self._compute_insertion_costs(at, state) for state in (NEW, UNBOUND))
            place = self._places[at] = costs.compute_places(at)
            for state in (BOUND, DELETED, CUT):
                exits[state] = np.minimum(sure, weights.insert_first + new)
            if not at:
                exits[BOUND] = np.minimum(sure, weights.insert_first + place + unbound)
            exits[NEW] = np.minimum(sure, new)
            exits[UNBOUND] = np.minimum(np.minimum(taken + costs.weak_unbound, rewritten), unbound)
            placed = weights.insert_first + place + unbound
            for state in (GAP, OUTSIDE, ELIDED):
                exits[state] = np.minimum(in_gap, placed)
            if item.kind == "remark":
                for state in range(8):
                    exits[state] = np.minimum(exits[state], weights.remark + below[state])
        if item.kind in ("marker", "maybe_marker"):
            price = 0.0 if item.kind == "marker" else weights.maybe_marker
            after = below[GAP if at else OUTSIDE] + price
            for state in (BOUND, NEW, GAP, OUTSIDE):
                exits[state] = np.minimum(exits[state], after)
            exits[UNBOUND] = np.minimum(exits[UNBOUND], after + weights.unbound)
            exits[DELETED] = np.minimum(exits[DELETED], after + costs.delete_end)
        self._fill_from_exits(at, self.best[at])

    def _fill_from_exits(self, at: int, best: Floats) -> None:
        """Fill a row from its exits: the steps that take lines of the file and no item."""
        weights, costs, exits = self.weights, self.costs, self.exits[at]
        best[CUT] = _scan_back(exits[CUT], costs.delete_sum) if at < self.size else INF
        cut = np.full(self.num_lines + 1, INF)
        cut[:-1] = weights.gap_then_delete + costs.delete + best[CUT, 1:]
        for state in (OUTSIDE, ELIDED):
            exits[state] = np.minimum(exits[state], cut)
            best[state] = _scan_back(exits[state], costs.skip_sum[state])
        exits[GAP] = np.minimum(exits[GAP], cut)
        inside = self._mask_marker_scope(at)
        leave = np.full(self.num_lines + 1, INF)
        leave[:-1] = np.where(inside, INF, weights.leave_scope + costs.skip[OUTSIDE] + best[OUTSIDE, 1:])
        walls = np.concatenate([[0.0], np.cumsum(np.where(inside, costs.skip[GAP], 1e6))])
        best[GAP] = _scan_back(np.minimum(exits[GAP], leave), walls)
        elide = np.full(self.num_lines + 1, INF)
        elide[:-1] = costs.compute_elide(at) + costs.skip[ELIDED] + best[ELIDED, 1:]
        best[DELETED] = _scan_back(np.minimum(exits[DELETED], elide + costs.delete_end), costs.delete_sum)
        gone = np.full(self.num_lines + 1, INF)
        first = weights.delete_first + (0.0 if at else weights.gap_then_delete)
        gone[:-1] = first + costs.delete + best[DELETED, 1:]
        best[BOUND] = np.minimum(np.minimum(exits[BOUND], gone), elide)
        best[NEW] = np.minimum(exits[NEW], elide)
        best[UNBOUND] = np.minimum(exits[UNBOUND], elide + weights.unbound)

    def _mask_marker_scope(self, at: int) -> Mask:
        """Return for each line whether the marker above an item may stand for it: it is not less indented."""
        if at not in self._scopes:
            item = self.snippet.items[at - 1] if at else None
            if item is None or item.width <= 0 or item.kind == "line" or item.hunk not in self.snippet.shifts:
                inside = np.ones(self.num_lines, np.bool_)
            else:
                inside = self.costs.widths >= item.width + self.snippet.shifts[item.hunk]
                inside = inside | (self.file.weights <= 0.3)
            self._scopes[at] = inside
        return self._scopes[at]

    def _list_insertions(self, at: int) -> Iterator[tuple[float, int]]:
        """Yield the cost of inserting an item, or the new block that it begins, and the item after it.

        A new block costs little although its lines stand elsewhere in the file and would gain by matching there. A new
        definition of which only the head is inserted, above lines of the file, is rare and costs more.
        """
        end = self._units.get(at)
        is_head = end is not None and self.snippet.names[at] is not None
        yield self.costs.compute_insert(at) + (self.weights.insert_unit_head if is_head else 0.0), at + 1
        if end is not None:
            gain = float(np.minimum(self.take[at:end].min(axis=1), 0.0).sum())
            cost = (
                self.weights.insert_unit
                + self.weights.insert_unit_line * (end - at)
                + self.weights.insert_unit_gain * gain
            )
            yield min(cost, sum(map(self.costs.compute_insert, range(at, end)))), end

    def _compute_insertion_costs(self, at: int, state: int) -> Floats:
        """Return for each line the least cost to the end if an item is inserted above it, which leads to `state`."""
        costs = [price + self.best[end, state] for price, end in self._insertions[at]]
        return np.asarray(np.min(costs, axis=0), np.float64)

    def find_best_paths(self, most: int, slack: float) -> list[Path]:
        """Return up to `most` paths of distinct texts, cheapest first, that cost at most `slack` more than the best."""
        opened = 0.0 if not self.size or self.snippet.items[0].kind == "marker" else self.weights.open_start
        get_node = cache(_Node)
        heap: list[tuple[float, int, float, int, MoveChain | None, _Move]] = []
        for count, (state, cost) in enumerate(((BOUND, 0.0), (ELIDED, opened))):
            ahead = float(self.best[0, state, 0])
            heap.append((cost + ahead, count, cost, 7, None, _Move(0.0, 0.0, ahead, get_node(0, 0, state))))
        heapify(heap)
        limit = heap[0][0] + slack
        texts: set[int] = set()
        found: list[Path] = []
        count, steps = 2, 0
        while heap and len(found) < most and steps < MAX_STEPS:
            total, _, cost, text, chain, move = heappop(heap)
            node = move.node
            steps += 1
            if not steps % 256:
                check_stopped()
            text = (text * move.factor + move.addend) % _MOD
            if text in node.texts:
                continue
            node.texts.add(text)
            chain = (move, chain)
            if node.at == self.size and node.line == self.num_lines:
                if text not in texts:
                    texts.add(text)
                    found.append(Path(total, _trace_steps(chain)))
                continue
            room = limit - cost
            if not node.moves:
                self._expand(node, get_node, room)
            for move in node.moves if room < node.crowded else node.best_moves:
                before = cost + move.price
                whole = before + move.ahead
                if whole <= limit and move.least <= room:
                    count += 1
                    heappush(heap, (whole, -count, before, text, chain, move))
        return found

    def _expand(self, node: _Node, get_node: _GetNode, room: float) -> None:
        """Find the moves from a node with `room` left to spend; later paths to it never have more room."""
        at, line, state = node.at, node.line, node.state
        first: list[_Move] = []
        jumps: list[_Move] = []
        if state in (GAP, OUTSIDE, ELIDED):
            end = self._find_gap_end(at, line, state)
            if end < self.num_lines:
                sums = self.costs.skip_sum[state]
                price = float(sums[end] - sums[line]) + self.weights.leave_scope + float(self.costs.skip[OUTSIDE][end])
                first.append(self._make_move(node, get_node, price, "skip", at, end + 1, OUTSIDE))
            jumps = self._find_jumps(node, get_node, end, room + _ROUNDING)
            if len(jumps) > _MAX_EXITS:
                node.crowded = jumps.pop().least
        last = [self._make_move(node, get_node, *one) for one in self._list_moves(at, line, state)]
        node.best_moves = [*first, *jumps, *last]
        node.moves = [*first, *sorted(jumps, key=lambda one: one.node.line), *last]

    def _make_move(
        self, node: _Node, get_node: _GetNode, price: float, kind: Kind, item_end: int, line_end: int, after: int
    ) -> _Move:
        factor, addend = self._hash_step(kind, node.at, item_end, node.line, line_end)
        ahead = float(self.best[item_end, after, line_end])
        return _Move(-INF, price, ahead, get_node(item_end, line_end, after), kind, node, factor, addend)

    def _hash_step(self, kind: Kind, at: int, item_end: int, line: int, line_end: int) -> tuple[int, int]:
        """Return the factor and the addend that a step applies to the hash of a path's text.

        The hash leaves out the file's lines above the path's current line, so that lines that stay change nothing.
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
        """Yield price, kind, item, line and state of the moves from a node, without jumps over several lines."""
        weights, costs = self.weights, self.costs
        if line < self.num_lines:
            gone = float(costs.delete[line])
            if state == BOUND:
                first = weights.delete_first + gone + (0.0 if at else weights.gap_then_delete)
                yield first, "delete", at, line + 1, DELETED
            elif state in (DELETED, CUT):
                yield gone, "delete", at, line + 1, state
            elif state in (GAP, OUTSIDE, ELIDED) and at < self.size:
                yield weights.gap_then_delete + gone, "delete", at, line + 1, CUT
            if state in (BOUND, NEW, UNBOUND, DELETED):
                price = costs.compute_elide(at) + float(costs.skip[ELIDED][line])
                yield price + self._compute_exit(line, state), "skip", at, line + 1, ELIDED
        if at == self.size:
            return
        item = self.snippet.items[at]
        if item.kind != "marker":
            yield from self._list_takes(at, line, state)
        if item.kind == "remark":
            yield weights.remark, "drop", at + 1, line, state
        if item.kind in ("marker", "maybe_marker") and state not in (CUT, ELIDED):
            more = self._compute_exit(line, state) + (weights.maybe_marker if item.kind == "maybe_marker" else 0.0)
            yield more, "mark", at + 1, line, GAP if at else OUTSIDE

    def _compute_exit(self, line: int, state: int) -> float:
        """Return the cost of a gap above a line, after new lines or deleted ones."""
        if state == UNBOUND:
            return self.weights.unbound
        return float(self.costs.delete_end[line]) if state == DELETED else 0.0

    def _list_takes(self, at: int, line: int, state: int) -> Iterator[tuple[float, Kind, int, int, int]]:
        weights, costs = self.weights, self.costs
        in_gap = state in (GAP, OUTSIDE, ELIDED)
        is_start = not at and state == BOUND
        price = float(self.take[at, line])
        if price < INF / 2:
            item = self.snippet.items[at]
            is_same = item.elided is not None or item.key == self.file.keys[line]
            weak = costs.weak_gap if in_gap else costs.weak_unbound if state == UNBOUND else None
            more = 0.0 if weak is None else float(weak[line])
            more += float(costs.rename[at, line]) if in_gap else 0.0
            yield price + more, "match" if is_same else "sub", at + 1, line + 1, BOUND
        for one in self.rewrites.get(at, ()):
            if one.line == line:
                yield costs.compute_rewrite(one), "rewrite", one.item_end, one.line_end, BOUND
        is_apart = in_gap or is_start
        more = weights.insert_first if is_apart or state in (BOUND, DELETED, CUT) else 0.0
        more += float(self._places[at][line]) if is_apart else 0.0
        for insert, end in self._insertions[at]:
            yield insert + more, "insert", end, line, UNBOUND if is_apart or state == UNBOUND else NEW

    def _find_gap_end(self, at: int, line: int, state: int) -> int:
        """Return the first line from `line` on for which the marker above an item may not stand."""
        if state != GAP:
            return self.num_lines
        out = np.flatnonzero(~self._mask_marker_scope(at)[line:])
        return line + int(out[0]) if len(out) else self.num_lines

    def _find_jumps(self, node: _Node, get_node: _GetNode, end: int, room: float) -> list[_Move]:
        """Return the best jumps over lines that stay, best first; each is followed by a step that `room` allows."""
        at, line, state = node.at, node.line, node.state
        prices = self.costs.skip_sum[state][line + 1 : end + 1] - self.costs.skip_sum[state][line]
        values = self.exits[at, state, line + 1 : end + 1] + prices
        good = (values <= room).nonzero()[0]
        good = good[values[good].argsort(kind="stable")[: _MAX_EXITS + 1]]
        aheads = self.best[at, state, line + 1 + good]
        columns = values[good].tolist(), prices[good].tolist(), aheads.tolist(), good.tolist()
        return [
            _Move(value, price, ahead, get_node(at, line + 1 + row, state), "skip", node)
            for value, price, ahead, row in zip(*columns, strict=True)
        ]


def _scan_back(exits: Floats, sums: Floats) -> Floats:
    """Return for each line the least cost of walking down to some line and leaving there."""
    return np.minimum.accumulate((exits + sums)[::-1])[::-1] - sums


def _trace_steps(chain: MoveChain | None) -> tuple[AlignmentStep, ...]:
    """Return the steps of a path in order, with a block that was inserted as a whole as one step a line."""
    steps: list[AlignmentStep] = []
    while chain is not None:
        move, chain = chain
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
