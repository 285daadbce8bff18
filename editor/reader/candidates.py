"""Finds the lines of the file that a shown line can match or replace, by text and by definition."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import log2

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import fuzz
from rapidfuzz.process import cdist

from editor.attribution.instruction import PlaceText, RemovalText
from editor.attribution.snippet import SnippetItem, find_section, measure_indent, read_items
from editor.attribution.statements import COMMENT, IMPORT, find_key, find_name, number_statements
from editor.syntax import Survey, survey
from editor.types import Sketch

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_TOKEN = re.compile(r"\w+|[^\w\s]")
_WORD = re.compile(r"\w")
_QUOTED = re.compile(r"([\"'`]).*?\1")
_TITLED = re.compile(r"(?:\w+\s*)(?:\(\s*)?([\"'`])(.+?)\1.*(?:\bdo\b(?:\s*\|.*\|)?|[{>:(])$")
_ENTRY = re.compile(r"-\s+(?:name|id|key|title|label)\s*:\s*[\"']?([^\"'#]+?)[\"']?$")
_LIKE = 50.0
_MAX_ALIKE = 64
_MIN_PREFIX = 8
_MAX_STATEMENT = 25
_MIN_LAYOUT = 12
_SAME_STATEMENT = 0.72


@lru_cache(maxsize=20_000)
def find_title(key: str) -> str | None:
    """Return the name that a line defines, or the title of the block or entry that it begins; None for none.

    Titles: `it "adds" do`, `- name: Publish`.
    """
    name = find_name(key)
    if name is not None:
        return name
    entry = _ENTRY.match(key)
    if entry:
        return entry[1]
    titled = _TITLED.match(key)
    return titled[2] if titled else None


class FileLines:
    """The lines of a file that are not blank, by their index: text, key (without indentation), width, blanks above.

    `starts` and `ends` are where each begins and ends in the text.
    `owners` are the names of the definitions that each line lies in, outermost first, its own included where it is a
    head. `weights` say how much it tells that a line is shown: little for brackets and for lines that stand often.
    """

    def __init__(self, text: str, language: str | None) -> None:
        self.text, self.language = text, language
        rows = text.split("\n")
        self.final_newline = rows[-1] == ""
        if self.final_newline:
            rows.pop()
        self.numbers = [number for number, row in enumerate(rows) if row.strip()]
        self.lines = [rows[number] for number in self.numbers]
        starts = [0, *accumulate(len(row) + 1 for row in rows)]
        self.starts = [starts[number] for number in self.numbers]
        self.ends = [start + len(line) for start, line in zip(self.starts, self.lines, strict=True)]
        ends = [-1, *self.numbers]
        self.above = [rows[before + 1 : number] for before, number in zip(ends, self.numbers, strict=False)]
        self.tail = rows[ends[-1] + 1 :]
        self.keys = [line.strip() for line in self.lines]
        self.widths = [measure_indent(line) for line in self.lines]
        self.names = [
            find_title(key) or find_section(line, language) for key, line in zip(self.keys, self.lines, strict=True)
        ]
        self.places: dict[str, list[int]] = defaultdict(list)
        for at, key in enumerate(self.keys):
            self.places[key].append(at)
        levels = [
            -1 if find_section(line, language) else width for line, width in zip(self.lines, self.widths, strict=True)
        ]
        self.owners = find_owners(list(zip(self.keys, levels, self.names, strict=True)))
        self.weights = np.array([self.compute_weight(key) for key in self.keys] or [0.0])[: len(self.keys)]
        self.counts = Counter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def compute_weight(self, key: str) -> float:
        """Return the weight of a shown line: how well it tells its place."""
        if not _WORD.search(key):
            return 0.3
        many = log2(max(1, len(self.places.get(key, ()))))
        return max(0.15, 1.2 + 0.3 * min(3.0, len(key) / 20) - 0.35 * min(4.0, many))

    @cached_property
    def uses_tabs(self) -> bool:
        """Return whether more lines are indented by tabs than by spaces."""
        return sum(line.startswith("\t") for line in self.lines) > sum(line.startswith("  ") for line in self.lines)

    @cached_property
    def survey(self) -> Survey | None:
        """The definitions and errors that the grammar finds in the file."""
        return survey(self.text, self.language)

    @cached_property
    def definitions(self) -> list[tuple[int, int, str]]:
        """The definitions over several lines with their comments and decorators: first line, end, simple name."""
        found = {}
        for symbol in self.survey.symbols if self.survey is not None else ():
            first, end = bisect_left(self.numbers, symbol.doc_line), bisect_left(self.numbers, symbol.end_line)
            if end - first > 1:
                found[first, end] = symbol.simple_name
        heads = {at for first, end in found for at in range(first, min(first + 12, end))}
        for at, name in enumerate(self.names):
            if name is None or at in heads:
                continue
            end = at + 1
            while end < len(self) and self.widths[end] > self.widths[at]:
                end += 1
            if end < len(self) and self.widths[end] == self.widths[at] and self.keys[end][0] in ")]}":
                end += 1
            if end > at + 2:
                found[at, end] = name
        return sorted((first, end, name) for (first, end), name in found.items())

    @cached_property
    def blanks_between(self) -> int:
        """How many blank lines most definitions have above them; 1 where there are no two."""
        counts = Counter(len(self.above[first]) for first, _, _ in self.definitions if first and self.above[first])
        return counts.most_common(1)[0][0] if counts else 1

    @cached_property
    def statements(self) -> list[int]:
        """The number of the statement of each line."""
        return number_statements(self.lines)

    @cached_property
    def can_insert_above(self) -> NDArray[np.bool_]:
        """Tell for each line whether a new statement may stand above it; the last entry is the file's end."""
        numbers = self.statements
        ends = {end for _, end, _ in self.definitions}
        between = [
            at == 0 or at in ends or numbers[at] != numbers[at - 1] or self.keys[at][0] in ")]}"
            for at in range(len(self))
        ]
        return np.array([*between, True])

    @lru_cache(maxsize=256)  # noqa: B019 (a file lives as long as its reading)
    def mask_definition(self, name: str) -> NDArray[np.bool_]:
        """Tell of each line whether it lies in a definition of a name."""
        return np.array([name in chain for chain in self.owners], dtype=np.bool_)


