"""Apply edits to files that have changed since the edit was written, or that have the edit already.

stale, by how the file differs from the one that the edit was written for:

    earlier       the real commit before the edit's is not in it
    later         it has the edit, as it was written, and the real commit after it (explicit formats)
    far_inserted  a line more, away from the change
    far_deleted   a line less, away from the change
    doubled       the definition about the change stands again below it, as it was, under another name
    near_altered  one token of a kept line next to the change is another
    near_inserted a line more between the change and the kept line next to it
    old_altered   one token of a line that the edit replaces is another
    old_deleted   a line that the edit replaces is gone

The right text is the changed file with the edit's own change made to it: known where the two changes do not overlap. A
snippet may also set the lines that it shows back to what it shows. Blank lines do not count for snippets. A refusal is
never wrong. `right` and `wrong` count certain merges, `likely` and `likely_wrong` those that are likely; `noop_wrong`
counts claims that an edit is made which is not.

resent: the edit is applied to the result of its own right merge. Nothing may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError
from agent_runtime.types import ApplyRequest, ApplyResult
from benchmarks.cases import Case, Record
from benchmarks.edit_formats import Span, diff_texts
from benchmarks.harness import refuse_model
from benchmarks.scoring import is_same_but_blank_lines
from benchmarks.snippets.changes import get_indent
from benchmarks.trust.corruptions import RightText, alter_token
from benchmarks.trust.right_results import WAYS, find_folder, make_case, read_commits
from editor import codec
from editor.definitions import Symbol
from editor.formats import parse_files
from editor.grammars import find_language
from editor.syntax import survey
from editor.types import Substitutions

RESENT = "resent"
NUM_CHAINED = 400
_NEAR = 6
_MAX_DOUBLED = 80

Judged = Literal["right", "refused", "unchanged", "likely", "likely_wrong", "wrong", "noop_wrong", "crashed"]


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of one edit of a changed file; `kind` is `resent` or how the file differs."""

    id: str
    source: str
    format: str
    style: str
    kind: str
    outcome: Judged
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Stale:
    """A case whose file has changed since the edit was written, and the texts that are right for it now, if any."""

    kind: str
    case: Case
    right: tuple[str, ...]


def make_stale_cases(cases: Sequence[Case], folder: Path, num_chained: int, seed: int) -> list[Stale]:
    """Return each case with its file changed in one seeded way, and as many real commits in chains as asked for."""
    found = list(chain_commits(folder, num_chained, seed))
    kinds = list(MUTATIONS)
    for number, case in enumerate(cases):
        right = RightText(case)
        rng = Random(f"stale\0{seed}\0{case.id}\0{case.format}\0{case.style}")
        for turn in range(len(kinds)):
            kind = kinds[(number + turn) % len(kinds)]
            find, change = MUTATIONS[kind]
            if places := find(right):
                found.append(_make_stale(kind, right, *change(right, rng.choice(places), rng)))
                break
    return found


