"""The readings of a lazy snippet: whether one of them leads from a file to a result, and what no reading explains.

A reading is a path over three texts at once: the snippet's lines, the file's and the result's, blank lines left out.
Its steps:

    keep    a shown line that the file has and the result keeps
    gap     an unshown line that the result keeps: behind a marker, or between two shown lines that are not neighbours
    block   shown lines that are new, and lines of the file that they replace; either may be none

A step that the grammar does not allow costs a fault. The cheapest path is found by Dijkstra's algorithm: a path without
faults is a legal reading. Where there is none, the faults of the cheapest path say which lines no reading explains.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from editor.attribution.band import AlignmentBand
from editor.attribution.instruction import PlaceText, RemovalText
from editor.attribution.snippet import (
    SnippetItem,
    is_moved_alike,
    list_ancestor_keys,
    measure_indent,
    measure_level,
    read_items,
)
from editor.attribution.statements import (
    COMMENT,
    IMPORT,
    can_replace,
    find_key,
    find_name,
    group_statements,
    is_rewrite,
    may_be_call,
    number_statements,
)
from editor.definitions import Symbol
from editor.diff import line_opcodes
from editor.execution import cache_results
from editor.syntax import Survey, survey
from editor.types import Sketch, UnaccountedLine

MAX_STATES = 60_000
"""Of the search; past it the readings of a snippet are too many to be tried, and none counts as found."""

MAX_WORK = 80_000
"""Lines of blocks, and pairs of their statements, that are judged in one search."""

MAX_FAULTY_STATES = 20_000
"""Of the search for the faults of a result that is no legal reading."""

_MAX_UNNAMED = 10
_NEAR = 40
_FAULT = 1_000
_NO_LIMIT = 1 << 60
# Languages in which two definitions of one name may stand side by side.
_OVERLOADS = frozenset(
    {"java", "csharp", "cpp", "c", "typescript", "tsx", "css", "markdown", "html", "ruby", "bash", "sql"}
)

_WORD = re.compile(r"[\w$]+")

LastStep = Literal["start", "marker", "keep", "gap", "end", "before_keep", "before_gap", "before_marker", "before_end"]
"""What a path took last: it says what may follow. `start` and `end` are the markers implied at the snippet's ends.

