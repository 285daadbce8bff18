"""Notes on what changed in a file since it was first sent.

A line edit says what lines of the first version read now; line numbers are always the first version's. What was said
before and is true still is not said again: a later note replaces the earlier ones on the lines that it is about. Such
errata are followed where an overwritten field alone is not ('Models take notes at prefill', arXiv 2606.17107).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from editor.diff import line_opcodes
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens

CONTEXT_LINES = 2
"""Unchanged lines that a note shows on each side of a change, as part of the lines that it is about."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Lines [first, end) of a file's first version, from 0, now read `lines`, each with its newline."""

    first: int
    end: int
    lines: tuple[str, ...]

    def covers(self, other: LineEdit) -> bool:
        """Whether it is about all lines that the other is about."""
        return self.first <= other.first and other.end <= self.end


def split_lines(text: str) -> list[str]:
    """The lines with their newlines; the last one may lack it."""
    return _LINE.findall(text)


def diff_lines(old: Sequence[str], new: Sequence[str]) -> tuple[LineEdit, ...]:
    """The edits that turn lines into others, in order; no two touch."""
    ops = (op for op in line_opcodes(old, new) if not op.equal)
    return tuple(LineEdit(op.a_start, op.a_end, tuple(new[op.b_start : op.b_end])) for op in ops)


def apply_edits(old: Sequence[str], edits: Sequence[LineEdit], first: int = 0, end: int | None = None) -> list[str]:
    """Lines [first, end) of the first version as they read with the edits, which ascend and lie within."""
    made: list[str] = []
    for edit in edits:
        made += [*old[first : edit.first], *edit.lines]
        first = edit.end
    return made + list(old[first:end])


def find_new_edits(
    old: Sequence[str], said: Sequence[LineEdit], wanted: Sequence[LineEdit], context: int = CONTEXT_LINES
) -> tuple[LineEdit, ...]:
    """What to say after `said`, so that all together reads as `wanted`; both ascend, none of either overlap.

    Each edit holds up to `context` (at least 1) unchanged lines on each side of what changed, so that near changes are
    one and none is about no line, but for an empty file's. Where a change touches what was said, the new edit is about
    all of it: whoever puts the lines of one edit after the other in their place has the file.
    """
    changes = [
        LineEdit(first, end, tuple(apply_edits(old, want, first, end)))
        for first, end, told, want in _group_edits(said, wanted)
        if apply_edits(old, told, first, end) != apply_edits(old, want, first, end)
    ]
    joined: list[LineEdit] = []
    for change in changes:
        last = joined[-1] if joined else None
        near = last is not None and change.first - last.end <= 2 * context
        if last is not None and near and not any(last.end <= edit.first < change.first for edit in said):
            lines = (*last.lines, *old[last.end : change.first], *change.lines)
            joined[-1] = LineEdit(last.first, change.end, lines)
        else:
            joined.append(change)
    return tuple(_widen(old, edit, [*said, *joined], context) for edit in joined)


def merge_edits(said: Sequence[LineEdit], more: Sequence[LineEdit]) -> tuple[LineEdit, ...]:
    """What holds when `more` was said behind `said`: of edits of the same lines the later."""
    kept = [edit for edit in said if not any(later.covers(edit) for later in more)]
    return tuple(sorted([*kept, *more], key=lambda edit: edit.first))


def render_note(path: str, edit: LineEdit) -> str:
    """An edit in words. The lines that it names, counted from 1, and those that it shows stand for each other."""
    shown = "".join(edit.lines)
    shown += "\n" if shown and not shown.endswith("\n") else ""
    fence = "```"
    while fence in shown:
        fence += "`"
    lines = f"line {edit.end}" if edit.end - edit.first == 1 else f"lines {edit.first + 1}-{edit.end}"
    if edit.first == edit.end:  # of an empty file
        said = f"{path} was empty when it was shown. It now reads:"
    elif shown:
        said = f"{path} was edited after it was shown. This supersedes {lines} of {path}, which now read:"
    else:
        return f"{path} was edited after it was shown. This supersedes {lines} of {path}, which were deleted.\n"
    return f"{said}\n{fence}\n{shown}{fence}\n"