def find_owners(rows: Sequence[tuple[str, int, str | None]]) -> list[tuple[str, ...]]:
    """Return for rows of (key, width, name defined) the names of the definitions that each row lies in."""
    found: list[tuple[str, ...]] = []
    around: list[tuple[str, int]] = []
    for key, width, name in rows:
        closes = key[:1] in ")]}{" or key == "end"
        while around and (width < around[-1][1] or (width == around[-1][1] and not closes)):
            around.pop()
        if name and not closes:
            around.append((name, width))
        found.append(tuple(one for one, _ in around))
    return found


class Snippet:
    """The items of a lazy snippet, and what is said beside it.

    `columns` is the indentation of each item. `shifts` are the columns to add to it for each hunk; a hunk of which no
    line stands in the file has none. `verbatim` has (hunk, tab or space) for each kind of indentation of a hunk's lines
    that the file has too.
    """

    def __init__(self, sketch: Sketch, file: FileLines, said: Sequence[str]) -> None:
        items, texts = read_items(sketch, file.places, file.language)
        self.items: list[SnippetItem] = items
        self.said = " ".join((*said, *texts))
        self.removal, self.place = RemovalText([*said, *texts]), PlaceText(said)
        self.names = [
            None if item.kind == "marker" else find_title(item.key) or find_section(item.line, file.language)
            for item in items
        ]
        self.keys = [None if item.kind == "marker" else find_key(item.key) for item in items]
        self.owners = self._find_owners()
        self.columns = [measure_indent(item.line) for item in items]
        self.shown = {item.key for item in items if item.kind == "line"}
        self.verbatim: set[tuple[int, str]] = set()
        weights: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for item, column in zip(items, self.columns, strict=True):
            places = file.places.get(item.key, ()) if item.kind != "marker" and len(item.key) > 3 else ()
            if item.line[:1].isspace() and any(file.lines[at] == item.line for at in places[:200]):
                self.verbatim.add((item.hunk, item.line[0]))
            for at in places[:200]:
                weights[item.hunk][file.widths[at] - column] += 1 / len(places) ** 2
        self.shifts = {
            hunk: 0 if found.get(0, 0.0) >= 0.5 * max(found.values()) else max(found, key=lambda one: found[one])
            for hunk, found in weights.items()
        }
        self._shift_to_named(file)

    def _shift_to_named(self, file: FileLines) -> None:
        """Shift fences of which no line stands in the file to the depth of the definition next to which they go."""
        beside = [
            first
            for first, _, name in file.definitions
            if self.place.says_anything and (self.place.is_after(name) or self.place.is_before(name))
        ]
        for hunk in {item.hunk for item in self.items} - set(self.shifts) if beside else ():
            columns = [self.columns[at] for at, item in enumerate(self.items) if item.hunk == hunk and item.key]
            if columns:
                self.shifts[hunk] = file.widths[beside[0]] - min(columns)

    def __len__(self) -> int:
        return len(self.items)

    def _find_owners(self) -> list[tuple[str, ...]]:
        chains: list[tuple[str, ...]] = [()] * len(self.items)
        for hunk in {item.hunk for item in self.items}:
            solid = [
                at
                for at, item in enumerate(self.items)
                if item.hunk == hunk and (item.kind == "line" or (item.kind == "marker" and item.width >= 0))
            ]
            rows = [
                (
                    one.key,
                    measure_indent(one.line) if one.kind == "line" and one.width >= 0 else one.width,
                    self.names[at],
                )
                for at, one in ((at, self.items[at]) for at in solid)
            ]
            for at, chain in zip(solid, find_owners(rows), strict=True):
                chains[at] = chain
        return chains

    def compute_width(self, at: int) -> int:
        """Return the columns at which an item's line would stand in the file."""
        return self.columns[at] + self.shifts.get(self.items[at].hunk, 0)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Shown lines [item, item_end) that are another form of the file's lines [line, line_end).

    A `likeness` of 1: the same text in another layout.
    """

    item: int
    item_end: int
    line: int
    line_end: int
    likeness: float
    renames: bool = False


@lru_cache(maxsize=50_000)
def _split_first_tokens(key: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(key[:60])[:2])


def measure_likeness(old: str, new: str, ratio: float) -> float:
    """Return how likely one line is another form of another, in [0, 1): by letters, first words, name and key."""
    if ratio <= 0:
        return 0.0
    first, second = _split_first_tokens(old), _split_first_tokens(new)
    key, other = find_key(old), find_key(new)
    if (first == second and first and _WORD.match(first[0])) or (key and key == other):
        ratio = min(0.99, ratio + 0.1)
    if key and key == other and len(key) > 2 and not IMPORT.match(old):
        ratio = max(ratio, 0.62)
    if len(old) >= _MIN_PREFIX and new.startswith(old.rstrip(".,;:)")):
        ratio = max(ratio, 0.65)
    if key and other and key != other:
        ratio -= 0.25 if IMPORT.match(old) else 0.1
    name = find_name(old)
    if name and name == find_name(new):
        ratio = min(0.99, max(ratio, 0.6) + 0.15)
    return ratio


class LineCandidates:
    """The lines of the file that each item of a snippet may be.

    `same[item]` are those that it shows as they are, `alike[item]` those whose place it may take with how alike they
    are, `rewrites[item]` statements over several lines that begin there.
    """

    def __init__(self, file: FileLines, snippet: Snippet) -> None:
        self.file, self.snippet = file, snippet
        self.same: list[NDArray[np.int64]] = [self._find_same(item) for item in snippet.items]
        self.alike: list[dict[int, float]] = self._find_alike()
        self.rewrites: dict[int, list[Rewrite]] = defaultdict(list)
        self._pair_statements()
        self._pair_layouts()
        self._pair_comments()

    def _find_same(self, item: SnippetItem) -> NDArray[np.int64]:
        if item.kind == "marker":
            return np.empty(0, np.int64)
        if item.elided is None:
            return np.array(self.file.places.get(item.key, ()), np.int64)
        name = find_name(item.key)
        found = [
            at
            for at, key in enumerate(self.file.keys)
            if (name is not None and self.file.names[at] == name) or item.elided.fullmatch("".join(key.split()))
        ]
        return np.array(found, np.int64)

    def _find_alike(self) -> list[dict[int, float]]:
        found: list[dict[int, float]] = [{} for _ in self.snippet.items]
        rows = [at for at, item in enumerate(self.snippet.items) if item.kind != "marker" and len(item.key) > 5]
        columns = [key for key in self.file.places if len(key) > 5]
        if not rows or not columns:
            return found
        keys = [self.snippet.items[at].key for at in rows]
        table = cdist(keys, columns, scorer=fuzz.ratio, score_cutoff=_LIKE - 25, dtype=np.float32)
        for row, at in enumerate(rows):
            good = np.flatnonzero(table[row])
            if len(good) > _MAX_ALIKE:
                good = good[np.argsort(-table[row, good])[:_MAX_ALIKE]]
            for column in good.tolist():
                key = columns[column]
                if key == keys[row]:
                    continue
                value = measure_likeness(key, keys[row], float(table[row, column]) / 100)
                if value >= _LIKE / 100:
                    for place in self.file.places[key][:_MAX_ALIKE]:
                        found[at][place] = value
        return found

    def _pair_statements(self) -> None:
        """Pair statements over several lines that replace each other: lists of imports, signatures, calls."""
        keys = [item.key for item in self.snippet.items]
        marked = [item.kind != "line" for item in self.snippet.items]
        lines = [item.line if item.kind != "marker" else "-" for item in self.snippet.items]
        shown = [(a, z) for a, z in _group_statements(keys, number_statements(lines)) if not any(marked[a:z])]
        by_token: dict[tuple[str, ...], list[tuple[int, int, str]]] = defaultdict(list)
        wanted = {_split_first_tokens(keys[a])[:1] for a, _ in shown if keys[a]}
        for i, k in _group_statements(self.file.keys, self.file.statements):
            token = _split_first_tokens(self.file.keys[i])[:1]
            if token in wanted:
                by_token[token].append((i, k, "".join("".join(self.file.keys[i:k]).split())))
        for a, z in shown:
            if self.snippet.items[a].elided is not None:
                continue
            text = "".join("".join(keys[a:z]).split())
            for i, k, other in by_token.get(_split_first_tokens(keys[a])[:1], ()):
                if (k - i == 1 and z - a == 1) or self.file.keys[i:k] == keys[a:z]:
                    continue
                ratio = fuzz.ratio(other, text, score_cutoff=30) / 100
                if IMPORT.match(keys[a]):
                    same = find_key(" ".join(keys[a:z])) == find_key(" ".join(self.file.keys[i:k]))
                else:
                    same = self.snippet.names[a] is not None and self.snippet.names[a] == self.file.names[i]
                ratio = min(0.99, ratio + 0.3) if same and ratio else ratio
                name, old = self.snippet.names[a], self.file.names[i]
                if ratio >= _SAME_STATEMENT:
                    self.rewrites[a].append(Rewrite(a, z, i, k, ratio, bool(name and old and name != old)))

    def _pair_layouts(self) -> None:
        """Pair shown lines with lines of the file that have the same text, broken into lines in another way."""
        solid = ["".join(key.split()) for key in self.file.keys]
        starts = [0, *accumulate(map(len, solid))]
        line_at = {start: at for at, start in enumerate(starts)}
        whole = "".join(solid)
        items = self.snippet.items
        for a, item in enumerate(items):
            if item.kind != "line" or item.key in self.file.places:
                continue
            text, start, z = "", 0, a
            while start >= 0 and z < min(len(items), a + _MAX_STATEMENT) and items[z].kind == "line":
                text += "".join(items[z].key.split())
                z += 1
                start = whole.find(text, start)
                i, k = line_at.get(start), line_at.get(start + len(text))
                if i is not None and k is not None and len(text) >= _MIN_LAYOUT:
                    self.rewrites[a].append(Rewrite(a, z, i, k, 1.0))

    def _pair_comments(self) -> None:
        """Pair block comments above what is the same line."""
        keys = [item.key for item in self.snippet.items]
        theirs = _find_block_comments(self.file.keys)
        for a, z in _find_block_comments(keys):
            if z >= len(keys) or any(item.kind == "marker" for item in self.snippet.items[a:z]):
                continue
            for i, k in theirs:
                if (z - a == 1 and k - i == 1) or k >= len(self.file) or self.file.keys[i:k] == keys[a:z]:
                    continue
                name = self.snippet.names[z]
                if self.file.keys[k] == keys[z] or (name and name == self.file.names[k]):
                    self.rewrites[a].append(Rewrite(a, z, i, k, 0.9))


def _group_statements(keys: Sequence[str], numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the lines that belong together by their brackets or their statements' numbers, by where they begin."""
    depths = []
    for key in keys:
        text = _QUOTED.sub("", key)
        depths.append((text.count("(") + text.count("[") - text.count(")") - text.count("]"), text))
    found = []
    for at, key in enumerate(keys):
        depth = 0
        braces = key.startswith(("import", "export"))
        for end in range(at, min(at + _MAX_STATEMENT, len(keys))):
            depth += depths[end][0]
            if braces:
                depth += depths[end][1].count("{") - depths[end][1].count("}")
            if depth <= 0:
                found.append((at, end + 1))
                break
    starts = [at for at in range(len(numbers)) if not at or numbers[at] != numbers[at - 1]]
    # A statement has words in its last line, and does not begin with a comment.
    ranges = zip(starts, [*starts[1:], len(numbers)], strict=True)
    found += (
        (a, z)
        for a, z in ranges
        if 1 < z - a <= _MAX_STATEMENT and any(map(str.isalnum, keys[z - 1])) and not is_comment(keys[a])
    )
    return sorted(set(found))


def _find_block_comments(keys: Sequence[str]) -> list[tuple[int, int]]:
    found = []
    at = 0
    while at < len(keys):
        if keys[at].startswith("/*"):
            end = at
            while end < len(keys) - 1 and "*/" not in keys[end] and end - at < 60:
                end += 1
            found.append((at, end + 1))
            at = end
        at += 1
    return found


def is_comment(line: str) -> bool:
    """Return whether a line is a comment."""
    return COMMENT.match(line) is not None
