"""Make snippets that imitate coding models, from real edits.

style              what it looks like
minimal            each change with a few lines about it, markers between, the outer markers often missing
context            the changes with the first and last lines of the definitions about them, markers for the rest
whole_def          the smallest definition about each change, whole or with a marker for a long run inside
signature          the header of the definition about each change, its body left out as far as it stays
only_changed       the changed lines alone
no_markers         each change with lines about it, and nothing that says where lines are left out
chat               prose, and fences with a change or more each, in the file's order or another
odd_marker         markers in uncommon words, or plain dots
dedented           an excerpt moved to column 0
deletion_omitted   lines that are to go are left out between their neighbours
deletion_comment   a comment stands where lines are to go
deletion_told      lines that are to go are left out, and the instruction names them

`benchmarks.snippets.styles` makes snippets with one reading; these are as careless as a model's: a snippet may have
several readings, one of which is right. A style is a pure function of a change and a random generator. Generators are
seeded with text, so a snippet is the same in every process.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

from rapidfuzz.fuzz import ratio

from benchmarks.cases import TEST_LAYOUT, TEST_WORDING, Case, Part, Record, find_part, read_records
from benchmarks.edit_formats import Span
from benchmarks.snippets.changes import (
    ODD_WORDINGS,
    WORD,
    WORDINGS,
    Change,
    Marker,
    dedent,
    fill_gaps,
    find_change,
    find_gaps,
    find_holes,
    find_runs,
    get_indent,
    instruct,
    instruct_removal,
    list_header_lines,
    render_comment,
)
from editor.grammars import find_language
from editor.placeholders import holds_placeholder

SHAPE = "made"
LAYOUTS = ("plain", "path", "heading")
"""How the prose of a chat answer names the file; the test part has one more (`TEST_LAYOUT`)."""

_MAX_DEFINITION = 120
_LONG_RUN = 6
_SHARE_OUTER_MARKERS = 0.45
_SHARE_INSTRUCTED = 0.6
_SHARE_OTHER_ORDER = 0.3
_SHARE_JOINED = 0.4
_SHARE_FENCE_MARKERS = 0.25
_SHARE_TEST_ONLY = 0.5
_LIKE = 60
_TRIES = 24
_OPENERS = ("Here is the change:", "I would change this:", "Only this part changes.", "Update it like this:")
_LINKS = ("Then:", "And further down:", "Also here:", "This part changes, too:", "Next, this one:")
_CLOSINGS = ("", "", "Nothing else needs to change.", "The rest stays as it is.")


@dataclass(frozen=True, slots=True)
class Imitation:
    """A made snippet with its instruction ("" for none)."""

    text: str
    instruction: str


@dataclass(frozen=True, slots=True)
class _Hand:
    """The marker of one snippet, and the layouts that its part allows."""

    marker: Marker
    layouts: tuple[str, ...]


_Style = Callable[[Change, _Hand, Random], list[str] | None]


def imitate(before: str, after: str, path: str, style: str, seed: int, part: Part = "train") -> Imitation | None:
    """Write the change in this style; None if the style does not suit it. Raises KeyError for an unknown style.

    The test part has a marker wording and a layout of its own, each in half of the snippets where it can occur.
    """
    write = _STYLES[style]
    change = find_change(before, after, path)
    if change is None:
        return None
    rng = Random(f"{style}\0{seed}\0{path}\0{before}\0{after}")
    lines = write(change, _draw_hand(change, style, part, rng), rng)
    shown = [] if lines is None else [line for line in lines if line.strip()]
    if not shown or len(shown) >= len([line for line in change.b if line.strip()]):
        return None
    if style == "deletion_told":
        instruction = instruct_removal(change, rng)
    else:
        instruction = instruct(change, rng) if rng.random() < _SHARE_INSTRUCTED else ""
    return Imitation("\n".join(lines or ()).strip("\n") + "\n", instruction)


def make_imitations(folder: Path, num_cases: int, seed: int, part: Part) -> list[Case]:
    """Make `num_cases` cases of a part from the commits in `folder`; styles and languages take turns.

    Each commit's file is used once; there are fewer cases if the commits run out.
    """
    rng = Random(f"imitations\0{seed}\0{part}")
    by_language: dict[str, deque[Record]] = defaultdict(deque)
    found = [
        record
        for _, some in read_records(folder)
        for record in some
        if find_part(record["repo"], record["path"]) == part
    ]
    rng.shuffle(found)
    for record in found:
        by_language[find_language(record["path"]) or "other"].append(record)
    languages = deque(sorted(by_language))
    made: list[Case] = []
    misses = 0
    for style in cycle(STYLES):
        if len(made) == num_cases or misses == len(STYLES):
            return made
        case = _draw_case(by_language, languages, style, seed, part)
        misses = misses + 1 if case is None else 0
        made += [] if case is None else [case]
    raise AssertionError("a cycle does not end")


def _write_minimal(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    shown = change.add_context(rng.choice((1, 1, 2, 3)))
    return None if shown is None else _lay_out(change, shown, hand, rng)


def _write_context(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    shown = change.add_context(rng.choice((2, 3, 5)))
    if shown is None:
        return None
    for span in change.spans:
        for symbol in change.around(span):
            shown |= {*list_header_lines(symbol), symbol.end_line - 1}
    return _lay_out(change, fill_gaps(shown, change.b), hand, rng)


def _write_whole_def(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    shown: set[int] = set()
    for span in change.spans:
        own = _find_definition(change, span)
        if own is None:
            return None
        shown |= own
    if rng.random() < 0.4:
        shown = _drop_long_runs(change, shown)
    if rng.random() < 0.3:
        return _join_runs(change, shown)
    return _lay_out(change, fill_gaps(shown, change.b), hand, rng)


def _write_signature(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    shown: set[int] = set()
    for span in change.spans:
        around = [symbol for symbol in change.around(span) if symbol.body_line is not None]
        if not around:
            return None
        context = change.context(span, 0)
        shown |= set(range(span.b_start, span.b_end)) if context is None else set(context)
        shown |= set(list_header_lines(around[-1]))
        if rng.random() < 0.7:
            shown.add(around[-1].end_line - 1)
    return _lay_out(change, shown, hand, rng)


def _write_only_changed(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    if not all(_is_plain_substitution(change, span) for span in change.spans):
        return None
    return [change.b[at] for span in change.spans for at in range(span.b_start, span.b_end)]


def _write_no_markers(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    shown = change.add_context(rng.choice((1, 2, 3, 4)))
    return None if shown is None else _join_runs(change, shown)


def _write_chat(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    shown = change.add_context(rng.choice((0, 1, 2, 3)))
    if shown is None:
        return None
    if rng.random() < 0.4:
        for span in change.spans:
            shown |= _find_definition(change, span) or set()
    blocks = _fence(change, shown, _drop_long_runs(change, shown), hand, rng)
    if any(line.lstrip().startswith(("```", "~~~")) for block in blocks for line in block):
        return None
    if rng.random() < 0.3 and not change.changes_only_indentation:
        blocks = [dedent(block) for block in blocks]
    if rng.random() < _SHARE_OTHER_ORDER:
        rng.shuffle(blocks)
    return _render_conversation(change.path, blocks, rng.choice(hand.layouts), rng)


def _fence(change: Change, whole: set[int], kept: set[int], hand: _Hand, rng: Random) -> list[list[str]]:
    """Return the lines of each fence: one or more runs of `whole`, with markers for the lines that are not `kept`.

    Some fences have a marker at an end.
    """
    blocks: list[list[str]] = []
    for run in find_runs(whole):
        is_new = not blocks or rng.random() >= _SHARE_JOINED
        if is_new:
            blocks.append([])
        for number, part in enumerate(find_runs(kept & set(run))):
            if number or not is_new or (part.start and rng.random() < _SHARE_FENCE_MARKERS):
                blocks[-1].append(hand.marker.line(get_indent(change.b[part.start])))
            blocks[-1] += [change.b[at] for at in part]
    for block in blocks:
        if rng.random() < _SHARE_FENCE_MARKERS:
            block.append(hand.marker.line(get_indent(block[-1])))
    return blocks


def _write_dedented(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    if change.changes_only_indentation:
        return None
    own = [_find_definition(change, span) for span in change.spans]
    shown = {at for found in own if found for at in found} if all(own) else change.add_context(rng.choice((2, 3, 4)))
    if shown is None:
        return None
    blocks = [[change.b[at] for at in run] for run in find_runs(shown)]
    moved = [dedent(block) for block in blocks]
    return None if moved == blocks else _join(moved)


def _write_odd_marker(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    return rng.choice((_write_minimal, _write_context, _write_signature))(change, hand, rng)


def _write_deletion_omitted(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    if not find_holes(change):
        return None
    return _write_minimal(change, hand, rng)


def _write_deletion_comment(change: Change, hand: _Hand, rng: Random) -> list[str] | None:
    holes = find_holes(change)
    shown = change.add_context(rng.choice((1, 2)))
    if not holes or shown is None:
        return None
    notes: dict[int, str] = {}
    for span in holes:
        gone = [line for line in change.a[span.a_start : span.a_end] if line.strip()]
        name = (WORD.findall(gone[0]) or ["lines"])[-1]
        whole = gone[0].strip().rstrip("{:;,")
        words = rng.choice((f"removed: {name}", f"{name} removed", f"removed {whole[:60]}", f"deleted: {whole[:60]}"))
        line = render_comment(change.path, words)
        if line is None:
            return None
        notes[span.b_start] = get_indent(gone[0]) + line
    return _lay_out(change, shown, hand, rng, notes)


def _find_definition(change: Change, span: Span) -> set[int] | None:
    around = change.around(span)
    if not around or around[-1].end_line - around[-1].first_line > _MAX_DEFINITION:
        return None
    return set(range(around[-1].first_line, around[-1].end_line))


def _drop_long_runs(change: Change, shown: set[int]) -> set[int]:
    """Leave out long runs of unchanged lines, all but two lines at each end of a run."""
    changed = {at for span in change.spans for at in range(span.b_start - 1, span.b_end + 1)}
    kept = set(shown)
    for run in find_runs(shown - changed):
        if len(run) > _LONG_RUN:
            kept -= set(range(run.start + 2, run.stop - 2))
    return kept


def _is_plain_substitution(change: Change, span: Span) -> bool:
    """Return whether each new line replaces an old one that is similar, and more similar than any other line."""
    old, new = change.a[span.a_start : span.a_end], change.b[span.b_start : span.b_end]
    if len(old) != len(new) or not new:
        return False
    for at, line in enumerate(new):
        own = ratio(line, old[at])
        others = (ratio(line, other) for row, other in enumerate(change.a) if row != span.a_start + at)
        if not line.strip() or own < _LIKE or own <= max(others, default=0):
            return False
    return True


def _lay_out(
    change: Change, shown: set[int], hand: _Hand, rng: Random, notes: Mapping[int, str] | None = None
) -> list[str] | None:
    """Put the shown lines in order with a marker for each gap, and each of the `notes` above its line.

    The outer markers, above the first line and below the last, are written at random. None if a shown line looks like a
    marker.
    """
    if any(holds_placeholder(change.b[at]) or change.b[at].strip() == "..." for at in shown):
        return None
    outer = {True: rng.random() < _SHARE_OUTER_MARKERS, False: rng.random() < _SHARE_OUTER_MARKERS}
    airy = rng.random() < 0.6
    at_gap = {gap.start: gap for gap in find_gaps(shown, len(change.b))}
    out: list[str] = []
    at = 0
    while at <= len(change.b):
        if notes and at in notes:
            out.append(notes[at])
        gap = at_gap.get(at)
        if gap is not None:
            is_outer = gap.start == 0 or gap.stop == len(change.b)
            if not is_outer or outer[gap.start == 0]:
                out += _render_gap(change.b, gap, hand.marker, airy=airy)
            at = gap.stop
            continue
        out += change.b[at : at + 1]
        at += 1
    return out


def _render_gap(b: Sequence[str], gap: range, marker: Marker, *, airy: bool) -> list[str]:
    """Return a gap's marker, indented as its least indented line; `airy` keeps the blank lines at its ends."""
    indents = [get_indent(b[at]) for at in gap if b[at].strip()]
    above = [""] if airy and not b[gap.start].strip() else []
    below = [""] if airy and not b[gap.stop - 1].strip() else []
    return [*above, marker.line(min(indents, key=len, default="")), *below]


