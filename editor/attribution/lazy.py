"""Searches the readings of a lazy snippet for one that leads from a file to a result.

A reading is a path over the lines of three texts at once: snippet, file and result, without blank lines.
Its steps:

    keep    a shown line that the file has and the result keeps
    gap     an unshown line that the result keeps: after a marker, or between two shown lines that are not neighbours
    block   shown lines that are new, and lines of the file that they replace; either may be none

A step that the grammar does not allow costs a fault. The cheapest path is found by Dijkstra's algorithm: a path without
faults is a legal reading. Where there is none, the faults of the cheapest path say which lines no reading explains.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property

from editor.attribution.block_rules import FAULT_COST, BlockRules, LastStep, PathStep, State, WorkCount
from editor.attribution.faults import PathFaults
from editor.attribution.snippet import SnippetItem
from editor.attribution.texts import AlignmentBand, SearchTexts
from editor.diff import line_opcodes
from editor.types import Attribution, Sketch

MAX_STATES = 60_000
"""States that a search may visit; beyond it no reading counts as found."""

MAX_FAULTY_STATES = 20_000
"""States that a search for the faults of an illegal result may visit."""

_NO_LIMIT = 1 << 60


def attribute_snippet(
    original: str,
    result: str,
    sketch: Sketch,
    language: str | None,
    instructions: Sequence[str],
    *,
    explain: bool = True,
) -> Attribution:
    r"""Return the cheapest reading of a snippet that leads from a file to a result, both with "\n" lines.

    `instructions` are texts that may say what is to be removed: the instruction, the prose around the snippet. Without
    `explain` the faults of a result that is no legal reading are its changed lines, and nothing is repaired.
    """
    return PathSearch(SearchTexts(original, result, sketch, language, instructions)).find_attribution(explain=explain)


class PathSearch:
    """Finds the cheapest path through a snippet, a file and a result."""

    def __init__(self, texts: SearchTexts) -> None:
        self.texts = texts
        self.items = texts.items
        self.old, self.old_keys = texts.old, texts.old_keys
        self.new, self.new_keys = texts.new, texts.new_keys
        self.band = AlignmentBand(self.old_keys, self.new_keys, texts.ops)
        self.work = WorkCount()
        self.rules = BlockRules(texts, self.work)
        self._bound_items()

    def _bound_items(self) -> None:
        """Bound the line of the result at which a path may take each item.

        Every shown line is in the result, in order, so the items above and below an item need lines of their own. Items
        that have no place even so do not count.
        """
        wanted = [at for at, item in enumerate(self.items) if item.kind == "line"]
        if self._latest_start(wanted) is None:
            ops = line_opcodes([self.items[at].key for at in wanted], self.new_keys)
            wanted = [wanted[at] for op in ops if op.equal for at in range(op.a_start, op.a_end)]
        size, total = len(self.items), len(self.new)
        self.low, self.high = [0] * (size + 1), [total] * (size + 1)
        set_wanted = set(wanted)
        at = 0
        for number in range(size):
            if number in set_wanted:
                at = self._find_next_place(number, at) + 1
            self.low[number + 1] = at
        at = total
        for number in reversed(range(size)):
            if number in set_wanted:
                at = self._find_previous_place(number, at)
            self.high[number] = at

    def _latest_start(self, wanted: Sequence[int]) -> int | None:
        at = 0
        for number in wanted:
            at = self._find_next_place(number, at) + 1
            if at > len(self.new):
                return None
        return at

    def _find_next_place(self, number: int, start: int) -> int:
        places = self.texts.find_item_places(number)
        row = bisect_left(places, start)
        return places[row] if row < len(places) else len(self.new)

    def _find_previous_place(self, number: int, end: int) -> int:
        places = self.texts.find_item_places(number)
        row = bisect_left(places, end) - 1
        return places[row] if row >= 0 else 0

    def find_attribution(self, *, explain: bool) -> Attribution:
        """Search for a path without faults; if there is none, for the cheapest one, to list its faults."""
        faults = PathFaults(self.texts, self.work)
        if self.band.is_too_large:
            return Attribution(faults.list_changes(), bound="accounting_window")
        path = self._find_path(MAX_STATES, FAULT_COST)
        too_many = self.too_many
        if path is None:
            path = self._find_path(MAX_FAULTY_STATES, _NO_LIMIT) if explain else None
        if path is None and explain and not self.too_many:
            # Some shown line is not at its expected place: look for the faults everywhere.
            self.low, self.high = [0] * len(self.low), [len(self.new)] * len(self.high)
            path = self._find_path(MAX_FAULTY_STATES, _NO_LIMIT)
        if path is None:
            return Attribution(faults.list_changes(), bound="accounting_states" if too_many else "")
        found = faults.list_faults(path)
        return Attribution(found, faults.rebuild_result(path, found) if found else None)

    def _find_path(self, max_states: int, most: int) -> list[PathStep] | None:
        """Return the cheapest path; None if it costs at least `most`, or if the search needs too many states."""
        self.too_many = False
        self.work.done = 0
        start: State = (0, 0, 0, "start")
        cost_of: dict[State, int] = {start: 0}
        come_from: dict[State, tuple[State, PathStep]] = {}
        heap: list[tuple[int, int, State]] = [(0, 0, start)]
        done: set[State] = set()
        size, num_old, num_new = len(self.items), len(self.old), len(self.new)
        pushed = 0
        while heap:
            cost, _, state = heapq.heappop(heap)
            if state in done:
                continue
            done.add(state)
            if state[0] == size and state[1] == num_old and state[2] == num_new:
                return _trace_path(come_from, state)
            if len(done) > max_states or self.work.is_too_much:
                self.too_many = True
                return None
            for price, after, step in self._list_steps(state, may_fault=most > FAULT_COST):
                item, old, new, _last = after
                if new < self.low[item] or new > self.high[item] or not self.band.has(old, new):
                    continue
                total = cost + price
                if total < most and total < cost_of.get(after, _NO_LIMIT):
                    cost_of[after] = total
                    come_from[after] = (state, step)
                    pushed += 1
                    heapq.heappush(heap, (total, -pushed, after))
        return None

    def _list_steps(self, state: State, *, may_fault: bool) -> Iterator[tuple[int, State, PathStep]]:
        """Yield each step that may follow a state: its cost, the state after it, and the step."""
        at, old, new, last = state
        if last.startswith("before"):
            yield self._follow_block(state)
            return
        item = self.items[at] if at < len(self.items) else None
        if item is None:
            if last != "end":
                yield 1, (at, old, new, "end"), PathStep("marker", (at, at), (old, old), (new, new))
        else:
            yield from self._pass_item(state, item, may_fault=may_fault)
        num_old, num_new = len(self.old), len(self.new)
        if old < num_old and new < num_new and self.old_keys[old] == self.new_keys[new]:
            if item is not None and item.kind != "marker" and self.texts.is_item(item, self.old_keys[old]):
                yield self._keep_line(state)
            yield self._skip_gap(at, old, new, last)
        yield from self._list_blocks(state)
        if not may_fault:
            return
        if new < num_new and self.band.has(old, new + 1):
            yield (
                FAULT_COST + 200,
                (at, old, new + 1, last),
                PathStep("added", (at, at), (old, old), (new, new + 1), "added"),
            )
        if old < num_old and self.band.has(old + 1, new):
            yield (
                FAULT_COST + 300,
                (at, old + 1, new, last),
                PathStep("lost", (at, at), (old, old + 1), (new, new), "removed"),
            )

    def _follow_block(self, state: State) -> tuple[int, State, PathStep]:
        """Return the only step that may follow a block: the one that the block was judged with."""
        at, old, new, last = state
        if last == "before_keep":
            return self._keep_line(state)
        if last == "before_gap":
            return self._skip_gap(at, old, new, last)
        if last == "before_end":
            return 0, (at, old, new, "end"), PathStep("marker", (at, at), (old, old), (new, new))
        return 0, (at + 1, old, new, "marker"), PathStep("marker", (at, at + 1), (old, old), (new, new))

    def _pass_item(self, state: State, item: SnippetItem, *, may_fault: bool) -> Iterator[tuple[int, State, PathStep]]:
        """Yield the steps that take an item and no line of either text."""
        at, old, new, last = state
        one = (at, at + 1), (old, old), (new, new)
        if item.kind == "marker":
            yield 0, (at + 1, old, new, "marker"), PathStep("marker", *one)
            return
        if item.kind == "maybe_marker":
            yield 2, (at + 1, old, new, "marker"), PathStep("marker", *one)
        elif item.kind == "remark":
            yield 1, (at + 1, old, new, last), PathStep("skip", *one)
        if may_fault:
            yield FAULT_COST, (at + 1, old, new, last), PathStep("missing", *one, "missing")

    def _keep_line(self, state: State) -> tuple[int, State, PathStep]:
        at, old, new, _ = state
        fault = "" if self.texts.is_owned(at, new) else "misplaced"
        step = PathStep("keep", (at, at + 1), (old, old + 1), (new, new + 1), fault)
        return FAULT_COST if fault else 0, (at + 1, old + 1, new + 1, "keep"), step

    def _skip_gap(self, at: int, old: int, new: int, last: LastStep) -> tuple[int, State, PathStep]:
        """Skip unshown kept lines: all at which no other step is possible."""
        is_open = last in ("start", "marker", "end")
        price = 10 if last == "keep" else 11 if last == "before_gap" else 0
        after: LastStep = last if is_open else "gap"
        size = 1 if self.band.is_in_window(new) else self._measure_gap(at, new)
        price += (
            3 * (self._num_altered_above[new + size] - self._num_altered_above[new])
            if size > 1
            else 3 * (self.old[old].text != self.new[new].text)
        )
        end_old, end_new = old + size, new + size
        return price, (at, end_old, end_new, after), PathStep("gap", (at, at), (old, end_old), (new, end_new))

    def _measure_gap(self, at: int, new: int) -> int:
        """Return how many lines from here on, outside of windows, allow no other step."""
        end = min(self.band.find_next_window(new), max(self.high[at], new + 1), len(self.new))
        item = self.items[at] if at < len(self.items) else None
        if item is not None and item.kind != "line":
            return 1
        if item is not None:
            places = self.texts.find_item_places(at)
            row = bisect_left(places, new + 1)
            end = min(end, places[row] if row < len(places) else end)
        return max(1, end - new)

    @cached_property
    def _num_altered_above(self) -> list[int]:
        """For each line of the result, the number of lines above it, outside of windows, whose spaces changed."""
        total = 0
        sums = [0]
        for new in range(len(self.new)):
            old = self.band.find_twin(new)
            total += 0 <= old < len(self.old) and self.old[old].text != self.new[new].text
            sums.append(total)
        return sums

    def _list_blocks(self, state: State) -> Iterator[tuple[int, State, PathStep]]:
        """Yield the blocks that begin here: new lines of the snippet that replace removed lines of the file."""
        at, new = state[0], state[2]
        if not self.band.is_in_window(new):
            return
        end_at, end_new = at, new
        while not self.work.is_too_much:
            self.work.add(1)
            yield from self._list_blocks_to(state, end_at, end_new)
            if end_at == len(self.items) or end_new == len(self.new):
                return
            item = self.items[end_at]
            if item.kind == "marker" or item.key != self.new_keys[end_new]:
                if item.kind != "remark":
                    return
                end_at += 1
                continue
            end_at, end_new = end_at + 1, end_new + 1
            if end_new > self.high[end_at]:
                return

    def _list_blocks_to(self, state: State, end_at: int, end_new: int) -> Iterator[tuple[int, State, PathStep]]:
        """Yield the blocks with these new lines, one for each line of the file above which they may end."""
        at, old, new = state[:3]
        if not self.band.is_in_window(end_new):
            return
        ends = [end for end in self._find_ends(old, end_new) if self._may_be_block(old, end, new, end_new)]
        if not ends:
            return
        while end_at < len(self.items) and self.items[end_at].kind == "remark":
            end_at += 1
        rights = self._list_next_steps(end_at, end_new)
        for end_old in ends:
            for right in rights:
                price, fault = self.rules.judge(state, (at, end_at), (old, end_old), (new, end_new), right)
                step = PathStep("block", (at, end_at), (old, end_old), (new, end_new), fault)
                yield price, (end_at, end_old, end_new, right), step

    def _may_be_block(self, old: int, end_old: int, new: int, end_new: int) -> bool:
        """Return whether lines of both texts may be one block: not empty, and no common line at its begin or end."""
        if end_new == new:
            return end_old > old and self.band.has(end_old, end_new)
        return self.band.has(end_old, end_new) and not (
            end_old > old
            and (self.old_keys[old] == self.new_keys[new] or self.old_keys[end_old - 1] == self.new_keys[end_new - 1])
        )

    def _find_ends(self, old: int, end_new: int) -> Sequence[int]:
        """Return the lines of the file, from `old` on, that may follow a block: those equal to the result's line."""
        if end_new == len(self.new):
            return (len(self.old),)
        places = self.texts.places.get(self.new_keys[end_new], ())
        return places[bisect_left(places, old) : bisect_right(places, self.band.find_last_twin(end_new))]

    def _list_next_steps(self, end_at: int, end_new: int) -> list[LastStep]:
        """Return the steps that may follow a block whose new lines end above an item and a line of the result."""
        if end_at == len(self.items):
            return ["before_end"]
        item = self.items[end_at]
        rights: list[LastStep] = ["before_marker"] if item.kind in ("marker", "maybe_marker") else []
        if item.kind != "marker" and end_new < len(self.new):
            rights.append("before_keep" if self.texts.is_item(item, self.new_keys[end_new]) else "before_gap")
        return rights


def _trace_path(come_from: dict[State, tuple[State, PathStep]], state: State) -> list[PathStep]:
    path: list[PathStep] = []
    while state in come_from:
        state, step = come_from[state]
        path.append(step)
    return path[::-1]