Behind a block stands what has to come next, as a block is judged by what stands on both sides of it.
"""

State = tuple[int, int, int, LastStep]
"""How many items of the snippet, lines of the file and lines of the result lie behind a path, and its last step."""


class PathStep(NamedTuple):
    """One step of a path: the ranges of items, file lines and result lines that it takes, and the fault that it is."""

    kind: Literal["keep", "gap", "block", "marker", "skip", "missing", "added", "lost"]
    items: tuple[int, int]
    old: tuple[int, int]
    new: tuple[int, int]
    fault: str = ""


class SolidLine(NamedTuple):
    """One line of a text that is not blank: its number (from 0), itself, its text without indentation, its depth.

    `above` are the blank lines above it.
    """

    number: int
    text: str
    key: str
    width: int
    above: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attribution:
    """What the search found: the lines that no reading explains (none: the result is a legal reading).

    `repaired` is the result rebuilt from the file and the accounted changes, None where a line of the snippet has no
    place. `bound` names the bound that ended the search, "" if none did.
    """

    faults: tuple[UnaccountedLine, ...]
    repaired: str | None = None
    bound: str = ""


def attribute_snippet(
    original: str, result: str, sketch: Sketch, language: str | None, said: Sequence[str], *, explains: bool = True
) -> Attribution:
    r"""Return the cheapest reading of a snippet that leads from a file to a result, both with "\n" lines.

    `said` are texts that may say what is to go: the instruction, the prose around the snippet. Without `explains` the
    faults of a result that is no legal reading are its changed lines, and nothing is repaired.
    """
    return _ReadingSearch(original, result, sketch, language, said).find_attribution(explains=explains)


def _split_lines(text: str, language: str | None, known: Mapping[str, SolidLine]) -> list[SolidLine]:
    """Return the lines of a text that are not blank; `known` are lines of the file by their text."""
    found: list[SolidLine] = []
    above: list[str] = []
    for number, line in enumerate(text.split("\n")):
        like = known.get(line)
        key = like.key if like is not None else line.strip()
        if key:
            width = like.width if like is not None else measure_level(line, language)
            found.append(SolidLine(number, line, key, width, tuple(above)))
            above = []
        else:
            above.append(line)
    return found


class _FileIndex:
    """What all searches in one file share."""

    def __init__(self, text: str, language: str | None) -> None:
        self.text, self.language = text, language
        self.lines = _split_lines(text, language, {})
        self.line_of = {line.text: line for line in self.lines}
        self.keys = [line.key for line in self.lines]
        self.counts = Counter(self.keys)
        self.places: dict[str, list[int]] = {}
        for at, key in enumerate(self.keys):
            self.places.setdefault(key, []).append(at)

    @cached_property
    def survey(self) -> Survey | None:
        return survey(self.text, self.language)

    @cached_property
    def statements(self) -> list[int]:
        return number_statements([line.text for line in self.lines])

    @cached_property
    def imports(self) -> list[int]:
        return [at for at, line in enumerate(self.lines) if IMPORT.match(line.text)]

    @cached_property
    def definitions(self) -> list[tuple[int, int, str]]:
        """Definitions over several lines, in order: the range of lines that are not blank, and the name."""
        symbols = () if self.survey is None else self.survey.symbols
        found = {
            _find_line_range(self.lines, symbol.name_line, symbol.end_line): symbol.name
            for symbol in symbols
            if symbol.end_line - symbol.name_line > 1
        }
        knows_methods = self.survey is not None and self.survey.has_symbols
        for at, line in enumerate(self.lines):
            name = None if knows_methods and may_be_call(line.text) else find_name(line.text)
            end = self._end_by_indent(at) if name else at
            if name and end > at + 1 and (at, end) not in found:
                found[at, end] = name
        return [(first, end, name) for (first, end), name in sorted(found.items())]

    @cached_property
    def definition_names(self) -> set[str]:
        return {name.rsplit(".", 1)[-1] for _, _, name in self.definitions}

    @cached_property
    def lone_symbols(self) -> list[Symbol]:
        """The definitions whose qualified names no other has."""
        symbols = () if self.survey is None else self.survey.symbols
        counts = Counter(symbol.name for symbol in symbols)
        return [symbol for symbol in symbols if counts[symbol.name] == 1]

    def _end_by_indent(self, at: int) -> int:
        """Return the line behind the last one that belongs to what a line opens, by indentation."""
        lines = self.lines
        width = lines[at].width
        end = at + 1
        while end < len(lines) and lines[end].width > width:
            end += 1
        return end + (end < len(lines) and lines[end].width == width and lines[end].key[0] in ")]}")


# The readings of one edit are judged one after the other.
_index_file = cache_results(2)(_FileIndex)


@cache_results(2)
def _read_snippet(
    original: str, sketch: Sketch, language: str | None, said: tuple[str, ...]
) -> tuple[list[SnippetItem], RemovalText, PlaceText]:
    items, texts = read_items(sketch, _index_file(original, language).places, language)
    return items, RemovalText([*said, *texts]), PlaceText(said)


class _ReadingSearch:
    def __init__(self, original: str, result: str, sketch: Sketch, language: str | None, said: Sequence[str]) -> None:
        self.original, self.result, self.language = original, result, language
        self.file = _index_file(original, language)
        self.old, self.old_keys, self.places = self.file.lines, self.file.keys, self.file.places
        self.new = _split_lines(result, language, self.file.line_of)
        self.new_keys = [line.key for line in self.new]
        self.items, self.removal, self.place = _read_snippet(original, sketch, language, tuple(said))
        self.ops = line_opcodes(self.old_keys, self.new_keys)
        self.cells = AlignmentBand(self.old_keys, self.new_keys, self.ops)
        self.shown = {item.key for item in self.items if item.kind == "line"}
        self._bound_items()
        self._goes_alone: dict[int, bool] = {}
        self.work = 0
        self._judged: dict[tuple[object, ...], tuple[int, str]] = {}

    def _bound_items(self) -> None:
        """Bound for every item where in the result a path may be when it comes to it.

        Every shown line stands in the result, in order: the items above it need so many lines, those below so many.
        Items that have no place even so do not count.
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

    @cached_property
    def _new_places(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for at, key in enumerate(self.new_keys):
            found[key].append(at)
        return found

    def _find_item_places(self, number: int) -> Sequence[int]:
        item = self.items[number]
        if item.elided is None:
            return self._new_places.get(item.key, ())
        return [at for at, key in enumerate(self.new_keys) if self._is_item(item, key)]

    def _find_next_place(self, number: int, start: int) -> int:
        places = self._find_item_places(number)
        row = bisect_left(places, start)
        return places[row] if row < len(places) else len(self.new)

    def _find_previous_place(self, number: int, end: int) -> int:
        places = self._find_item_places(number)
        row = bisect_left(places, end) - 1
        return places[row] if row >= 0 else 0

    def _is_item(self, item: SnippetItem, key: str) -> bool:
        """Tell whether a line is the one that an item shows; `(...)` in a header stands for the file's parameters."""
        if item.key == key:
            return True
        if item.elided is None:
            return False
        name = find_name(item.key)
        return item.elided.fullmatch("".join(key.split())) is not None or (name is not None and name == find_name(key))

    def find_attribution(self, *, explains: bool) -> Attribution:
        """Search for a path without faults; where there is none, for the cheapest, to say what is wrong with it."""
        if self.cells.is_too_large:
            return Attribution(tuple(self._list_changes_as_faults()), bound="accounting_window")
        path = self._find_path(MAX_STATES, _FAULT)
        too_many = self.too_many
        if path is None:
            path = self._find_path(MAX_FAULTY_STATES, _NO_LIMIT) if explains else None
        if path is None and explains and not self.too_many:
            # Some shown line is not where the lines around it would have it: look for the faults everywhere.
            self.low, self.high = [0] * len(self.low), [len(self.new)] * len(self.high)
            path = self._find_path(MAX_FAULTY_STATES, _NO_LIMIT)
        if path is None:
            return Attribution(tuple(self._list_changes_as_faults()), bound="accounting_states" if too_many else "")
        faults = [*self._list_faults(path), *self._list_layout_faults(path), *self._list_end_faults(path)]
        if not faults:
            return Attribution(())
        return Attribution(tuple(faults), self._rebuild_result(path, faults))

    def _find_path(self, max_states: int, most: int) -> list[PathStep] | None:
        """Return the cheapest path; None where it costs as much as `most`, or too many states are in question."""
        self.too_many = False
        self.work = 0
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
            if len(done) > max_states or self.work > MAX_WORK:
                self.too_many = True
                return None
            for price, after, step in self._list_steps(state, may_fault=most > _FAULT):
                item, old, new, _last = after
                if new < self.low[item] or new > self.high[item] or not self.cells.has(old, new):
                    continue
                total = cost + price
                if total < most and total < cost_of.get(after, _NO_LIMIT):
                    cost_of[after] = total
                    come_from[after] = (state, step)
                    pushed += 1
                    heapq.heappush(heap, (total, -pushed, after))
        return None

    def _list_steps(self, state: State, *, may_fault: bool) -> Iterator[tuple[int, State, PathStep]]:
        """Yield the steps that may follow a state, what each costs, and the state behind it."""
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
            if item is not None and item.kind != "marker" and self._is_item(item, self.old_keys[old]):
                yield self._keep_line(state)
            yield self._skip_gap(at, old, new, last)
        yield from self._list_blocks(state)
        if not may_fault:
            return
        if new < num_new and self.cells.has(old, new + 1):
            yield (
                _FAULT + 200,
                (at, old, new + 1, last),
                PathStep("added", (at, at), (old, old), (new, new + 1), "added"),
            )
        if old < num_old and self.cells.has(old + 1, new):
            yield (
                _FAULT + 300,
                (at, old + 1, new, last),
                PathStep("lost", (at, at), (old, old + 1), (new, new), "removed"),
            )

    def _follow_block(self, state: State) -> tuple[int, State, PathStep]:
        """Return the one step that may follow a block, which was judged by it."""
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
            yield _FAULT, (at + 1, old, new, last), PathStep("missing", *one, "missing")

    def _keep_line(self, state: State) -> tuple[int, State, PathStep]:
        at, old, new, _ = state
        fault = "" if self._is_owned(at, new) else "misplaced"
        step = PathStep("keep", (at, at + 1), (old, old + 1), (new, new + 1), fault)
        return _FAULT if fault else 0, (at + 1, old + 1, new + 1, "keep"), step

    def _skip_gap(self, at: int, old: int, new: int, last: LastStep) -> tuple[int, State, PathStep]:
        """Skip unshown lines that stay, as many as nothing else can happen at."""
        is_open = last in ("start", "marker", "end")
        price = 10 if last == "keep" else 11 if last == "before_gap" else 0
        after: LastStep = last if is_open else "gap"
        size = 1 if self.cells.is_in_window(new) else self._measure_gap(at, new)
        price += (
            3 * (self._num_altered_above[new + size] - self._num_altered_above[new])
            if size > 1
            else 3 * self._is_altered(old, new)
        )
        end_old, end_new = old + size, new + size
        return price, (at, end_old, end_new, after), PathStep("gap", (at, at), (old, end_old), (new, end_new))

    def _measure_gap(self, at: int, new: int) -> int:
        """Return how many lines from here on, outside of windows, can only be skipped."""
        end = min(self.cells.find_next_window(new), max(self.high[at], new + 1), len(self.new))
        item = self.items[at] if at < len(self.items) else None
        if item is not None and item.kind != "line":
            return 1
        if item is not None:
            places = self._find_item_places(at)
            row = bisect_left(places, new + 1)
            end = min(end, places[row] if row < len(places) else end)
        return max(1, end - new)

    def _is_altered(self, old: int, new: int) -> bool:
        return self.old[old].text != self.new[new].text

    @cached_property
    def _num_altered_above(self) -> list[int]:
        """How many lines of the result above each line differ from the file's in their spaces, outside of windows."""
        total = 0
        sums = [0]
        for new in range(len(self.new)):
            old = self.cells.find_twin(new)
            total += 0 <= old < len(self.old) and self.old[old].text != self.new[new].text
            sums.append(total)
        return sums

    @cached_property
    def _ancestor_keys(self) -> list[frozenset[str]]:
        """The keys of the lines that each line of the result lies in."""
        return list(list_ancestor_keys([(line.key, line.width) for line in self.new], self.language))

    def _is_owned(self, at: int, new: int) -> bool:
        """Tell whether a line of the result lies in the block that the snippet shows it in."""
        parent = self.items[at].parent
        if parent < 0:
            return True
        owner = self.items[parent]
        inside = self._ancestor_keys[new]
        if owner.key in inside or (owner.elided is not None and any(self._is_item(owner, key) for key in inside)):
            return True
        # Text of a string at the left edge hides by its indentation what the line lies in; the grammar knows better.
        number = self.new[new].number
        return any(
            symbol.name_line < number < symbol.end_line and self._is_item(owner, self._find_new_key(symbol.name_line))
            for symbol in (self._surveys[1].symbols if self._surveys[1] is not None else ())
        )

    @cached_property
    def _new_numbers(self) -> list[int]:
        return [line.number for line in self.new]

    def _find_new_key(self, number: int) -> str:
        at = bisect_left(self._new_numbers, number)
        return self.new_keys[at] if at < len(self.new) else ""

    def _list_blocks(self, state: State) -> Iterator[tuple[int, State, PathStep]]:
        """Yield the blocks that begin here: new lines of the snippet, for lines of the file that are gone."""
        at, new = state[0], state[2]
        if not self.cells.is_in_window(new):
            return
        end_at, end_new = at, new
        while self.work <= MAX_WORK:
            self.work += 1
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
        """Yield the blocks with these new lines, by the line of the file that they end above."""
        at, old, new = state[:3]
        if not self.cells.is_in_window(end_new):
            return
        ends = [end for end in self._find_ends(old, end_new) if self._may_be_block(old, end, new, end_new)]
        if not ends:
            return
        while end_at < len(self.items) and self.items[end_at].kind == "remark":
            end_at += 1
        rights = self._list_next_steps(end_at, end_new)
        for end_old in ends:
            for right in rights:
                price, fault = self._judge(state, (at, end_at), (old, end_old), (new, end_new), right)
                step = PathStep("block", (at, end_at), (old, end_old), (new, end_new), fault)
                yield price, (end_at, end_old, end_new, right), step

    def _may_be_block(self, old: int, end_old: int, new: int, end_new: int) -> bool:
        """Tell whether lines of both texts may be one block: not none, nor with a line of both at its begin or end."""
        if end_new == new:
            return end_old > old and self.cells.has(end_old, end_new)
        return self.cells.has(end_old, end_new) and not (
            end_old > old
            and (self.old_keys[old] == self.new_keys[new] or self.old_keys[end_old - 1] == self.new_keys[end_new - 1])
        )

    def _find_ends(self, old: int, end_new: int) -> Sequence[int]:
        """Return the lines of the file, from `old` on, that may stand below a block: those like the result's line."""
        if end_new == len(self.new):
            return (len(self.old),)
        places = self.places.get(self.new_keys[end_new], ())
        return places[bisect_left(places, old) : bisect_right(places, self.cells.find_last_twin(end_new))]

    def _list_next_steps(self, end_at: int, end_new: int) -> list[LastStep]:
        """Return what may stand below a block whose new lines end above an item and a line of the result."""
        if end_at == len(self.items):
            return ["before_end"]
        item = self.items[end_at]
        rights: list[LastStep] = ["before_marker"] if item.kind in ("marker", "maybe_marker") else []
        if item.kind != "marker" and end_new < len(self.new):
            rights.append("before_keep" if self._is_item(item, self.new_keys[end_new]) else "before_gap")
        return rights

    def _judge(
        self, state: State, items: tuple[int, int], old: tuple[int, int], new: tuple[int, int], right: LastStep
    ) -> tuple[int, str]:
        """Return what a block costs, and the fault that it is ("" for none)."""
        left = state[3]
        known = (items, old, new, left, right)
        if known not in self._judged:
            removed = range(*old)
            self.work += len(removed) + new[1] - new[0]
            if self.work > MAX_WORK:
                return _FAULT, "misplaced"
            fault = "" if self._is_owned_block(items, new) else "misplaced"
            if not fault and self._is_doubled(old, new, left, right):
                fault = "rival"
            if not fault and not removed:
                fault = self._judge_insertion(items, old[0], new, left, right)
            elif not fault:
                fault = self._judge_removal(items, old, new, left, right)
            size = len(removed) + (new[1] - new[0])
            price = 1 + len(removed) + (_FAULT + 100 * size if fault else 0)
            self._judged[known] = price, fault
        return self._judged[known]

    def _is_owned_block(self, items: tuple[int, int], new: tuple[int, int]) -> bool:
        numbers = [at for at in range(*items) if self.items[at].kind == "line"]
        return len(numbers) != new[1] - new[0] or all(
            self._is_owned(at, row) for at, row in zip(numbers, range(*new), strict=True)
        )

    def _is_doubled(self, old: tuple[int, int], new: tuple[int, int], left: LastStep, right: LastStep) -> bool:
        """Tell whether a new line stands beside an unshown line that it repeats."""
        added = self.new_keys[new[0] : new[1]]
        if not added:
            return False
        above = self.old_keys[old[0] - 1] if left in ("gap", "marker", "start") and old[0] else ""
        below = self.old_keys[old[1]] if right != "before_keep" and old[1] < len(self.old) else ""
        beside = {above} if left == "gap" else set()
        beside |= {below} if right == "before_gap" else set()
        doubled = {key for key in beside if key in added}
        doubled |= {above} if above == added[0] else set()
        doubled |= {below} if below == added[-1] else set()
        return not all(map(_is_punctuation, doubled))

    def _judge_insertion(
        self, items: tuple[int, int], old: int, new: tuple[int, int], left: LastStep, right: LastStep
    ) -> str:
        """Judge new lines that replace nothing: a shown line has to say where they belong, or markers on both sides."""
        if (left == "gap" and right != "before_keep") or (right == "before_gap" and left != "keep"):
            return "misplaced"
        added = self.new[new[0] : new[1]]
        above, below = range(old - 1, -1, -1), range(old, len(self.old))
        sides: list[range] = []
        if left == "gap":
            sides.append(above)
        if right == "before_gap":
            sides.append(below)
        if any(self._has_rivals(side, added, items) for side in sides):
            return "rival"
        if left == "keep" or right == "before_keep":
            return self._judge_side(added, old, left, right)
        return self._judge_between_markers(added, old, new, left, right)

    def _judge_side(self, added: Sequence[SolidLine], old: int, left: LastStep, right: LastStep) -> str:
        """Judge new lines between a shown line and a marker: what they redefine must not stay behind the marker."""
        if left == "keep" and right == "before_keep":
            return ""
        side = range(old, len(self.old)) if left == "keep" else range(old - 1, -1, -1)
        return "rival" if self._redefines(added) or self._has_reassigned(side, added) else ""

    def _judge_between_markers(
        self, added: Sequence[SolidLine], old: int, new: tuple[int, int], left: LastStep, right: LastStep
    ) -> str:
        below = self.new[new[1]] if new[1] < len(self.new) else None
        above = self.new[new[0] - 1] if new[0] else None
        depth = min(line.width for line in added)
        if self._is_named_place(old):
            return self._judge_names(old, added)
        is_import = all(IMPORT.match(line.text) or COMMENT.match(line.text) for line in added)
        beside_import = any(line is not None and IMPORT.match(line.text) for line in (above, below))
        if left == "start" and not (above is None or (is_import and beside_import)):
            return "misplaced"
        is_end = below is None or below.width < depth or below.key.startswith("if __name__ ")
        if right == "before_end" and left != "start" and not is_end:
            return "misplaced"
        if below is not None and below.width > depth:
            return "misplaced"
        return self._judge_names(old, added)

    def _judge_names(self, old: int, added: Sequence[SolidLine]) -> str:
        """Judge new lines above a line of the file: they must not define or set again what stands around them."""
        sides = range(old, len(self.old)), range(old - 1, -1, -1)
        return "rival" if self._redefines(added) or any(self._has_reassigned(side, added) for side in sides) else ""

    def _is_named_place(self, old: int) -> bool:
        """Tell whether the instruction says that new code goes above a line of the file."""
        head = old
        while head < len(self.old) and (COMMENT.match(self.old[head].text) or self.old_keys[head].startswith("@")):
            head += 1
        return any(
            (end == old and self.place.is_after(name)) or (first == head and self.place.is_before(name))
            for first, end, name in self.file.definitions
        )

    def _has_rivals(self, side: range, added: Sequence[SolidLine], items: tuple[int, int]) -> bool:
        """Tell whether an implied gap holds what the new lines may be meant to replace."""
        ends = {self.items[at].key for at in (items[0] - 1, items[1]) if 0 <= at < len(self.items)}
        near: list[SolidLine] = []
        for at in side[:_NEAR]:
            if self.old_keys[at] in ends:
                break
            near.append(self.old[at])
        if not side or side.step < 0:
            near.reverse()
        old_groups = group_statements([line.text for line in near], number_statements([line.text for line in near]))
        new_groups = group_statements([line.text for line in added], number_statements([line.text for line in added]))
        return any(is_rewrite(one, two) for one in old_groups for two in new_groups)

    def _has_reassigned(self, side: range, added: Sequence[SolidLine]) -> bool:
        """Tell whether the lines that stay nearby, in the same block, set a name or key that the new lines set."""
        depth = min(line.width for line in added)
        wanted = {find_key(line.text) for line in added if line.width == depth and _is_assignment(line.key)} - {None}
        if not wanted:
            return False
        for at in side[:_NEAR]:
            line = self.old[at]
            if line.width < depth:
                return False
            if line.width == depth and _is_assignment(line.key) and find_key(line.text) in wanted:
                return True
        return False

    @cached_property
    def _surveys(self) -> tuple[Survey | None, Survey | None]:
        return self.file.survey, survey(self.result, self.language)

    @cached_property
    def _redefinitions(self) -> dict[int, str]:
        """Lines of the result that define what the file has defined and the result defines once more."""
        before, after = self._surveys
        if before is None or after is None or self.language in _OVERLOADS:
            return {}
        stood = Counter(symbol.name for symbol in before.symbols)
        stands = Counter(symbol.name for symbol in after.symbols)
        return {
            symbol.name_line: symbol.name for symbol in after.symbols if 0 < stood[symbol.name] < stands[symbol.name]
        }

    def _redefines(self, added: Sequence[SolidLine]) -> bool:
        if any(seen is not None and not seen.has_symbols for seen in self._surveys):
            return any(find_name(line.text) in self.file.definition_names for line in added)
        return any(line.number in self._redefinitions and not line.key.startswith("- ") for line in added)

    def _judge_removal(
        self, items: tuple[int, int], old: tuple[int, int], new: tuple[int, int], left: LastStep, right: LastStep
    ) -> str:
        """Judge lines of the file that are gone: each has to be shown to go, be replaced, or be named."""
        added = self.new[new[0] : new[1]]
        if _join_solid_text(self.old_keys[old[0] : old[1]]) == _join_solid_text(self.new_keys[new[0] : new[1]]):
            return ""  # the same text, broken into lines in another way
        shown = right == "before_keep" and (left == "keep" or self._is_same_definition(old, added))
        definitions = shown and self._loses_definition(old, added, shown=True)
        if shown and not definitions and old[1] - old[0] <= _MAX_UNNAMED:
            return ""
        explained = self._find_explained(old) | self._find_joined_imports(old, added)
        removed = [at for at in range(*old) if at not in explained]
        if not removed or (shown and not definitions and len(removed) <= _MAX_UNNAMED):
            return ""
        if not shown and self._loses_bracket(removed, added):
            return "removed"
        if not added:
            return "removed"
        lines = [self.old[at].text for at in removed]
        numbers = self.file.statements
        old_groups = group_statements(lines, [numbers[at] for at in removed])
        # A line that only changes its place replaces no other.
        gone = Counter(self.old_keys[at] for at in range(*old))
        new_lines = [line.text for line in added if not gone[line.key]]
        new_groups = group_statements(new_lines, number_statements(new_lines))
        self.work += len(old_groups) * len(new_groups)
        if self.work > MAX_WORK:
            return "removed"
        beside_shown = left == "keep" or right == "before_keep"
        if definitions or not can_replace(old_groups, new_groups, pairs_comments=beside_shown):
            return "removed"
        return "removed" if not shown and self._loses_definition(old, added, shown=False) else ""

    def _is_same_definition(self, old: tuple[int, int], added: Sequence[SolidLine]) -> bool:
        """Tell whether removed and new lines begin with the head of one definition."""
        name = find_name(self.old[old[0]].text)
        return name is not None and bool(added) and name == find_name(added[0].text)

    def _find_joined_imports(self, old: tuple[int, int], added: Sequence[SolidLine]) -> set[int]:
        """Return the removed imports whose names a new import of the same module has."""
        imports = self.file.imports
        imports = imports[bisect_left(imports, old[0]) : bisect_left(imports, old[1])]
        new = [line.text for line in added if IMPORT.match(line.text)] if imports else []
        found: set[int] = set()
        for at in imports:
            text = self.old[at].text
            words = set(_WORD.findall(text))
            if any(find_key(one) == find_key(text) and words <= set(_WORD.findall(one)) for one in new):
                found.add(at)
        return found

    def _loses_bracket(self, removed: Sequence[int], added: Sequence[SolidLine]) -> bool:
        """Tell whether a line of closing brackets is gone whose opening line stays, with no such line in its place."""
        closers = Counter(line.key for line in added if _is_punctuation(line.key))
        for at in removed:
            line = self.old[at]
            if not _is_punctuation(line.key):
                continue
            opened = any(self.old[other].width == line.width for other in removed if other < at)
            if not opened:
                closers[line.key] -= 1
                if closers[line.key] < 0:
                    return True
        return False

    def _find_explained(self, old: tuple[int, int]) -> set[int]:
        """Return the removed lines that are shown to go apart from their neighbours; a statement goes as a whole."""
        numbers = self.file.statements
        found = {at for at in range(*old) if self._is_explained(at, old)}
        heads = {numbers[at] for at in found if at == 0 or numbers[at - 1] != numbers[at]}
        for at in range(*old):
            # Brackets go with a line beside them that goes.
            if _is_punctuation(self.old_keys[at]) and (at - 1 in found or at + 1 in found):
                found.add(at)
        found |= {at for at in range(*old) if numbers[at] in heads}
        for at in range(old[1] - 2, old[0] - 1, -1):
            if at + 1 in found and COMMENT.match(self.old[at].text) and self.old[at].width == self.old[at + 1].width:
                found.add(at)
        return found

    def _is_explained(self, at: int, old: tuple[int, int]) -> bool:
        """Tell whether a removed line is shown to go apart from its neighbours: rewritten, moved, or named."""
        if at not in self._goes_alone:
            key = self.old_keys[at]
            is_moved = self.file.counts[key] == 1 == len(self._new_places.get(key, ())) and key in self.shown
            names = self.removal.names_line(self.old[at].text)
            self._goes_alone[at] = is_moved or names or self._is_rewritten(at)
        return self._goes_alone[at] or any(
            old[0] <= first and end - _is_punctuation(self.old_keys[end - 1]) <= old[1] and first <= at < end
            for first, end in self._removal_definitions
        )

    @cached_property
    def _removal_definitions(self) -> list[tuple[int, int]]:
        if not self.removal.says_anything:
            return []
        return [(first, end) for first, end, name in self.file.definitions if self.removal.names_definition(name)]

    def _loses_definition(self, old: tuple[int, int], added: Sequence[SolidLine], *, shown: bool) -> bool:
        """Tell whether the head of a definition is gone that no new line defines again, and nobody names.

        Of two definitions that end alike, the end of the one may as well be taken for the end of the other.
        """
        names = {find_name(line.text) for line in added}
        definitions = self.file.definitions
        within = definitions[bisect_left(definitions, (old[0],)) : bisect_left(definitions, (old[1],))]
        lost = [name for _, _, name in within if not self.removal.names_definition(name)]
        # Beside a marker nothing is renamed to what the file has defined already: the marker may hide the lost one.
        stood = set() if shown else self.file.definition_names
        if len({name for name in names if name} - stood) >= len(lost):
            return False
        return not all(name.rsplit(".", 1)[-1] in names or self._is_moved(name) for name in lost)

    def _is_moved(self, name: str) -> bool:
        if not _may_name(self.result, name):
            return False
        after = self._surveys[1]
        simple = name.rsplit(".", 1)[-1]
        return after is not None and any(symbol.simple_name == simple for symbol in after.symbols)

    def _is_rewritten(self, at: int) -> bool:
        return any(first <= at < end for first, end in self._snippet_definitions) and at in self._rewritten

    @cached_property
    def _snippet_definitions(self) -> list[tuple[int, int]]:
        """The definitions of the file that the snippet may show anew, as it has the words of their names.

        No other can be in `_rewritten`, for which the result is parsed.
        """
        shown = "\n".join(item.key for item in self.items if item.kind != "marker")
        lone = (symbol for symbol in self.file.lone_symbols if _may_name(shown, symbol.name))
        return [_find_line_range(self.old, symbol.name_line, symbol.end_line) for symbol in lone]

    @cached_property
    def _rewritten(self) -> frozenset[int]:
        """Lines of the file in definitions that the snippet shows anew from head to end, with no marker between."""
        before, after = self._surveys
        if before is None or after is None:
            return frozenset()
        keys = [item.key if item.kind != "marker" else None for item in self.items]
        starts: dict[str | None, list[int]] = defaultdict(list)
        for at, key in enumerate(keys):
            starts[key].append(at)
        names: dict[str, list[Symbol]] = defaultdict(list)
        for symbol in before.symbols:
            names[symbol.name].append(symbol)
        found: set[int] = set()
        for symbol in after.symbols:
            if len(names[symbol.name]) != 1 or self._find_new_key(symbol.name_line) not in starts:
                continue
            first, end = _find_line_range(self.new, symbol.name_line, symbol.end_line)
            wanted = self.new_keys[first:end]
            if wanted and any(keys[at : at + len(wanted)] == wanted for at in starts[wanted[0]]):
                gone = names[symbol.name][0]
                found |= set(range(*_find_line_range(self.old, gone.name_line, gone.end_line)))
        return frozenset(found)

    def _list_faults(self, path: Sequence[PathStep]) -> Iterator[UnaccountedLine]:
        for step in path:
            if not step.fault:
                continue
            if step.kind == "missing":
                item = self.items[step.items[0]]
                yield UnaccountedLine(0, "missing", item.line)
                continue
            for at in range(*step.old) if step.kind in ("lost", "block") else ():
                yield UnaccountedLine(self.old[at].number + 1, "removed", self.old[at].text)
            if step.kind in ("added", "keep") or step.fault in ("misplaced", "rival"):
                for at in range(*step.new):
                    kind: Literal["added", "misplaced"] = "added" if step.kind == "added" else "misplaced"
                    yield UnaccountedLine(self.new[at].number + 1, kind, self.new[at].text)

    def _list_changes_as_faults(self) -> Iterator[UnaccountedLine]:
        """Yield the changed lines that the snippet does not show, or else all: the search was ended by a bound."""
        hidden = [
            line for line in self._list_changes() if line.kind == "removed" or line.text.strip() not in self.shown
        ]
        yield from hidden or [*self._list_changes(), UnaccountedLine(0, "missing", "")]

    def _list_changes(self) -> Iterator[UnaccountedLine]:
        for op in self.ops:
            if op.equal:
                continue
            for at in range(op.a_start, op.a_end):
                yield UnaccountedLine(self.old[at].number + 1, "removed", self.old[at].text)
            for at in range(op.b_start, op.b_end):
                yield UnaccountedLine(self.new[at].number + 1, "added", self.new[at].text)

    def _list_layout_faults(self, path: Sequence[PathStep]) -> Iterator[UnaccountedLine]:
        """Yield lines whose indentation, spaces at the end, or blank lines above no step accounts for."""
        shown_new = {row for step in path if step.kind in ("keep", "block", "added") for row in range(*step.new)}
        shown_new.add(len(self.new))
        gone = {at for step in path if step.kind in ("block", "lost") for at in range(*step.old)}
        depths = self._find_depths(path)
        shifted = self._find_shifted_gaps(path)
        for at, step in enumerate(path):
            if step.kind == "keep":
                old, new = self.old[step.old[0]], self.new[step.new[0]]
                if old.text != new.text and not self._is_at(step.items[0], new, depths):
                    yield UnaccountedLine(new.number + 1, "altered", new.text)
            elif step.kind == "gap":
                moved = at in shifted
                for old_at, new_at in zip(range(*step.old), range(*step.new), strict=True):
                    old, new = self.old[old_at], self.new[new_at]
                    if old.text != new.text and not moved:
                        yield UnaccountedLine(new.number + 1, "altered", new.text)
                    elif old.above != new.above and new_at - 1 not in shown_new and old_at - 1 not in gone and new_at:
                        yield UnaccountedLine(new.number + 1, "blank_lines", new.text)
            elif step.kind == "block" and not step.fault:
                numbers = self._find_block_items(step)
                for number, new_at in zip(numbers, range(*step.new), strict=False):
                    if not self._is_at(number, self.new[new_at], depths):
                        yield UnaccountedLine(self.new[new_at].number + 1, "altered", self.new[new_at].text)

    def _list_end_faults(self, path: Sequence[PathStep]) -> Iterator[UnaccountedLine]:
        """Yield the last line where what stands behind it, newlines and blank lines, changes without a reason."""
        before, after = _get_trailing_space(self.original), _get_trailing_space(self.result)
        if before == after or not self.old or not self.new or self.removal.names_newline:
            return
        steps = [step for step in path if step.new[0] < step.new[1]]
        is_shown = bool(steps) and steps[-1].kind != "gap"
        if not is_shown or (before and not after):
            yield UnaccountedLine(self.new[-1].number + 1, "ending", self.new[-1].text)

    def _find_block_items(self, step: PathStep) -> list[int]:
        """Return which item accounts for each new line of a block."""
        found: list[int] = []
        row = step.new[0]
        for number in range(*step.items):
            if row < step.new[1] and self.items[number].key == self.new_keys[row]:
                found.append(number)
                row += 1
        return found

    def _find_depths(self, path: Sequence[PathStep]) -> dict[int, set[tuple[int, int]]]:
        """Return by block of shown lines the depths of its kept lines, in the snippet and in the file, in columns."""
        found: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for step in path:
            if step.kind == "keep":
                number = step.items[0]
                old, new = self.old[step.old[0]], self.new[step.new[0]]
                if old.text == new.text:
                    found[self._runs[number]].add((measure_indent(self.items[number].line), measure_indent(new.text)))
        for step in path:
            if step.kind != "block":
                continue
            for number, row in zip(self._find_block_items(step), range(*step.new), strict=False):
                run = self._runs[number]
                if not found[run]:
                    found[run].add((measure_indent(self.items[number].line), measure_indent(self.new[row].text)))
        return found

    @cached_property
    def _runs(self) -> list[int]:
        """The number of the block between markers that each item belongs to."""
        found, run = [], 0
        for at, item in enumerate(self.items):
            if item.kind in ("marker", "maybe_marker") or (at and item.hunk != self.items[at - 1].hunk):
                run += 1
            found.append(run)
        return found

    def _is_at(self, number: int, new: SolidLine, depths: dict[int, set[tuple[int, int]]]) -> bool:
        """Tell whether a line stands where the snippet shows it, up to one shift of its block."""
        item = self.items[number]
        if item.line == new.text or item.line.rstrip() == new.text:
            return True
        if new.text[len(new.text.rstrip()) :] not in ("", item.line[len(item.line.rstrip()) :]):
            return False
        return is_moved_alike(depths[self._runs[number]], measure_indent(item.line), measure_indent(new.text))

    def _find_shifted_gaps(self, path: Sequence[PathStep]) -> set[int]:
        """Return the steps of gaps that a written marker moves: all of its lines by as much, into or out of a block."""
        found: set[int] = set()
        for at, step in enumerate(path):
            if step.kind != "marker" or step.items[0] == step.items[1]:
                continue
            end = at + 1
            while end < len(path) and path[end].kind == "gap":
                end += 1
            rows = [
                (self.old[old], self.new[new])
                for gap in path[at + 1 : end]
                for old, new in zip(range(*gap.old), range(*gap.new), strict=True)
            ]
            shifts = {new.width - old.width for old, new in rows}
            same = all(old.text.lstrip() == new.text.lstrip() for old, new in rows)
            blocks = [path[other] for other in (at - 1, end) if 0 <= other < len(path) and path[other].kind == "block"]
            if len(shifts) == 1 and shifts != {0} and same and blocks:
                found.update(range(at + 1, end))
        return found

    def _rebuild_result(self, path: Sequence[PathStep], faults: Sequence[UnaccountedLine]) -> str | None:
        """Return the result with the file's own lines where no step accounts for a change, None if that is unsafe."""
        altered = {fault.line - 1 for fault in faults if fault.kind in ("altered", "blank_lines")}
        if not self._can_repair(path, altered):
            return None
        rows: list[str] = []
        for step in path:
            if _is_loss(step):
                rows += self._list_rows(self.old[step.old[0] : step.old[1]])
            elif step.kind in ("keep", "block"):
                rows += self._list_rows(self.new[step.new[0] : step.new[1]])
            elif step.kind == "gap":
                for old_at, new_at in zip(range(*step.old), range(*step.new), strict=True):
                    old, new = self.old[old_at], self.new[new_at]
                    rows += self._list_rows([old if new.number in altered else new])
        ends = self.result if path[-1].kind in ("keep", "block") else self.original
        if path[-1].kind == "marker" and len(path) > 1 and path[-2].kind in ("keep", "block"):
            ends = self.result
        return "\n".join(rows).rstrip() + (_get_trailing_space(ends) if ends.strip() else "")

    def _can_repair(self, path: Sequence[PathStep], altered: Set[int]) -> bool:
        """Tell whether all that is wrong lies apart from the edit: it may else be the edit that went wrong.

        So each line of the snippet has a place and is as sent, no line that is wrong is the snippet's or has only
        changed its place, none stands beside an accounted change, and no lost one is like a new line: that may have
        been put in its place, and gone to another.
        """
        written = [self.new_keys[row] for step in path if step.kind == "block" for row in range(*step.new)]
        gone = {self.old_keys[at] for step in path if step.kind == "block" for at in range(*step.old)}
        for at, step in enumerate(path):
            is_lost = _is_loss(step)
            if step.kind == "missing" or (step.kind in ("block", "keep") and step.fault and not is_lost):
                return False
            if step.kind in ("block", "keep") and any(self.new[row].number in altered for row in range(*step.new)):
                return False
            if step.kind == "added" and self.new_keys[step.new[0]] in gone | self.shown:
                return False
            if is_lost and any(
                _is_punctuation(key) or self._is_replaced(key, written) for key in self._get_old_keys(step)
            ):
                return False
            if step.kind == "gap" and any(
                self.new[row].number in altered and _is_punctuation(self.new_keys[row]) for row in range(*step.new)
            ):
                return False
            if (is_lost or step.kind == "added") and self._is_beside_change(path, at, is_lost=is_lost):
                return False
        return True

    def _get_old_keys(self, step: PathStep) -> list[str]:
        return self.old_keys[step.old[0] : step.old[1]]

    def _is_replaced(self, key: str, written: Sequence[str]) -> bool:
        self.work += len(written)
        return self.work > MAX_WORK or any(is_rewrite(key, new) for new in written)

    @staticmethod
    def _is_beside_change(path: Sequence[PathStep], at: int, *, is_lost: bool) -> bool:
        """Tell whether an accounted change stands next to a step, markers and faults between them aside.

        Beside lost lines a shown line counts as much: some of them may have gone rightly.
        """
        for direction in (-1, 1):
            other = at + direction
            while 0 <= other < len(path) and path[other].kind not in ("gap", "keep"):
                if path[other].kind == "block" and not path[other].fault:
                    return True
                other += direction
            if is_lost and 0 <= other < len(path) and path[other].kind == "keep":
                return True
        return False

    @staticmethod
    def _list_rows(lines: Sequence[SolidLine]) -> Iterator[str]:
        for line in lines:
            yield from line.above
            yield line.text


def _may_name(text: str, name: str) -> bool:
    """Tell whether a text has all words of a qualified name's last part: else no grammar finds that name in it."""
    return all(word in text or not word.isascii() for word in name.rsplit(".", 1)[-1].split())


def _is_loss(step: PathStep) -> bool:
    """Tell whether a step takes lines of the file away, puts none in their place, and is not accounted for."""
    return step.kind == "lost" or (step.kind == "block" and bool(step.fault) and step.new[0] == step.new[1])


def _get_trailing_space(text: str) -> str:
    """Return the newlines and blanks behind the last line that is not blank."""
    return text[len(text.rstrip()) :]


def _trace_path(come_from: dict[State, tuple[State, PathStep]], state: State) -> list[PathStep]:
    path: list[PathStep] = []
    while state in come_from:
        state, step = come_from[state]
        path.append(step)
    return path[::-1]


def _find_line_range(lines: Sequence[SolidLine], first: int, end: int) -> tuple[int, int]:
    """Return the range of lines that are not blank for a range of all lines."""
    return bisect_left(lines, first, key=lambda line: line.number), bisect_left(
        lines, end, key=lambda line: line.number
    )


def _join_solid_text(keys: Sequence[str]) -> str:
    return "".join("".join(key.split()) for key in keys)


def _is_punctuation(key: str) -> bool:
    """Tell whether a line holds brackets and signs only."""
    return not any(map(str.isalnum, key))


def _is_assignment(key: str) -> bool:
    """Tell whether a line sets a name or key (`a = 1`, `"a": 1`), so that a second one beside it replaces it."""
    name = find_key(key)
    if name is None or COMMENT.match(key):
        return False
    rest = key[key.find(name) + len(name) :].lstrip("\"'`?! ")
    return rest[:1] in ":=" and rest[:2] not in ("==", "=>", "::") and len(rest) > 1