def _join_runs(change: Change, shown: set[int]) -> list[str]:
    return _join([[change.b[at] for at in run] for run in find_runs(shown)])


def _join(blocks: Sequence[Sequence[str]]) -> list[str]:
    """Put blocks under each other, a blank line between."""
    return [line for block in blocks for line in [*block, ""]][:-1]


def _render_conversation(path: str, blocks: Sequence[Sequence[str]], layout: str, rng: Random) -> list[str]:
    """Write a chat answer: the prose, and a fence for each block."""
    tag = find_language(path) or ""
    step = "   " if layout == TEST_LAYOUT else ""
    out: list[str] = []
    for number, block in enumerate(blocks):
        said = rng.choice(_OPENERS if number == 0 else _LINKS)
        if layout == TEST_LAYOUT:
            said = f"{number + 1}. {said}"
        elif layout == "heading" and number == 0:
            out += [f"### `{path}`", ""]
        elif layout == "path" and number == 0:
            said = f"In `{path}`: {said[:1].lower()}{said[1:]}"
        out += [said, "", f"{step}```{tag}", *(f"{step}{line}" if line.strip() else line for line in block)]
        out += [f"{step}```", ""]
    return [*out, rng.choice(_CLOSINGS)]


def _draw_hand(change: Change, style: str, part: Part, rng: Random) -> _Hand:
    wordings: Sequence[str] = ODD_WORDINGS if style == "odd_marker" else WORDINGS
    if part == "test" and style == "odd_marker" and rng.random() < _SHARE_TEST_ONLY:
        wordings = (TEST_WORDING,)
    layouts = (TEST_LAYOUT,) if part == "test" and rng.random() < _SHARE_TEST_ONLY else LAYOUTS
    return _Hand(Marker(change.path, rng, wordings), layouts)


