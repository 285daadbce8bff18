"""The readings of a lazy snippet that no rule decides: every one a whole merged text, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from editor.lazy.choices import Choices, Decisions
from editor.lazy.grouping import groups, level_for
from editor.lazy.pairing import pair
from editor.lazy.placing import TellingLines, arrangements
from editor.lazy.siblings import Siblings
from editor.lazy.units import MARKER, Unit, units_of
from editor.lazy.weaving import Weaver
from editor.matching.spelling import in_spelling_of
from editor.snippets import survey_snippet
from editor.syntax import Survey, num_errors, survey
from editor.types import Candidate, Sketch
from editor.wording import span_of

MAX_CANDIDATES = 6
_MAX_CHARS = 1_000_000
"""Of all readings together: each is woven, parsed and accounted for, so a large file has fewer of them."""

_MAX_LINES = 20_000
# What a reading that answers one question the less likely way counts against the likelier.
_UNLIKELY = 0.5
_WORSE_SYNTAX = 0.25
_FRAGMENT = 0.3
_MIN_SCORE = 0.0001
_MAX_GROUPS = 8
# A snippet without markers that shows this share of the file's units is more likely the whole file.
_WHOLE_SHARE = 0.6
_FEW_UNITS = 3


@dataclass(frozen=True, slots=True)
class _Reading:
    lines: list[str]
    weight: float
    why: str


@dataclass(frozen=True, slots=True)
class _Texts:
    """A file and a snippet as lines and as units."""

    lines: list[str]
    units: Sequence[Unit]
    snippet: list[str]
    sent: Sequence[Unit]
    language: str | None


def candidates(lines: list[str], sketch: Sketch, language: str | None) -> tuple[Candidate, ...]:
    """Return the readings of a snippet, best first; none where the snippet cannot be bound to the file at all.

    `lines` are the file's; the scores of one snippet sum to 1, but for rounding.
    """
    if len(lines) > _MAX_LINES or not any(line.strip() for line in lines):
        return ()
    seen = survey("\n".join(lines), language)
    best: dict[str, _Reading] = {}
    most = max(1, _MAX_CHARS // sum(len(line) + 1 for line in lines))
    for reading in islice(_readings(lines, sketch, language, seen), most):
        text = "".join(line + "\n" for line in reading.lines)
        if MARKER in text:
            continue  # a new unit that leaves something out: there is nothing that it could stand for
        if text not in best or best[text].weight < reading.weight:
            best[text] = replace(reading, weight=max(_MIN_SCORE, reading.weight))
    ranked = sorted(best, key=lambda text: -best[text].weight)[:MAX_CANDIDATES]
    weights = {text: best[text].weight * _syntax_factor(seen, text, language, len(ranked)) for text in ranked}
    total = sum(weights.values())
    ranked.sort(key=lambda text: -weights[text])
    return tuple(Candidate(text, max(_MIN_SCORE, round(weights[text] / total, 4)), best[text].why) for text in ranked)


def _syntax_factor(before: Survey | None, text: str, language: str | None, num_candidates: int) -> float:
    """Return what a reading with new syntax errors counts against others; nothing where there are no others."""
    if before is None or num_candidates == 1:
        return 1.0
    errors = num_errors(text, language)
    return _WORSE_SYNTAX if errors is not None and errors > len(before.error_lines) else 1.0


def _readings(lines: list[str], sketch: Sketch, language: str | None, seen: Survey | None) -> Iterator[_Reading]:
    snippet, markers = flat(sketch)
    parsed = survey_snippet(["" if at in markers else line for at, line in enumerate(snippet)], language)
    texts = _Texts(lines, units_of(lines, seen), snippet, units_of(snippet, parsed, markers), language)
    if sketch.elides:
        yield from _placed_readings(lines, sketch)
        yield from _woven_readings(texts, 1.0, "")
        return
    share = _share_shown(texts)
    yield _Reading(in_spelling_of(lines, snippet), share, "the snippet is the whole file")
    open_ended = replace(texts, sent=(_marker(snippet), *texts.sent, _marker(snippet)))
    yield from _woven_readings(open_ended, 1.0 - share, "the snippet is a part of the file")


def flat(sketch: Sketch) -> tuple[list[str], frozenset[int]]:
    """Return the snippet's lines, its markers, and where these stand."""
    num_gaps = sketch.opens_elided + len(sketch.blocks) - 1 + sketch.closes_elided
    indents = iter(sketch.marker_indents or [("",)] * num_gaps)
    lines: list[str] = []
    markers: set[int] = set()

    def add_markers() -> None:
        for space in next(indents):
            markers.add(len(lines))
            lines.append(space + MARKER)

    if sketch.opens_elided:
        add_markers()
    for number, block in enumerate(sketch.blocks):
        if number:
            add_markers()
        lines.extend(block)
    if sketch.closes_elided:
        add_markers()
    return lines, frozenset(markers)