def chain_commits(folder: Path, num_cases: int, seed: int) -> Iterator[Stale]:
    """Yield edits of real commits for the file before the commit before theirs, or after the commit after theirs."""
    rng = Random(f"chained\0{seed}")
    found = read_commits(find_folder(folder, "commits"))
    after = {(record["repo"], record["path"], record["expected"]): record for record in found}
    pairs = [
        (first, second)
        for second in found
        if (first := after.get((second["repo"], second["path"], second["original"]))) is not None
    ]
    rng.shuffle(pairs)
    num_made = 0
    for number, (first, second) in enumerate(pairs):
        if num_made == num_cases:
            return
        way = WAYS[number % len(WAYS)]
        made = (_make_later if number // len(WAYS) % 2 else _make_earlier)(first, second, way, seed)
        if made is not None:
            num_made += 1
            yield made


def _make_earlier(first: Record, second: Record, way: str, seed: int) -> Stale | None:
    case = make_case(second, way, seed)
    merged = merge_both(second["original"], first["original"], second["expected"])
    if case is None or merged is None:
        return None
    right = (merged, second["expected"]) if case.format == "lazy" else (merged,)
    return Stale("earlier", replace(case, original=first["original"]), right)


def _make_later(first: Record, second: Record, way: str, seed: int) -> Stale | None:
    """Make a case of an edit that a later commit follows: what the edit wrote has to stand in the file as it is now.

    A snippet would set the lines that it shows back to what it shows: it does not say what they replace.
    """
    case = make_case(first, way, seed)
    now = second["expected"]
    undone = merge_both(first["expected"], first["original"], now)
    if case is None or case.format == "lazy" or undone is None:
        return None
    right = _replace(case, now) if case.format == "replace" else []
    return Stale("later", replace(case, original=now), tuple(right))


def merge_both(base: str, ours: str, theirs: str) -> str | None:
    """Merge the changes of two texts into their common base, as diff3 does; None if any of them touch."""
    lines, one, other = base.split("\n"), ours.split("\n"), theirs.split("\n")
    spans = [(span, one) for span in diff_texts(lines, one)] + [(span, other) for span in diff_texts(lines, other)]
    spans.sort(key=lambda found: (found[0].a_start, found[0].a_end))
    out: list[str] = []
    at = 0
    for number, (span, side) in enumerate(spans):
        if number and span.a_start <= spans[number - 1][0].a_end:
            return None
        out += lines[at : span.a_start] + side[span.b_start : span.b_end]
        at = span.a_end
    return "\n".join(out + lines[at:])


def send_stale(stale: Stale) -> Sent:
    """Send the edit to the changed file, and compare the merge with what is right."""
    case = stale.case
    try:
        result = apply_by_rule(case, case.original.encode())
    except Exception as fault:  # noqa: BLE001 (whatever it is, it is a fault of ours)
        return _make_sent(case, stale.kind, "crashed", repr(fault))
    if result is None or result.status == "rejected":
        return _make_sent(case, stale.kind, "refused")
    if result.status == "noop":
        is_done = stale.kind == "later" or case.original == case.expected
        return _make_sent(case, stale.kind, "unchanged" if is_done else "noop_wrong")
    merged = codec.decode(result.file.data).text
    is_certain = result.file.certainty == "certain"
    if any(_is_same(merged, codec.decode(right.encode()).text, case) for right in stale.right):
        return _make_sent(case, stale.kind, "right" if is_certain else "likely")
    return _make_sent(case, stale.kind, "wrong" if is_certain else "likely_wrong", result.file.diff)


def send_again(case: Case) -> Sent | None:
    """Apply the edit, and where that comes out right send it to the result; None where it does not."""
    try:
        first = apply_by_rule(case, case.original.encode())
        if first is None or first.status != "merged" or not _is_same(first.file.merged, case.expected, case):
            return None
        second = apply_by_rule(case, first.file.data)
    except Exception as fault:  # noqa: BLE001 (whatever it is, it is a fault of ours)
        return _make_sent(case, RESENT, "crashed", repr(fault))
    if second is None or second.status == "rejected":
        return _make_sent(case, RESENT, "refused")
    if second.file.data == first.file.data:
        return _make_sent(case, RESENT, "unchanged")
    return _make_sent(case, RESENT, "wrong", second.file.diff)


def apply_by_rule(case: Case, original: bytes) -> ApplyResult | None:
    """Apply the case's edit to a file without a model; None where it is refused."""
    try:
        return Applier(refuse_model).apply(ApplyRequest(original, case.edit, case.path, mode="deterministic"))
    except HunkError:
        return None


def _make_sent(case: Case, kind: str, outcome: Judged, detail: str = "") -> Sent:
    return Sent(case.id, case.shape, case.format, case.style, kind, outcome, detail)


def _is_same(text: str, expected: str, case: Case) -> bool:
    return is_same_but_blank_lines(text, expected) if case.format == "lazy" else text == expected


Mutated = tuple[list[str], list[str] | None]
"""The lines of the file as it is now, and of the right result, None where nothing is right but a refusal."""


def _make_stale(kind: str, right: RightText, file: Sequence[str], expected: Sequence[str] | None) -> Stale:
    """Return the case of a mutated file.

    A replacement of characters is what it says: its text has to stand once in the file as it is now.
    """
    case, text = right.case, "\n".join(file)
    now = replace(case, original=codec.encode(text, right.source).decode(right.source.encoding))
    known = [] if expected is None else ["\n".join(expected)]
    if case.format == "lazy":
        known.append(right.text)
    if case.format == "replace":
        known = _replace(case, text)
    return Stale(kind, now, tuple(known))


def _replace(case: Case, text: str) -> list[str]:
    edits = parse_files(case.edit, "auto", case.path)
    changes_made = edits[0].changes
    assert isinstance(changes_made, Substitutions)
    for item in changes_made.items:
        if not (text.count(item.old) == 1 or (item.replace_all and item.old in text)):
            return []
        text = text.replace(item.old, item.new)
    return [text]


def _find_far(right: RightText) -> list[tuple[int, int]]:
    """Return the kept lines away from the edit, by their numbers in the file and in the right result."""
    outside = set(right.outside)
    near = {at for span in right.spans for at in range(span.b_start - _NEAR, span.b_end + _NEAR)}
    return [(a, b) for a, b in right.common if b in outside and b not in near]


def _find_near(right: RightText) -> list[tuple[int, int]]:
    """Return the kept lines, not blank, next to a run of changes."""
    found = {at for span in right.spans for at in (right.find_above(span.b_start), right.find_below(span.b_end - 1))}
    return [(a, b) for a, b in right.common if b in found]


def _find_definitions(right: RightText) -> list[tuple[Symbol, int]]:
    """Return the definitions about a change that end before a kept line, with that line's number in the right text."""
    seen = survey(right.source.text, find_language(right.case.path))
    last = dict(right.common)
    return [
        (symbol, last[symbol.end_line - 1] + 1)
        for symbol in (seen.symbols if seen else ())
        if symbol.kind in ("function", "method") and symbol.end_line - symbol.first_line <= _MAX_DOUBLED
        if last.get(symbol.end_line - 1, -1) + 1 == last.get(symbol.end_line, -2)
        if any(symbol.name_line < span.a_start < symbol.end_line for span in right.spans)
    ]


def _find_replacements(right: RightText) -> list[Span]:
    """Return the changes that replace lines; where an edit replaces none, its place next to a new line is not known."""
    return [span for span in right.spans if span.a_start < span.a_end and span.a_start > 0]


def _find_old(right: RightText) -> list[int]:
    return [at for span in right.spans for at in range(span.a_start, span.a_end) if right.a[at].strip()]


def _insert_far(right: RightText, place: tuple[int, int], rng: Random) -> Mutated:
    a, b = place
    return _insert(right, a, b, [get_indent(right.b[b]) + _draw_line(right, rng)])


def _delete_far(right: RightText, place: tuple[int, int], rng: Random) -> Mutated:
    a, b = place
    return right.a[:a] + right.a[a + 1 :], right.b[:b] + right.b[b + 1 :]


def _double_definition(right: RightText, place: tuple[Symbol, int], rng: Random) -> Mutated:
    symbol, b = place
    own = right.a[symbol.first_line : symbol.end_line]
    at = symbol.name_line - symbol.first_line
    own[at] = own[at].replace(symbol.simple_name, f"{symbol.simple_name}_again", 1)
    return _insert(right, symbol.end_line, b, ["", *own])


def _alter_near(right: RightText, place: tuple[int, int], rng: Random) -> Mutated:
    a, b = place
    new = alter_token(right.a[a], right, rng)
    return [*right.a[:a], new, *right.a[a + 1 :]], [*right.b[:b], new, *right.b[b + 1 :]]


def _insert_near(right: RightText, span: Span, rng: Random) -> Mutated:
    line = get_indent(right.a[span.a_start]) + _draw_line(right, rng)
    return _insert(right, span.a_start, span.b_start, [line])


def _alter_old(right: RightText, at: int, rng: Random) -> Mutated:
    return [*right.a[:at], alter_token(right.a[at], right, rng), *right.a[at + 1 :]], None


def _delete_old(right: RightText, at: int, rng: Random) -> Mutated:
    return right.a[:at] + right.a[at + 1 :], None


def _insert(right: RightText, a: int, b: int, lines: Sequence[str]) -> Mutated:
    return [*right.a[:a], *lines, *right.a[a:]], [*right.b[:b], *lines, *right.b[b:]]


def _draw_line(right: RightText, rng: Random) -> str:
    return alter_token(right.b[rng.choice(right.solid)].strip(), right, rng)


MUTATIONS: Mapping[str, tuple[Callable[[RightText], Sequence[Any]], Callable[[RightText, Any, Random], Mutated]]] = {
    "far_inserted": (_find_far, _insert_far),
    "far_deleted": (_find_far, _delete_far),
    "doubled": (_find_definitions, _double_definition),
    "near_altered": (_find_near, _alter_near),
    "near_inserted": (_find_replacements, _insert_near),
    "old_altered": (_find_old, _alter_old),
    "old_deleted": (_find_old, _delete_old),
}
"""Where a file can be changed in each way, and the change at one of these places."""