def _draw_case(
    by_language: Mapping[str, deque[Record]], languages: deque[str], style: str, seed: int, part: Part
) -> Case | None:
    """Make a case of the next record that suits the style, and remove that record; None if none suits.

    Its language becomes the last in turn; records that do not suit go to the end of their language.
    """
    for language in list(languages):
        waiting = by_language[language]
        for _ in range(min(_TRIES, len(waiting))):
            record = waiting.popleft()
            case = _make_case(record, style, seed, part)
            if case is not None:
                languages.remove(language)
                languages.append(language)
                return case
            waiting.append(record)
    return None


def _make_case(record: Record, style: str, seed: int, part: Part) -> Case | None:
    before, after, path = record["original"], record["expected"], record["path"]
    made = imitate(before, after, path, style, seed, part)
    if made is None:
        return None
    return Case(
        id=f"made-{style}-{record['repo'].rpartition('/')[2]}@{record['commit'][:8]}/{path}",
        shape=SHAPE,
        format="lazy",
        path=path,
        original=before,
        edit=made.text,
        expected=after,
        instruction=made.instruction,
        style=style,
        repo=record["repo"],
    )


_STYLES: Mapping[str, _Style] = {
    "minimal": _write_minimal,
    "context": _write_context,
    "whole_def": _write_whole_def,
    "signature": _write_signature,
    "only_changed": _write_only_changed,
    "no_markers": _write_no_markers,
    "chat": _write_chat,
    "odd_marker": _write_odd_marker,
    "dedented": _write_dedented,
    "deletion_omitted": _write_deletion_omitted,
    "deletion_comment": _write_deletion_comment,
    "deletion_told": _write_deletion_omitted,
}
STYLES: tuple[str, ...] = tuple(_STYLES)
