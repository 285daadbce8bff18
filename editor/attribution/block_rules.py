"""The steps of a path, and the rules that say which blocks of new and removed lines are legal."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from editor.attribution.statements import (
    COMMENT,
    IMPORT,
    can_replace,
    find_key,
    find_name,
    group_statements,
    is_rewrite,
    number_statements,
)
from editor.attribution.texts import SearchTexts, SolidLine, find_line_range, is_punctuation
from editor.definitions import Symbol

MAX_WORK = 80_000
"""Lines of blocks, and pairs of their statements, that one search may judge."""

FAULT_COST = 1_000
"""The cost of a fault, above that of any path without one."""

_MAX_UNNAMED = 10
_NEAR = 40
# Languages in which two definitions of one name may be side by side.
_OVERLOADS = frozenset(
    {"java", "csharp", "cpp", "c", "typescript", "tsx", "css", "markdown", "html", "ruby", "bash", "sql"}
)
_WORD = re.compile(r"[\w$]+")

LastStep = Literal["start", "marker", "keep", "gap", "end", "before_keep", "before_gap", "before_marker", "before_end"]
"""The last step of a path, which decides what may follow. `start` and `end` are the markers implied at the snippet's
ends. After a block, `before_*` names the step that has to follow: a block is judged by its neighbours on both sides."""

State = tuple[int, int, int, LastStep]
"""The number of snippet items, file lines and result lines that a path has taken, and its last step."""


class PathStep(NamedTuple):
    """One step of a path: the ranges of items, file lines and result lines that it takes, and its fault or ""."""

    kind: Literal["keep", "gap", "block", "marker", "skip", "missing", "added", "lost"]
    items: tuple[int, int]
    old: tuple[int, int]
    new: tuple[int, int]
    fault: str = ""


class WorkCount:
    """The work that one search has done so far."""

    def __init__(self) -> None:
        self.done = 0

    def add(self, size: int) -> None:
        self.done += size

    @property
    def is_too_much(self) -> bool:
        return self.done > MAX_WORK


class BlockRules:
    """Judges blocks: new lines of the result, and the lines of the file that they replace."""

    def __init__(self, texts: SearchTexts, work: WorkCount) -> None:
        self.texts, self.work = texts, work
        self.file, self.items = texts.file, texts.items
        self.old, self.old_keys = texts.old, texts.old_keys
        self.new, self.new_keys = texts.new, texts.new_keys
        self._goes_alone: dict[int, bool] = {}
        self._judged: dict[tuple[object, ...], tuple[int, str]] = {}

    def judge(
        self, state: State, items: tuple[int, int], old: tuple[int, int], new: tuple[int, int], right: LastStep
    ) -> tuple[int, str]:
        """Return the cost of a block, and its fault or ""."""
        left = state[3]
        known = (items, old, new, left, right)
        if known not in self._judged:
            removed = range(*old)
            self.work.add(len(removed) + new[1] - new[0])
            if self.work.is_too_much:
                return FAULT_COST, "misplaced"
            fault = "" if self._is_owned_block(items, new) else "misplaced"
            if not fault and self._is_doubled(old, new, left, right):
                fault = "rival"
            if not fault and not removed:
                fault = self._judge_insertion(items, old[0], new, left, right)
            elif not fault:
                fault = self._judge_removal(items, old, new, left, right)
            size = len(removed) + (new[1] - new[0])
            price = 1 + len(removed) + (FAULT_COST + 100 * size if fault else 0)
            self._judged[known] = price, fault
        return self._judged[known]

    def _is_owned_block(self, items: tuple[int, int], new: tuple[int, int]) -> bool:
        numbers = [at for at in range(*items) if self.items[at].kind == "line"]
        return len(numbers) != new[1] - new[0] or all(
            self.texts.is_owned(at, row) for at, row in zip(numbers, range(*new), strict=True)
        )

    def _is_doubled(self, old: tuple[int, int], new: tuple[int, int], left: LastStep, right: LastStep) -> bool:
        """Return whether a new line repeats an unshown line next to it."""
        added = self.new_keys[new[0] : new[1]]
        if not added:
            return False
        above = self.old_keys[old[0] - 1] if left in ("gap", "marker", "start") and old[0] else ""
        below = self.old_keys[old[1]] if right != "before_keep" and old[1] < len(self.old) else ""
        neighbours = {above} if left == "gap" else set()
        neighbours |= {below} if right == "before_gap" else set()
        doubled = {key for key in neighbours if key in added}
        doubled |= {above} if above == added[0] else set()
        doubled |= {below} if below == added[-1] else set()
        return not all(map(is_punctuation, doubled))

    def _judge_insertion(
        self, items: tuple[int, int], old: int, new: tuple[int, int], left: LastStep, right: LastStep
    ) -> str:
        """Judge new lines that replace nothing: a shown line, or markers on both sides, must say where they belong."""
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
        """Judge new lines between a shown line and a marker: they must not redefine what the marker hides."""
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
        near_import = any(line is not None and IMPORT.match(line.text) for line in (above, below))
        if left == "start" and not (above is None or (is_import and near_import)):
            return "misplaced"
        is_end = below is None or below.width < depth or below.key.startswith("if __name__ ")
        if right == "before_end" and left != "start" and not is_end:
            return "misplaced"
        if below is not None and below.width > depth:
            return "misplaced"
        return self._judge_names(old, added)

    def _judge_names(self, old: int, added: Sequence[SolidLine]) -> str:
        """Judge new lines above a line of the file: they must not define or assign again what is around them."""
        sides = range(old, len(self.old)), range(old - 1, -1, -1)
        return "rival" if self._redefines(added) or any(self._has_reassigned(side, added) for side in sides) else ""

    def _is_named_place(self, old: int) -> bool:
        """Return whether the instruction says that new code goes above a line of the file."""
        head = old
        while head < len(self.old) and (COMMENT.match(self.old[head].text) or self.old_keys[head].startswith("@")):
            head += 1
        return any(
            (end == old and self.texts.place.is_after(name)) or (first == head and self.texts.place.is_before(name))
            for first, end, name in self.file.definitions
        )

    def _has_rivals(self, side: range, added: Sequence[SolidLine], items: tuple[int, int]) -> bool:
        """Return whether an implied gap holds lines that the new lines may be meant to replace."""
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
        """Return whether kept lines nearby, in the same block, assign a name or key that the new lines assign."""
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
    def _redefinitions(self) -> dict[int, str]:
        """Lines of the result that define a name of the file more often than the file does."""
        before, after = self.texts.surveys
        if before is None or after is None or self.texts.language in _OVERLOADS:
            return {}
        stood = Counter(symbol.name for symbol in before.symbols)
        stands = Counter(symbol.name for symbol in after.symbols)
        return {
            symbol.name_line: symbol.name for symbol in after.symbols if 0 < stood[symbol.name] < stands[symbol.name]
        }

    def _redefines(self, added: Sequence[SolidLine]) -> bool:
        if any(seen is not None and not seen.has_symbols for seen in self.texts.surveys):
            return any(find_name(line.text) in self.file.definition_names for line in added)
        return any(line.number in self._redefinitions and not line.key.startswith("- ") for line in added)

    def _judge_removal(
        self, items: tuple[int, int], old: tuple[int, int], new: tuple[int, int], left: LastStep, right: LastStep
    ) -> str:
        """Judge removed lines: the snippet or the instruction must remove, replace or name each of them."""
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
        # A line that only moves replaces no other.
        gone = Counter(self.old_keys[at] for at in range(*old))
        new_lines = [line.text for line in added if not gone[line.key]]
        new_groups = group_statements(new_lines, number_statements(new_lines))
        self.work.add(len(old_groups) * len(new_groups))
        if self.work.is_too_much:
            return "removed"
        next_to_shown = left == "keep" or right == "before_keep"
        if definitions or not can_replace(old_groups, new_groups, pairs_comments=next_to_shown):
            return "removed"
        return "removed" if not shown and self._loses_definition(old, added, shown=False) else ""

    def _is_same_definition(self, old: tuple[int, int], added: Sequence[SolidLine]) -> bool:
        """Return whether removed and new lines begin with the head of one definition."""
        name = find_name(self.old[old[0]].text)
        return name is not None and bool(added) and name == find_name(added[0].text)

    def _find_joined_imports(self, old: tuple[int, int], added: Sequence[SolidLine]) -> set[int]:
        """Return the removed imports whose names are all in a new import of the same module."""
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
        """Return whether a line of closing brackets is removed for no other, while its opening line stays."""
        closers = Counter(line.key for line in added if is_punctuation(line.key))
        for at in removed:
            line = self.old[at]
            if not is_punctuation(line.key):
                continue
            opened = any(self.old[other].width == line.width for other in removed if other < at)
            if not opened:
                closers[line.key] -= 1
                if closers[line.key] < 0:
                    return True
        return False

    def _find_explained(self, old: tuple[int, int]) -> set[int]:
        """Return the removed lines accounted for without their neighbours; a statement is removed as a whole."""
        numbers = self.file.statements
        found = {at for at in range(*old) if self._is_explained(at, old)}
        heads = {numbers[at] for at in found if at == 0 or numbers[at - 1] != numbers[at]}
        for at in range(*old):
            # Brackets go with a removed line next to them.
            if is_punctuation(self.old_keys[at]) and (at - 1 in found or at + 1 in found):
                found.add(at)
        found |= {at for at in range(*old) if numbers[at] in heads}
        for at in range(old[1] - 2, old[0] - 1, -1):
            if at + 1 in found and COMMENT.match(self.old[at].text) and self.old[at].width == self.old[at + 1].width:
                found.add(at)
        return found

    def _is_explained(self, at: int, old: tuple[int, int]) -> bool:
        """Return whether a removed line is accounted for without its neighbours: rewritten, moved, or named."""
        if at not in self._goes_alone:
            key = self.old_keys[at]
            is_moved = self.file.counts[key] == 1 == len(self.texts.new_places.get(key, ())) and key in self.texts.shown
            names = self.texts.removal.names_line(self.old[at].text)
            self._goes_alone[at] = (
                is_moved
                or names
                or (any(first <= at < end for first, end in self._snippet_definitions) and at in self._rewritten_lines)
            )
        return self._goes_alone[at] or any(
            old[0] <= first and end - is_punctuation(self.old_keys[end - 1]) <= old[1] and first <= at < end
            for first, end in self._removal_definitions
        )

    @cached_property
    def _removal_definitions(self) -> list[tuple[int, int]]:
        if not self.texts.removal.says_anything:
            return []
        return [(first, end) for first, end, name in self.file.definitions if self.texts.removal.names_definition(name)]

    def _loses_definition(self, old: tuple[int, int], added: Sequence[SolidLine], *, shown: bool) -> bool:
        """Return whether the head of a definition is removed that no new line defines again and no text names.

        Where two definitions end alike, an alignment may take the end of one for the end of the other.
        """
        names = {find_name(line.text) for line in added}
        definitions = self.file.definitions
        within = definitions[bisect_left(definitions, (old[0],)) : bisect_left(definitions, (old[1],))]
        lost = [name for _, _, name in within if not self.texts.removal.names_definition(name)]
        # Next to a marker no definition is renamed to an existing name: the marker may hide the lost definition.
        stood = set() if shown else self.file.definition_names
        if len({name for name in names if name} - stood) >= len(lost):
            return False
        return not all(name.rsplit(".", 1)[-1] in names or self._is_moved(name) for name in lost)

    def _is_moved(self, name: str) -> bool:
        if not _may_name(self.texts.result, name):
            return False
        after = self.texts.surveys[1]
        simple = name.rsplit(".", 1)[-1]
        return after is not None and any(symbol.simple_name == simple for symbol in after.symbols)

    @cached_property
    def _snippet_definitions(self) -> list[tuple[int, int]]:
        """The definitions of the file that the snippet may rewrite, because it has the words of their names.

        No other can be in `_rewritten_lines`, which needs a parse of the result.
        """
        shown = "\n".join(item.key for item in self.items if item.kind != "marker")
        lone = (symbol for symbol in self.file.lone_symbols if _may_name(shown, symbol.name))
        return [find_line_range(self.old, symbol.name_line, symbol.end_line) for symbol in lone]

    @cached_property
    def _rewritten_lines(self) -> frozenset[int]:
        """Lines of the file in definitions that the snippet rewrites from head to end, without a marker in between."""
        before, after = self.texts.surveys
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
            if len(names[symbol.name]) != 1 or self.texts.find_new_key(symbol.name_line) not in starts:
                continue
            first, end = find_line_range(self.new, symbol.name_line, symbol.end_line)
            wanted = self.new_keys[first:end]
            if wanted and any(keys[at : at + len(wanted)] == wanted for at in starts[wanted[0]]):
                gone = names[symbol.name][0]
                found |= set(range(*find_line_range(self.old, gone.name_line, gone.end_line)))
        return frozenset(found)


def _may_name(text: str, name: str) -> bool:
    """Return whether a text has all words of a qualified name's last part; otherwise no parse finds that name in it."""
    return all(word in text or not word.isascii() for word in name.rsplit(".", 1)[-1].split())


def _join_solid_text(keys: Sequence[str]) -> str:
    return "".join("".join(key.split()) for key in keys)


def _is_assignment(key: str) -> bool:
    """Return whether a line assigns a name or key (`a = 1`, `"a": 1`), so that a second such line replaces it."""
    name = find_key(key)
    if name is None or COMMENT.match(key):
        return False
    rest = key[key.find(name) + len(name) :].lstrip("\"'`?! ")
    return rest[:1] in ":=" and rest[:2] not in ("==", "=>", "::") and len(rest) > 1
