r"""The readings of a lazy snippet: the whole texts that it may mean, best first, with how likely the first is right.

`all_readings` aligns the snippet with the file and keeps the texts that the accounting check allows; `order` sorts them
by learned weights. These stand in `weights.json`:

    {"card": {...}, "weights": {feature: weight}, "none": score of "none of these",
     "confidence": [[probability, share right], ...], "bars": {"certain": p, "likely": p}}

A reading has the score `weights . features`; its probability is the softmax over all readings and "none of these".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import islice, pairwise

import numpy as np
from rapidfuzz import fuzz
from rapidfuzz.process import cdist

from benchmarks.reader.alignment import GAP, OUTSIDE, Aligner, Costs, Path, Step
from benchmarks.reader.binding import Bindings, FileLines, Floats, Snippet
from benchmarks.reader.features import FEATURES, Evidence
from benchmarks.reader.rendering import Row, moved_lines, rows_of, text_of
from editor.accounting import account
from editor.accounting.statements import IMPORT, key_of
from editor.effort import look
from editor.formats.placeholders import holds_placeholder, is_placeholder
from editor.types import (
    AlreadyApplied,
    Candidate,
    Merged,
    MergeOutcome,
    ParsedEdit,
    ReadingCertainty,
    Sketch,
    Unresolved,
)

__all__ = ["FEATURES", "MAX_READINGS", "Order", "Reading", "all_readings", "learned_order", "merge_snippet", "ordered"]

MAX_READINGS = 24
_NUM_PATHS = 36
_SLACK = 9.0
_MAX_DRAFTS = 96
_MAX_NAMED_RUNS = 4
_MIN_TELLING = 4
_NEAR = 30
_RIVAL = 60.0
_MAX_COMPARED = 2_000_000
_MAX_MERGE_READINGS = 12
_MIN_SCORE = 0.0001
_CERTAINTIES: tuple[ReadingCertainty, ...] = ("certain", "likely")
_SUGGESTION = "Use mode 'model' or 'auto', or send SEARCH/REPLACE blocks with the exact lines to change."
_OTHER_FORMAT = re.compile(
    r"<{5,9} ?(?:SEARCH|ORIGINAL|HEAD)\b|-{5,9} ?SEARCH\b|={7}$|[>+]{5,9} ?(?:REPLACE|UPDATED)\b|"
    r"@@ .*@@|\*\*\* (?:Begin|End|Update|Add|Delete)\b"
)
_NOTE = re.compile(
    r"\s*(//|#|/\*|<!--|--|;|%|\*)\s*(.*\b(remov|delet|renam|mov|replac)(e|es|ed|ing)\b|[\w./\\@-]+\.\w{1,5}\s*(\*/|-->)?$)",
    re.IGNORECASE,
)
_GOES = re.compile(
    r"\b(?:remov\w+|delet\w+|drop(?:s|ped)?|renam\w+|mov(?:e|es|ed|ing)|replac\w+|get rid|rid of|goes? away|no longer|"
    r"instead of|swap\w*)\b",
    re.IGNORECASE,
)
# Between the old and the new lines: "with:", "to this:", "After:".
_BECOMES = re.compile(
    r"^\W*(?:with|to|into|by|after|becomes?|new|now|should be)\b.{0,40}:\W*$", re.IGNORECASE | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One text that a snippet may mean, and its features (see `FEATURES`).

    `why` says what was assumed. `shows_all` tells that every shown line stands in the file, side by side as shown;
    `is_sure` that lines are only added, each between two shown lines that stand together once.
    """

    text: str
    features: tuple[float, ...]
    probability: float = 0.0
    why: str = ""
    shows_all: bool = False
    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A text before it is accounted for: its rows, the path that made it, and how."""

    text: str
    rows: list[Row]
    path: Path
    as_shown: bool
    num_gone: int
    moved: bool
    numbers: Sequence[int]


def drafts(file: FileLines, snippet: Snippet, costs: Costs, num_paths: int = _NUM_PATHS) -> Iterator[Draft]:
    """Yield the texts of the best paths, cheapest first, each text once."""
    aligner = Aligner(file, snippet, Bindings(file, snippet), costs)
    seen: set[str] = set()
    for path in aligner.best_paths(num_paths, _SLACK):
        kept = {at for step in path.steps if step.kind == "skip" for at in range(step.line, step.line_end)}
        named = aligner.named & kept
        moved = moved_lines(file, snippet, path)
        choices = [(frozenset[int](), False)]
        choices += [(some, False) for some in _named_choices(file, named)]
        choices += [(moved, True)] if moved else []
        choices += [(moved | named, True)] if moved and named else []
        for gone, is_moved in choices:
            rows = rows_of(file, snippet, path, gone)
            ways = [(rows, False), (rows, True)]
            by_hunk = rows_of(file, snippet, path, gone, by_hunk=True)
            ways += [(by_hunk, False)] if by_hunk != rows else []
            for rows, as_shown in ways:
                text = text_of(file, snippet, rows, as_shown=as_shown)
                if text not in seen:
                    seen.add(text)
                    yield Draft(text, rows, path, as_shown, len(gone), is_moved, file.numbers)


def _named_choices(file: FileLines, named: frozenset[int]) -> list[frozenset[int]]:
    """Return which of the lines that are said to go may go: all, the imports among them, each run of them."""
    if not named:
        return []
    imports = frozenset(at for at in named if IMPORT.match(file.keys[at]))
    runs: list[set[int]] = []
    for at in sorted(named):
        if runs and at - 1 in runs[-1]:
            runs[-1].add(at)
        else:
            runs.append({at})
    found = [named, imports, *map(frozenset, runs[:_MAX_NAMED_RUNS])]
    return list(dict.fromkeys(one for one in found if one))


def all_readings(
    text: str,
    edit: ParsedEdit,
    language: str | None,
    said: tuple[str, ...] = (),
    order: Order | None = None,
    most: int = MAX_READINGS,
) -> list[Reading]:
    """Return the likeliest legal readings of a lazy snippet, likeliest first, at most so many.

    The texts are put in order first, and then accounted for, best first: that takes most of the time. Raises
    `TooMuchWorkError` where snippet and file are too large.
    """
    assert isinstance(edit.changes, Sketch)
    order = order or learned_order()
    file = FileLines(text, language)
    snippet = Snippet(edit.changes, file, (*said, edit.prose) if edit.prose else said)
    if not len(file) or not len(snippet):
        return []
    evidence = Evidence(file, snippet)
    made = list(islice(drafts(file, snippet, Costs()), _MAX_DRAFTS))
    if not made:
        return []
    best = made[0].path.cost
    features = [
        evidence.features(one.rows, one.path, one.path.cost - best, one.as_shown, one.num_gone, one.moved)
        for one in made
    ]
    scores = np.array(features) @ order.weights
    found: list[Reading] = []
    for at in np.argsort(-scores, kind="stable")[: 2 * most].tolist():
        look()
        one = made[at]
        features[at] = evidence.with_errors(features[at], one.text)
        if not account(text, one.text, edit, language, said, explains=False).faults:
            found.append(
                Reading(
                    one.text,
                    features[at],
                    why=_why(one),
                    shows_all=_shows_all(file, snippet, one),
                    is_sure=_has_one_reading(file, snippet, one),
                )
            )
        if len(found) == most:
            break
    return ordered(found, order)


def _why(draft: Draft) -> str:
    """Return what a draft changes, in a few words."""
    changes: Counter[str] = Counter(step.kind for step in draft.path.steps)
    told = [
        f"{changes[kind]} {word}"
        for kind, word in (("insert", "new"), ("sub", "changed"), ("delete", "gone"))
        if changes[kind]
    ]
    lines = [step.line for step in draft.path.steps if step.kind in ("insert", "sub", "delete", "rewrite")]
    where = f" from line {draft.numbers[min(lines[0], len(draft.numbers) - 1)] + 1} on" if lines else ""
    return (", ".join(told) or "lines moved") + where


def _shows_all(file: FileLines, snippet: Snippet, draft: Draft) -> bool:
    """Tell whether a draft only matches lines and skips some at markers, and its blank lines are those shown."""
    for at, step in enumerate(draft.path.steps):
        if step.kind not in ("match", "mark", "skip") or snippet.items[min(step.item, len(snippet) - 1)].elided:
            return False
        if step.kind == "skip" and step.item and _leaves_scope(file, snippet, step):
            return False
        above = draft.path.steps[at - 1] if at else None
        if above is None or above.kind != "match":
            continue
        if step.kind == "match" and len(file.above[step.line]) != snippet.items[step.item].blanks:
            return False
        if step.kind == "skip" and step.item < len(snippet):
            return False
    return not snippet.removal.says_anything


def _leaves_scope(file: FileLines, snippet: Snippet, step: Step) -> bool:
    """Tell whether the marker of a gap stands deeper than some line that the gap holds."""
    marker = snippet.items[step.item - 1]
    if marker.kind == "line" or marker.hunk not in snippet.shifts:
        return False
    least = marker.width + snippet.shifts[marker.hunk]
    return any(file.widths[at] < least and file.weights[at] > 0.3 for at in range(step.line, step.line_end))


def _fits_blanks(file: FileLines, snippet: Snippet, step: Step) -> bool:
    """Tell whether the blank lines above a marker are those of the file, or none."""
    blanks = snippet.items[step.item].blanks if step.kind == "mark" else 0
    return blanks == 0 or step.line == len(file) or blanks == len(file.above[step.line])


def _stands_already(file: FileLines, snippet: Snippet, step: Step) -> bool:
    """Tell whether the file has an added line, or defines its name, or sets its key nearby."""
    item = snippet.items[step.item]
    name, key = snippet.names[step.item], snippet.keys[step.item]
    if any(map(str.isalnum, item.key)) and item.key in file.places:
        return True
    near = file.keys[max(0, step.line - _NEAR) : step.line + _NEAR]
    return (name is not None and name in file.names) or (key is not None and key in map(key_of, near))


def _has_one_reading(file: FileLines, snippet: Snippet, draft: Draft) -> bool:
    """Tell whether a draft only adds lines, each between two shown lines that stand together once in the file.

    Lines are left out at markers, above the snippet and below it only, and no added line stands in the file already.
    """
    if draft.moved or draft.num_gone or draft.as_shown or snippet.removal.says_anything:
        return False
    steps = draft.path.steps
    pairs = Counter(pairwise(file.keys))
    matched: Step | None = None
    is_open = False
    for at, step in enumerate(steps):
        if step.kind == "skip" and step.state not in (GAP, OUTSIDE) and 0 < step.item < len(snippet):
            return False
        if step.kind == "insert":
            above = steps[at - 1].kind if at else "start"
            if above not in ("match", "insert") or _stands_already(file, snippet, step):
                return False
            is_open = True
        elif step.kind == "match":
            if is_open:
                assert matched is not None
                around = file.keys[matched.line], file.keys[step.line]
                if pairs[around] != 1 or min(map(len, around)) < _MIN_TELLING:
                    return False
            matched, is_open = step, False
        elif step.kind not in ("mark", "skip") or is_open or not _fits_blanks(file, snippet, step):
            return False
    return matched is not None and not is_open


@dataclass(frozen=True)
class Order:
    """Learned weights: of the features, of "none of these", and what a probability is worth."""

    weights: Floats
    none: float
    points: tuple[tuple[float, float], ...]
    bars: dict[str, float]

    def probabilities(self, features: Floats) -> Floats:
        """Return the probability of each reading; what they lack of 1 is that of none."""
        scores = features @ self.weights
        top = max(float(scores.max(initial=self.none)), self.none)
        powers = np.exp(scores - top)
        return np.asarray(powers / (powers.sum() + np.exp(self.none - top)), dtype=np.float64)

    def confidence(self, probability: float) -> float:
        """Return how often a reading of this probability is right."""
        if not self.points:
            return probability
        return float(np.interp(probability, [x for x, _ in self.points], [y for _, y in self.points]))


@lru_cache(maxsize=1)
def learned_order() -> Order:
    """Return the order of `weights.json`; a feature that the file does not name has no weight."""
    data = json.loads(files("benchmarks.reader").joinpath("weights.json").read_text(encoding="utf-8"))
    weights = np.array([float(data["weights"].get(name, 0.0)) for name in FEATURES])
    points = tuple((float(x), float(y)) for x, y in data["confidence"])
    return Order(weights, float(data["none"]), points, dict(data["bars"]))


def ordered(found: Sequence[Reading], order: Order) -> list[Reading]:
    """Return readings likeliest first, with their probabilities."""
    if not found:
        return []
    chances = order.probabilities(np.array([one.features for one in found]))
    return [replace(found[at], probability=float(chances[at])) for at in np.argsort(-chances, kind="stable")]


def merge_snippet(text: str, edit: ParsedEdit, language: str | None, said: tuple[str, ...] = ()) -> MergeOutcome:
    """Merge a lazy snippet: the likeliest reading where it is likely enough, else all readings, likeliest first.

    Raises `TooMuchWorkError` where snippet and file are too large.
    """
    assert isinstance(edit.changes, Sketch)
    if not text.strip():
        return _fill(text, edit.changes)
    order = learned_order()
    found = all_readings(text, edit, language, said, order, _MAX_MERGE_READINGS)
    stays = next((one for one in found if one.text == text), None)
    readings = ordered([one for one in found if one is not stays], order)
    doubt = doubt_of(text, edit)
    if stays is not None and stays.shows_all and not doubt and _has_one_place(text, edit.changes):
        return AlreadyApplied("All lines of the snippet already stand in the file.")
    candidates = _candidates(readings, order)
    if not readings:
        return Unresolved(
            "open_intent", doubt or "No reading of the snippet accounts for a change.", suggestion=_SUGGESTION
        )
    first = readings[0]
    if not doubt and stays is None:
        if first.is_sure:
            sure = order.confidence(first.probability)
            return Merged(first.text, "anchored", len(readings), confidence=sure, candidates=candidates)
        for certainty in _CERTAINTIES:
            if first.probability >= order.bars[certainty]:
                sure = order.confidence(first.probability)
                return Merged(
                    first.text,
                    "anchored",
                    len(readings),
                    certainty=certainty,
                    confidence=sure,
                    candidates=candidates,
                )
    reason = doubt or "The snippet may be read in several ways, and none of them is likely enough."
    return Unresolved("open_intent", reason, len(readings), suggestion=_SUGGESTION, candidates=candidates)


def _has_one_place(text: str, sketch: Sketch) -> bool:
    """Tell whether each block of a snippet stands in one place of the file, and no other place is much like it.

    A snippet without a marker may be the whole file, so it has to be all of it.
    """
    keys = [line.strip() for line in text.split("\n") if line.strip()]
    blocks = [[line.strip() for line in block if line.strip()] for block in sketch.blocks]
    if not sketch.elides:
        return len(blocks[0]) == len(keys)
    return all(_num_alike(keys, block) == 1 for block in blocks)


def _num_alike(keys: Sequence[str], block: Sequence[str]) -> int:
    """Return at how many lines of a file lines begin that are like those of a block, line by line."""
    if len(block) > len(keys) or len(block) * len(keys) > _MAX_COMPARED:
        return 0
    table = cdist(block, keys, scorer=fuzz.ratio, dtype=np.float32)
    num = len(keys) - len(block) + 1
    total = sum(table[row, row : row + num] for row in range(len(block)))
    return int(np.count_nonzero(total >= _RIVAL * len(block)))


def _candidates(found: Sequence[Reading], order: Order) -> tuple[Candidate, ...]:
    if not found:
        return ()
    total = sum(one.probability for one in found) or 1.0
    sure = order.confidence(found[0].probability)
    rest = (1.0 - sure) / max(1e-9, 1.0 - found[0].probability)
    return tuple(
        Candidate(
            one.text,
            max(_MIN_SCORE, round(one.probability / total, 4)),
            one.why,
            round(sure if one is found[0] else min(sure, one.probability * rest), 4),
        )
        for one in found
    )


def _fill(text: str, sketch: Sketch) -> MergeOutcome:
    if sketch.elides:
        reason = "The file is empty, so there is nothing that a placeholder can stand for."
        return Unresolved("open_intent", reason, suggestion=_SUGGESTION)
    whole = "".join(line + "\n" for line in sketch.blocks[0])
    return Merged(whole, "anchored") if whole != text else AlreadyApplied("The file holds these lines already.")


def doubt_of(text: str, edit: ParsedEdit) -> str:
    """Return why no reading of a snippet can be trusted, whatever its probability; "" where nothing says so."""
    assert isinstance(edit.changes, Sketch)
    lines = text.split("\n")
    for line in lines:
        if is_placeholder(line):
            return f"The file itself holds the placeholder line '{line.strip()}'."
    stands = {line.strip() for line in lines}
    for line in (line for block in edit.changes.blocks for line in block if line.strip() not in stands):
        if holds_placeholder(line):
            return f"A placeholder stands behind code in the line '{line.strip()}'."
        if _OTHER_FORMAT.match(line):
            return f"The line '{line.strip()}' belongs to another format of edits, or to a file."
        if _NOTE.match(line):
            return f"The comment '{line.strip()}' may be a note about the edit, or part of it."
    told = _GOES.search(edit.prose) or _BECOMES.search(edit.prose)
    if told is not None:
        return f"The text around the code says more than the code shows ('{told[0].strip()}'): lines may have to go."
    return ""
