"""The lines that a path through a result does not account for, and the result rebuilt without them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from typing import Literal

from editor.attribution.block_rules import PathStep, WorkCount
from editor.attribution.snippet import get_trailing_space, is_moved_alike, measure_indent
from editor.attribution.statements import is_rewrite
from editor.attribution.texts import SearchTexts, SolidLine, is_punctuation
from editor.types import UnaccountedLine


class PathFaults:
    """Lists the unaccounted lines of a path, and rebuilds its result from the accounted changes."""

    def __init__(self, texts: SearchTexts, work: WorkCount) -> None:
        self.texts, self.work = texts, work
        self.items = texts.items
        self.old, self.old_keys = texts.old, texts.old_keys
        self.new, self.new_keys = texts.new, texts.new_keys

    def list_changes(self) -> tuple[UnaccountedLine, ...]:
        """Return the changed lines that the snippet does not show, or all of them if it shows each.

        They are reported instead of faults if a bound ended the search.
        """
        changes = list(self._list_changes())
        hidden = [line for line in changes if line.kind == "removed" or line.text.strip() not in self.texts.shown]
        return tuple(hidden or [*changes, UnaccountedLine(0, "missing", "")])

    def _list_changes(self) -> Iterator[UnaccountedLine]:
        for op in self.texts.ops:
            if op.equal:
                continue
            for at in range(op.a_start, op.a_end):
                yield UnaccountedLine(self.old[at].number + 1, "removed", self.old[at].text)
            for at in range(op.b_start, op.b_end):
                yield UnaccountedLine(self.new[at].number + 1, "added", self.new[at].text)

    def list_faults(self, path: Sequence[PathStep]) -> tuple[UnaccountedLine, ...]:
        """Return all lines that no step of a path accounts for."""
        return (*self._list_step_faults(path), *self._list_layout_faults(path), *self._list_end_faults(path))

    def _list_step_faults(self, path: Sequence[PathStep]) -> Iterator[UnaccountedLine]:
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

    def _list_layout_faults(self, path: Sequence[PathStep]) -> Iterator[UnaccountedLine]:
        """Yield the lines whose indentation, trailing spaces or blank lines above have changed for no reason."""
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
        """Yield the last line if the newlines and blank lines after it have changed for no reason."""
        before, after = get_trailing_space(self.texts.original), get_trailing_space(self.texts.result)
        if before == after or not self.old or not self.new or self.texts.removal.names_newline:
            return
        steps = [step for step in path if step.new[0] < step.new[1]]
        is_shown = bool(steps) and steps[-1].kind != "gap"
        if not is_shown or (before and not after):
            yield UnaccountedLine(self.new[-1].number + 1, "ending", self.new[-1].text)

    def _find_block_items(self, step: PathStep) -> list[int]:
        """Return the item that accounts for each new line of a block."""
        found: list[int] = []
        row = step.new[0]
        for number in range(*step.items):
            if row < step.new[1] and self.items[number].key == self.new_keys[row]:
                found.append(number)
                row += 1
        return found

    def _find_depths(self, path: Sequence[PathStep]) -> dict[int, set[tuple[int, int]]]:
        """Return for each run of items the columns of its kept lines, in the snippet and in the file."""
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
        """For each item, the number of the run between two markers that it belongs to."""
        found, run = [], 0
        for at, item in enumerate(self.items):
            if item.kind in ("marker", "maybe_marker") or (at and item.hunk != self.items[at - 1].hunk):
                run += 1
            found.append(run)
        return found

    def _is_at(self, number: int, new: SolidLine, depths: dict[int, set[tuple[int, int]]]) -> bool:
        """Return whether a line has the indentation that the snippet shows, or one shifted like the rest of its run."""
        item = self.items[number]
        if item.line == new.text or item.line.rstrip() == new.text:
            return True
        if get_trailing_space(new.text) not in ("", get_trailing_space(item.line)):
            return False
        return is_moved_alike(depths[self._runs[number]], measure_indent(item.line), measure_indent(new.text))

    def _find_shifted_gaps(self, path: Sequence[PathStep]) -> set[int]:
        """Return the gap steps whose lines a written marker moves into or out of a block, all equally far."""
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

    def rebuild_result(self, path: Sequence[PathStep], faults: Sequence[UnaccountedLine]) -> str | None:
        """Return the result with the file's own lines in place of unaccounted changes, None if that is unsafe."""
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
        ends = self.texts.result if path[-1].kind in ("keep", "block") else self.texts.original
        if path[-1].kind == "marker" and len(path) > 1 and path[-2].kind in ("keep", "block"):
            ends = self.texts.result
        return "\n".join(rows).rstrip() + (get_trailing_space(ends) if ends.strip() else "")

    def _can_repair(self, path: Sequence[PathStep], altered: Set[int]) -> bool:
        """Return whether all faults lie apart from the edit; otherwise the edit itself may have been applied wrongly.

        Each line of the snippet must have a place and be as sent. No faulty line may be the snippet's, have only moved,
        or be next to an accounted change. No lost line may be similar to a new line, which may have replaced it.
        """
        written = [self.new_keys[row] for step in path if step.kind == "block" for row in range(*step.new)]
        gone = {self.old_keys[at] for step in path if step.kind == "block" for at in range(*step.old)}
        for at, step in enumerate(path):
            is_lost = _is_loss(step)
            if step.kind == "missing" or (step.kind in ("block", "keep") and step.fault and not is_lost):
                return False
            if step.kind in ("block", "keep") and any(self.new[row].number in altered for row in range(*step.new)):
                return False
            if step.kind == "added" and self.new_keys[step.new[0]] in gone | self.texts.shown:
                return False
            lost_keys = self.old_keys[step.old[0] : step.old[1]] if is_lost else []
            if any(is_punctuation(key) or self._is_replaced(key, written) for key in lost_keys):
                return False
            if step.kind == "gap" and any(
                self.new[row].number in altered and is_punctuation(self.new_keys[row]) for row in range(*step.new)
            ):
                return False
            if (is_lost or step.kind == "added") and self._is_next_to_change(path, at, is_lost=is_lost):
                return False
        return True

    def _is_replaced(self, key: str, written: Sequence[str]) -> bool:
        self.work.add(len(written))
        return self.work.is_too_much or any(is_rewrite(key, new) for new in written)

    @staticmethod
    def _is_next_to_change(path: Sequence[PathStep], at: int, *, is_lost: bool) -> bool:
        """Return whether an accounted change is next to a step; markers and faults between them do not count.

        Next to lost lines a shown line counts as a change, since some of them may have been removed rightly.
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


def _is_loss(step: PathStep) -> bool:
    """Return whether a step removes lines of the file, adds none, and is not accounted for."""
    return step.kind == "lost" or (step.kind == "block" and bool(step.fault) and step.new[0] == step.new[1])