def _widen(old: Sequence[str], edit: LineEdit, others: Sequence[LineEdit], context: int) -> LineEdit:
    """The edit with up to so many unchanged lines on each side, short of what other edits are about."""
    before = max([0, *(other.end for other in others if other.end <= edit.first and other is not edit)])
    behind = min([len(old), *(other.first for other in others if other.first >= edit.end and other is not edit)])
    first, end = max(before, edit.first - context), min(behind, edit.end + context)
    return LineEdit(first, end, (*old[first : edit.first], *edit.lines, *old[edit.end : end]))


def _group_edits(
    said: Sequence[LineEdit], wanted: Sequence[LineEdit]
) -> Iterator[tuple[int, int, list[LineEdit], list[LineEdit]]]:
    """Edits that touch one another, directly or through others: the range of all, and those of each side."""
    both = sorted([(edit, 0) for edit in said] + [(edit, 1) for edit in wanted], key=lambda each: each[0].first)
    group: tuple[list[LineEdit], list[LineEdit]] = ([], [])
    first = end = -1
    for edit, side in both:
        if end >= 0 and edit.first > end:
            yield first, end, *group
            group, end = ([], []), -1
        if end < 0:
            first = edit.first
        end = max(end, edit.end)
        group[side].append(edit)
    if end >= 0:
        yield first, end, *group


REBASE_SHARE = 0.25
"""Of a file's tokens: where its notes take more, the file is written anew (measured: docs/reuse.md, Overlay)."""


@dataclass(frozen=True, slots=True)
class _Note:
    """One edit of a file, said before a message."""

    path: str
    message: int
    edit: LineEdit
    text: str
    num_tokens: int


class ChangeNotes:
    """What was said of files behind them. The versions that line numbers refer to are the caller's."""

    def __init__(self, tokenizer: BPETokenizer, rebase_share: float | None = None) -> None:
        self._tokenizer = tokenizer
        self._rebase_share = REBASE_SHARE if rebase_share is None else rebase_share
        self._notes: list[_Note] = []

    @property
    def paths(self) -> frozenset[str]:
        """Files that have notes."""
        return frozenset(each.path for each in self._notes)

    def list_before(self, message: int) -> tuple[str, ...]:
        """The notes that stand before a message's text."""
        return tuple(each.text for each in self._notes if each.message == message)

    def forget_from(self, message: int) -> None:
        """Those before this message and later ones are not in the prompt any more."""
        self._notes = [each for each in self._notes if each.message < message]

    def drop(self, paths: Collection[str]) -> None:
        """These files are written anew, or are gone."""
        self._notes = [each for each in self._notes if each.path not in paths]

    def find_over_share(self, shown: Mapping[str, FileTokens], now: Mapping[str, FileTokens]) -> frozenset[str]:
        """Files whose notes, with those that are to come, would take more than the share of their tokens."""
        over = set()
        for path, first in shown.items():
            if path in now and now[path].content_hash != first.content_hash:
                new = sum(each.num_tokens for each in self._make_notes(0, path, first, now[path]))
                said = sum(each.num_tokens for each in self._notes if each.path == path)
                if said + new > self._rebase_share * len(first):
                    over.add(path)
        return frozenset(over)

    def add(self, message: int, shown: Mapping[str, FileTokens], now: Mapping[str, FileTokens]) -> tuple[str, ...]:
        """Put what is not said yet before a message; return the files that stand with notes."""
        for path, first in shown.items():
            if now[path].content_hash != first.content_hash or path in self.paths:
                self._notes += self._make_notes(message, path, first, now[path])
        return tuple(path for path in shown if path in self.paths)

    def _make_notes(self, message: int, path: str, first: FileTokens, now: FileTokens) -> Iterator[_Note]:
        old = split_lines(self._tokenizer.decode(first.token_ids.tolist()))
        wanted = diff_lines(old, split_lines(self._tokenizer.decode(now.token_ids.tolist())))
        said: tuple[LineEdit, ...] = ()
        for each in self._notes:
            if each.path == path:
                said = merge_edits(said, [each.edit])
        for edit in find_new_edits(old, said, wanted):
            text = render_note(path, edit)
            yield _Note(path, message, edit, text, len(self._tokenizer.encode(text)))
