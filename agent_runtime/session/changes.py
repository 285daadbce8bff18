"""Follows the changes of the files of a prompt: orders the files by how often they change, and notes what changed.

A note quotes lines of a file's first version and gives their new text; line numbers always refer to the first version.
Text that an earlier note gave, and that still holds, is not repeated: a later note supersedes earlier ones on its
lines. Models follow such corrections better than an overwritten field ('Models take notes at prefill', arXiv
2606.17107).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from editor.diff import line_opcodes
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens

HORIZON_TURNS = 3
"""Turns within which a new order has to pay off. Measured (docs/reuse.md): 1 to 10 differ little; 100 loses a third of
the gain, since files do not stay in the prompt that long, nor keep their rate of change."""

DECAY = 0.9
"""Weight of a turn relative to the next one: about ten turns are remembered."""

PRIOR_CHANCE = 0.05
"""Chance of a change of an unknown file."""

PRIOR_TURNS = 10.0
"""Weight of the prior in turns: after so many without a change the chance has halved."""


@dataclass(frozen=True, slots=True)
class FileCost:
    """A file's tokens in the prompt, and the probability that it changes before the next turn, in [0, 1)."""

    num_tokens: int
    chance: float

    @property
    def odds_per_token(self) -> float:
        """The sort key: files with low odds come first."""
        return self.chance / (1.0 - self.chance) / self.num_tokens if self.num_tokens else inf


def estimate_prefill(order: Sequence[str], files: Mapping[str, FileCost]) -> float:
    """Return the expected number of file tokens that the next turn prefills: all from the first changed file on.

    Files change independently, and a changed file counts as a whole. The text after the files is left out: any change
    prefills it, whatever the order.
    """
    left = float(sum(files[path].num_tokens for path in order))
    none_before, expected = 1.0, 0.0
    for path in order:
        file = files[path]
        expected += none_before * file.chance * left
        none_before *= 1.0 - file.chance
        left -= file.num_tokens
    return expected


def find_cheapest_order(files: Mapping[str, FileCost], current: Sequence[str] = ()) -> list[str]:
    """Return the order with the least `estimate_prefill`: ascending odds of a change per token.

    Swapping neighbours A, B changes the estimate by pA nB (1 - pB) - pB nA (1 - pA), times a factor that does not
    depend on their order: A comes first if pA / (1 - pA) / nA is less. Ties keep `current`'s order, then by path.
    """
    places = {path: place for place, path in enumerate(current)}
    return sorted(files, key=lambda path: (files[path].odds_per_token, places.get(path, len(places)), path))


def choose_order(
    current: Sequence[str],
    files: Mapping[str, FileCost],
    *,
    num_cached: int,
    num_after: int,
    horizon: float = HORIZON_TURNS,
) -> list[str]:
    """Return the order of `files` with the least cost over this turn and the next `horizon` turns.

    current: the order in the last prompt. num_cached: file tokens, in the current order, whose KV is still valid: those
    before the first file that was changed, removed or added. num_after: tokens after the files, which any change before
    them prefills.

    A file keeps its place unless moving it saves more than the prefill of everything after it. Orders that share a
    prefix with the current one cost the same now, so for each prefix only the cheapest continuation is compared: one
    order a file. The result is the best of all orders (a test compares them).
    """
    kept = [path for path in current if path in files]
    new = {path: file for path, file in files.items() if path not in set(kept)}
    best: list[str] = []
    least = inf
    for num_first in range(len(kept), -1, -1):
        first = kept[:num_first]
        order = first + find_cheapest_order({**{path: files[path] for path in kept[num_first:]}, **new}, kept)
        same = min(num_cached, _count_shared(order, kept, files))
        is_all = same == sum(files[path].num_tokens for path in order)
        now = 0 if is_all else sum(files[path].num_tokens for path in order) - same + num_after
        cost = now + horizon * estimate_prefill(order, files)
        if cost < least * (1.0 - 1e-9):  # a rounding error is no gain
            best, least = order, cost
    return best