def _marker(snippet: Sequence[str]) -> Unit:
    return Unit(len(snippet), len(snippet), len(snippet), 0, (), is_marker=True)


def _share_shown(texts: _Texts) -> float:
    """Return how likely a snippet without markers is the whole file, in (0, 1)."""
    units, sent = texts.units, texts.sent
    pairs = pair(Siblings(texts.lines, units), Siblings(texts.snippet, sent)).in_order
    share = len(pairs) / max(1, len(units))
    ends = bool(pairs) and pairs.get(0) == 0 and pairs.get(len(sent) - 1) == len(units) - 1
    if ends and share >= _WHOLE_SHARE:
        return 0.9
    if not pairs and len(units) <= _FEW_UNITS and len(texts.snippet) >= _WHOLE_SHARE * len(texts.lines):
        return 0.7  # a file of one definition, renamed
    return 0.7 if ends and len(units) <= _FEW_UNITS else min(0.3, 0.1 + share / 4)


def _woven_readings(texts: _Texts, weight: float, why: str) -> Iterator[_Reading]:
    """Yield the likeliest way to weave a snippet, then those that answer one question the other way."""
    main = Choices()
    weight *= _well_formed(texts.sent)
    found = _woven(texts, main)
    if found is not None and found[1].moved_together:
        main = replace(main, move=True)
        found = _woven(texts, main)
    if found is None:
        return
    merged, decisions = found
    yield _Reading(merged, weight, why or "as the snippet shows it")
    for choices, reason in _alternatives(main, decisions):
        other = _woven(texts, choices)
        if other is None:
            continue
        yield _Reading(other[0], weight * _UNLIKELY, f"{why}; {reason}" if why else reason)


def _placed_readings(lines: list[str], sketch: Sketch) -> Iterator[_Reading]:
    index = TellingLines(lines)
    for number, places in enumerate(arrangements(index, [_solid(block) for block in sketch.blocks])):
        merged = list(lines)
        for place in reversed(places):
            merged[place.start : place.end] = place.lines
        trust = min(place.trust for place in places)
        where = ", ".join(span_of(place.start, place.end) for place in places)
        yield _Reading(merged, 1.6 * trust * _UNLIKELY**number, f"the blocks belong to {where}")


def _solid(block: Sequence[str]) -> Sequence[str]:
    """Return a block without the blank lines at its ends, which are layout next to a marker."""
    solid = [at for at, line in enumerate(block) if line.strip()]
    return block[solid[0] : solid[-1] + 1]


def _well_formed(sent: Sequence[Unit]) -> float:
    """Return how far a snippet consists of whole units: a block that leaves its first line's indentation does not."""
    for above, below in pairwise(sent):
        if not above.is_marker and not below.is_marker and below.width < above.width:
            return _FRAGMENT
        if below.continues and above.is_marker and below is not sent[-1]:
            return _FRAGMENT
    return 1.0


def _alternatives(main: Choices, seen: Decisions) -> Iterator[tuple[Choices, str]]:
    if seen.unshown:
        yield replace(main, keep_unshown=not main.keep_unshown), "lines left out without a marker stay"
    if seen.placed:
        yield replace(main, early=True), "new lines at the first place that they can have"
    if seen.moved:
        where = "in the file's order" if main.move else "moved into the snippet's order"
        yield replace(main, move=not main.move), f"definitions {where}"
    if seen.leads:
        yield replace(main, bare=True), "comments left out are taken away"


def _woven(texts: _Texts, choices: Choices) -> tuple[list[str], Decisions] | None:
    """Weave every group of the snippet into the level of the file where it belongs; None if one belongs nowhere."""
    seen = Decisions()
    runs = list(groups(texts.sent))
    if len(runs) > _MAX_GROUPS:
        return None
    merged, units = texts.lines, texts.units
    for number, group in enumerate(runs):
        if number:
            units = units_of(merged, survey("\n".join(merged), texts.language))
        found = level_for(merged, units, texts.snippet, group)
        if found is None:
            return None
        level, start, end = found
        weaver = Weaver(merged, texts.snippet, choices, seen)
        merged = [*merged[:start], *weaver.woven(level, group, start, end), *merged[end:]]
    return merged, seen