def _count_shared(order: Sequence[str], current: Sequence[str], files: Mapping[str, FileCost]) -> int:
    """Return the tokens of the files in the common prefix of two orders."""
    shared = 0
    for one, other in zip(order, current, strict=False):
        if one != other:
            break
        shared += files[one].num_tokens
    return shared


@dataclass(slots=True)
class _FileHistory:
    """Decayed sums of one file, as of a turn."""

    turn: int
    num_turns: float = 0.0
    num_changes: float = 0.0


class ChangeRates:
    """Estimates each file's chance of a change: the decayed share of turns at which it had changed, with a prior.

    A file that has been out of the prompt for long counts as unknown again.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._histories: dict[str, _FileHistory] = {}

    def observe(self, paths: Iterable[str], changed: Collection[str]) -> None:
        """Record a turn: the files in the prompt, and which of them had changed."""
        self._turn += 1
        for path in paths:
            history = self._histories.get(path) or _FileHistory(self._turn)
            faded = DECAY ** (self._turn - history.turn)
            self._histories[path] = _FileHistory(
                self._turn, history.num_turns * faded + 1.0, history.num_changes * faded + (path in changed)
            )

    def estimate_chance(self, path: str) -> float:
        """Return the chance that the file will have changed at the next turn, strictly between 0 and 1."""
        history = self._histories.get(path) or _FileHistory(self._turn)
        faded = DECAY ** (self._turn - history.turn)
        num_changes = history.num_changes * faded + PRIOR_CHANCE * PRIOR_TURNS
        return num_changes / (history.num_turns * faded + PRIOR_TURNS)


CONTEXT_LINES = 2
"""Unchanged lines on each side of a change that its note shows, and supersedes, too."""

REBASE_SHARE = 0.25
"""If a file's notes exceed this share of its tokens, the file is written anew (measured: docs/reuse.md, Overlay)."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Lines [first, end) of a file's first version, from 0, become `lines`, each with its newline."""

    first: int
    end: int
    lines: tuple[str, ...]

    def covers(self, other: LineEdit) -> bool:
        """Whether its range includes the other's."""
        return self.first <= other.first and other.end <= self.end


def split_lines(text: str) -> list[str]:
    """Return the lines with their newlines; the last one may lack it."""
    return _LINE.findall(text)


def diff_lines(old: Sequence[str], new: Sequence[str]) -> tuple[LineEdit, ...]:
    """Return the edits that turn `old` into `new`, ascending; no two touch."""
    ops = (op for op in line_opcodes(old, new) if not op.equal)
    return tuple(LineEdit(op.a_start, op.a_end, tuple(new[op.b_start : op.b_end])) for op in ops)


def apply_edits(old: Sequence[str], edits: Sequence[LineEdit], first: int = 0, end: int | None = None) -> list[str]:
    """Apply edits to lines [first, end) of the first version. The edits ascend and lie within that range."""
    made: list[str] = []
    for edit in edits:
        made += [*old[first : edit.first], *edit.lines]
        first = edit.end
    return made + list(old[first:end])


def find_new_edits(
    old: Sequence[str], said: Sequence[LineEdit], wanted: Sequence[LineEdit], context: int = CONTEXT_LINES
) -> tuple[LineEdit, ...]:
    """Return the edits to note after `said`, so that all notes together give `wanted`.

    `said` and `wanted` ascend and do not overlap. Each edit that is returned includes up to `context` (at least 1)
    unchanged lines on each side, so that near changes become one and only an edit of an empty file has an empty range.
    A new edit that touches earlier ones covers them whole: applying each edit in turn gives the file.
    """
    changes = [
        LineEdit(first, end, tuple(apply_edits(old, want, first, end)))
        for first, end, before, want in _group_edits(said, wanted)
        if apply_edits(old, before, first, end) != apply_edits(old, want, first, end)
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
    """Return the edits that hold after `more` followed `said`: a later edit replaces those that it covers."""
    kept = [edit for edit in said if not any(later.covers(edit) for later in more)]
    return tuple(sorted([*kept, *more], key=lambda edit: edit.first))


def render_note(path: str, edit: LineEdit) -> str:
    """Write an edit as text for the model. Line numbers count from 1."""
    shown = "".join(edit.lines)
    shown += "\n" if shown and not shown.endswith("\n") else ""
    fence = "```"
    while fence in shown:
        fence += "`"
    lines = f"line {edit.end}" if edit.end - edit.first == 1 else f"lines {edit.first + 1}-{edit.end}"
    if edit.first == edit.end:  # the file was empty
        said = f"{path} was empty when it was shown. It now reads:"
    elif shown:
        said = f"{path} was edited after it was shown. This supersedes {lines} of {path}, which now read:"
    else:
        return f"{path} was edited after it was shown. This supersedes {lines} of {path}, which were deleted.\n"
    return f"{said}\n{fence}\n{shown}{fence}\n"


def _widen(old: Sequence[str], edit: LineEdit, others: Sequence[LineEdit], context: int) -> LineEdit:
    """Add up to `context` unchanged lines on each side, but none that another edit covers."""
    before = max([0, *(other.end for other in others if other.end <= edit.first and other is not edit)])
    after = min([len(old), *(other.first for other in others if other.first >= edit.end and other is not edit)])
    first, end = max(before, edit.first - context), min(after, edit.end + context)
    return LineEdit(first, end, (*old[first : edit.first], *edit.lines, *old[edit.end : end]))


def _group_edits(
    said: Sequence[LineEdit], wanted: Sequence[LineEdit]
) -> Iterator[tuple[int, int, list[LineEdit], list[LineEdit]]]:
    """Group edits that touch, directly or through others. Yields each group's range and its edits of either side."""
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


@dataclass(frozen=True, slots=True)
class _Note:
    """One edit of a file, and the message before which the prompt mentions it."""

    path: str
    message: int
    edit: LineEdit
    text: str
    num_tokens: int


class ChangeNotes:
    """The notes of a session. The caller keeps the first versions, to which line numbers refer."""

    def __init__(self, tokenizer: BPETokenizer, rebase_share: float | None = None) -> None:
        self._tokenizer = tokenizer
        self._rebase_share = REBASE_SHARE if rebase_share is None else rebase_share
        self._notes: list[_Note] = []

    @property
    def paths(self) -> frozenset[str]:
        """Files that have notes."""
        return frozenset(each.path for each in self._notes)

    def list_before(self, message: int) -> tuple[str, ...]:
        """Return the texts of the notes that stand directly before a message."""
        return tuple(each.text for each in self._notes if each.message == message)

    def forget_from(self, message: int) -> None:
        """Drop the notes before this message and later ones, which are no longer in the prompt."""
        self._notes = [each for each in self._notes if each.message < message]

    def drop(self, paths: Collection[str]) -> None:
        """Drop the notes on these files, which are written anew or gone."""
        self._notes = [each for each in self._notes if each.path not in paths]

    def find_over_share(self, shown: Mapping[str, FileTokens], now: Mapping[str, FileTokens]) -> frozenset[str]:
        """Return the files whose notes, including those to be added, exceed the allowed share of their tokens."""
        over = set()
        for path, first in shown.items():
            if path in now and now[path].content_hash != first.content_hash:
                new = sum(each.num_tokens for each in self._make_notes(0, path, first, now[path]))
                old = sum(each.num_tokens for each in self._notes if each.path == path)
                if old + new > self._rebase_share * len(first):
                    over.add(path)
        return frozenset(over)

    def add(self, message: int, shown: Mapping[str, FileTokens], now: Mapping[str, FileTokens]) -> tuple[str, ...]:
        """Add the missing notes before a message; return the files that have notes."""
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
