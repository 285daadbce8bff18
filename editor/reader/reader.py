"""Finds the readings of a lazy snippet: the whole texts that it may mean, best first, each with a confidence.

`find_readings` aligns the snippet with the file and keeps the texts that the accounting check allows. `rank_readings`
sorts them by learned weights, which stand in `weights.json`:

    {"card": {...}, "weights": {feature: weight}, "none": score of "none of these",
     "confidence": [[probability, share right], ...], "bars": {"certain": probability, "likely": probability}}

A reading has the score `weights . features`; its probability is the softmax over all readings and "none of these".
Readings that differ in blank lines only share theirs. At a bar or above it the first reading is the answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import chain, islice

import numpy as np

from editor.attribution import attribute_changes
from editor.attribution.statements import IMPORT
from editor.errors import TooMuchWorkError
from editor.execution import check_stopped
from editor.reader.alignment import Aligner
from editor.reader.candidates import FileLines, Floats, LineCandidates, Snippet
from editor.reader.costs import CostWeights, Path
from editor.reader.features import FEATURES, Draft, FeatureExtractor
from editor.reader.render import build_runs, find_moved_lines, has_own_shift, render_text
from editor.types import Candidate, ParsedEdit, ReadingCertainty, Sketch

__all__ = [
    "FEATURES",
    "MAX_CANDIDATES",
    "RankedReadings",
    "Reading",
    "ReadingRanker",
    "find_readings",
    "group_by_solid_lines",
    "limit_certainties",
    "load_ranker",
    "rank_readings",
    "read_snippet",
]

MAX_CANDIDATES = 12
MAX_CELLS = 500_000
"""Lines of a snippet times lines of a file; past it the readings of a snippet are not looked for."""

MAX_LINES = 20_000
"""Of a file, likewise: each reading is written out, parsed and accounted for."""

_NUM_PATHS = 36
_SLACK = 9.0
_MAX_DRAFTS = 96
_MAX_CHARS = 400_000
"""Of all texts that are accounted for together: a large file has fewer readings."""

_MAX_ACCOUNTS = 36
_MAX_NAMED_RUNS = 4
_MIN_SCORE = 0.0001
_MAX_BEHIND = 4.0
"""A reading whose score is less than the best one's by more has a probability of less than 2 %."""


_ERRORS = FEATURES.index("errors")

_OPEN = frozenset({
    "added_free", "adopted", "brackets", "by_hunk", "comment_for_code", "deeper", "delete_at_top", "delete_then_gap",
    "delete_unit_then_gap", "double_keys", "double_names", "drop", "elide", "errors", "gap_then_delete", "gone",
    "head_swapped", "kept_quoted", "lost_names", "maybe_marker", "moved", "new_owner", "paired_edge_other", "place",
    "pure_aside", "reindented", "removed_aside", "removed_free", "removed_twin", "renamed", "rewrite_renamed",
    "rival_first", "stands", "sub_known", "sub_other_key_at_gap", "unbound", "unheeded",
})  # fmt: skip
"""Features of a reading that is never the answer without a model. It does one of these:

- renames, moves, loses or doubles a definition, or breaks the syntax;
- puts lines of the file into a new block, or indents a new line below one that opens no block;
- changes the spaces of a line that stays;
- omits lines between two shown lines without a marker, or keeps a line that the text says is removed;
- removes a line next to a marker or next to a line that occurs twice, or swaps the condition above a block;
- adds lines next to no shown line, next to a similar line that stays, or although all shown lines are in the file;
- replaces a line next to a marker with one about another subject, or takes a comment for a marker.
"""

_DOUBTFUL = frozenset({
    "added_aside", "insert_known", "kept_named", "leave_scope", "other_owner", "paired_edge", "removed_between",
    "rewrite", "skip_closed", "sub_at_gap",
})  # fmt: skip
"""Features of a reading that is likely at most.

It removes a line, adds or replaces one beside a marker, lays out a statement in another way, keeps lines outside of a
marker's block or in another definition than shown, or has a new line that stands elsewhere too.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """One text that a snippet may mean, and its features (see `FEATURES`).

    `why` says what was assumed. `share` is the probability of this reading and of all that differ from it in blank
    lines only.
    """

    text: str
    features: tuple[float, ...]
    probability: float = 0.0
    why: str = ""
    share: float = 0.0

    @property
    def is_broken(self) -> bool:
        """Return whether the text has more syntax errors than the file: a check would reject it."""
        return self.features[_ERRORS] > 0


def render_drafts(
    file: FileLines, snippet: Snippet, weights: CostWeights, num_paths: int = _NUM_PATHS
) -> Iterator[Draft]:
    """Yield the texts of the best paths, cheapest first, each text once."""
    aligner = Aligner(file, snippet, LineCandidates(file, snippet), weights)
    seen: set[str] = set()
    for path in aligner.find_best_paths(num_paths, _SLACK):
        kept = set(chain.from_iterable(range(step.line, step.line_end) for step in path.steps if step.kind == "skip"))
        named = aligner.costs.removable & kept
        moved = find_moved_lines(file, snippet, path, kept)
        movable = any(first in moved and end - 1 in moved for first, end, _ in file.definitions)
        choices = []
        if not _has_doubled_definition(file, snippet, path, moved):
            choices = [(frozenset[int](), False), *((some, False) for some in _list_removals(file, named))]
        choices += [(moved, True)] if moved else []
        choices += [(moved | named, True)] if moved and named else []
        for gone, is_moved in choices:
            runs = build_runs(file, snippet, path, gone)
            ways = [(runs, False, False), (runs, True, False)]
            if has_own_shift(snippet, runs):
                ways.append((build_runs(file, snippet, path, gone, by_hunk=True), False, True))
            for runs, as_shown, by_hunk in ways:
                text = render_text(file, snippet, runs, as_shown=as_shown)
                if text not in seen:
                    seen.add(text)
                    yield Draft(text, runs, path, as_shown, len(gone), is_moved, movable, by_hunk)


def _has_doubled_definition(file: FileLines, snippet: Snippet, path: Path, moved: frozenset[int]) -> bool:
    """Return whether a definition with the very same head stands at its old place and at the new one."""
    new = {
        (snippet.items[step.item].key, *snippet.owners[step.item][-2:-1])
        for step in path.steps
        if step.kind == "insert"
    }
    return any(
        first in moved
        and any(file.names[at] == name and (file.keys[at], *file.owners[at][-2:-1]) in new for at in range(first, end))
        for first, end, name in file.definitions
    )


def _list_removals(file: FileLines, named: frozenset[int]) -> list[frozenset[int]]:
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


def find_readings(
    text: str, edit: ParsedEdit, language: str | None, said: tuple[str, ...] = (), ranker: ReadingRanker | None = None
) -> list[Reading]:
    """Return the legal readings of a lazy snippet that change something: with an order the likeliest first, else all.

    The texts are put in order first, and then accounted for, best first: that takes most of the time. Raises
    `TooMuchWorkError` where snippet and file are too large.
    """
    assert isinstance(edit.changes, Sketch)
    num_shown, num_lines = sum(map(len, edit.changes.blocks)), text.count("\n") + 1
    if num_lines > MAX_LINES or num_shown * num_lines > MAX_CELLS:
        raise TooMuchWorkError(f"The snippet has {num_shown} lines, and the file {num_lines}: too many to align.")
    file = FileLines(text, language)
    snippet = Snippet(edit.changes, file, (*said, edit.prose) if edit.prose else said)
    if not len(file) or not len(snippet):
        return []
    evidence = FeatureExtractor(file, snippet)
    most = min(_MAX_ACCOUNTS, max(3, _MAX_CHARS // len(text)))
    most_readings = MAX_CANDIDATES if ranker is not None else _MAX_DRAFTS
    made = list(islice(render_drafts(file, snippet, CostWeights()), min(_MAX_DRAFTS, 4 * most)))
    features = [evidence.extract(one, one.path.cost - made[0].path.cost) for one in made]
    if ranker is None:
        scores, most = np.zeros(len(made)), len(made)
    else:
        scores = np.array(features).reshape(len(made), len(FEATURES)) @ ranker.weights
    found: list[Reading] = []
    least, num_whole = -np.inf, 0
    for at in np.argsort(-scores, kind="stable")[:most].tolist():
        check_stopped()
        one = made[at]
        if num_whole == most_readings or scores[at] < least:
            break
        if one.text != text and not attribute_changes(text, one.text, edit, language, said, explain=False).faults:
            found.append(
                Reading(one.text, evidence.add_syntax_errors(features[at], one.text), why=_explain_draft(file, one))
            )
            num_whole += ranker is None or not found[-1].is_broken
            least = max(least, scores[at] - _MAX_BEHIND)
    return rank_readings(found, ranker) if ranker is not None else found


def _explain_draft(file: FileLines, draft: Draft) -> str:
    """Describe in a few words what a draft changes."""
    changes: Counter[str] = Counter(step.kind for step in draft.path.steps)
    told = [
        f"{changes[kind]} {word}"
        for kind, word in (("insert", "new"), ("sub", "changed"), ("delete", "gone"))
        if changes[kind]
    ]
    lines = [step.line for step in draft.path.steps if step.kind in ("insert", "sub", "delete", "rewrite")]
    where = f" from line {file.numbers[min(lines[0], len(file) - 1)] + 1} on" if lines else ""
    return (", ".join(told) or "lines moved") + where


def limit_certainties(features: Sequence[float]) -> tuple[ReadingCertainty, ...]:
    """Return what an answer with these features may be at most, however probable it is.

    Nothing where an excerpt without a marker leaves statements out for which it shows no new ones: they may stay.
    Likely where it changes a line and something elsewhere: one of them may be context that has changed in the file
    since.
    """
    found = {name for name, value in zip(FEATURES, features, strict=True) if value > 0}
    if found & _OPEN or ("unpaired" in found and "num_markers" not in found):
        return ()
    return ("likely",) if found & _DOUBTFUL or found >= {"more_runs", "sub"} else ("certain", "likely")


@dataclass(frozen=True)
class ReadingRanker:
    """Learned weights: of the features, of "none of these", and what a probability is worth.

    `bars` are the least probabilities of a certain and of a likely answer.
    """

    weights: Floats
    none: float
    points: tuple[tuple[float, float], ...]
    bars: tuple[tuple[ReadingCertainty, float], ...] = ()

    def compute_probabilities(self, features: Floats) -> Floats:
        """Return the probability of each reading; what they lack of 1 is that of none."""
        scores = features @ self.weights
        top = max(float(scores.max(initial=self.none)), self.none)
        powers = np.exp(scores - top)
        return np.asarray(powers / (powers.sum() + np.exp(self.none - top)), dtype=np.float64)

    def calibrate(self, probability: float) -> float:
        """Return the share of readings with this probability that are right."""
        if not self.points:
            return probability
        return float(np.interp(probability, [x for x, _ in self.points], [y for _, y in self.points]))

    def find_certainty(self, reading: Reading) -> ReadingCertainty | None:
        """Return the certainty of a reading as an answer; None if it is below all bars or assumes too much."""
        may_be = limit_certainties(reading.features)
        return next((name for name, least in self.bars if name in may_be and reading.share >= least), None)


@lru_cache(maxsize=1)
def load_ranker() -> ReadingRanker:
    """Return the order of `weights.json`; a feature that the file does not name has no weight."""
    data = json.loads(files(__package__).joinpath("weights.json").read_text(encoding="utf-8"))
    weights = np.array([float(data["weights"].get(name, 0.0)) for name in FEATURES])
    points = tuple((float(x), float(y)) for x, y in data["confidence"])
    bars = data["bars"]
    return ReadingRanker(
        weights, float(data["none"]), points, (("certain", bars["certain"]), ("likely", bars["likely"]))
    )


def rank_readings(found: Sequence[Reading], ranker: ReadingRanker) -> list[Reading]:
    """Return readings likeliest first, with their probabilities, without those far less likely than the first.

    Those that break the syntax are left out where others do not.
    """
    if not found:
        return []
    chances = ranker.compute_probabilities(np.array([one.features for one in found]))
    groups = group_by_solid_lines([one.text for one in found])
    shares = np.bincount(groups, chances)[groups]
    whole = np.array([not one.is_broken for one in found])
    kept = whole if whole.any() else ~whole
    near = np.flatnonzero(kept & (chances >= chances[kept].max() * np.exp(-_MAX_BEHIND)))
    best_first = near[np.argsort(-chances[near], kind="stable")][:MAX_CANDIDATES].tolist()
    return [replace(found[at], probability=float(chances[at]), share=float(shares[at])) for at in best_first]


def group_by_solid_lines(texts: Sequence[str]) -> list[int]:
    """Return for each text the number of the first one that has the same lines but for blank ones."""
    first: dict[tuple[str, ...], int] = {}
    lines = (tuple(line.rstrip() for line in text.split("\n") if line.strip()) for text in texts)
    return [first.setdefault(some, at) for at, some in enumerate(lines)]


@dataclass(frozen=True, slots=True)
class RankedReadings:
    """The likeliest legal readings of a snippet, likeliest first, and how sure the first is; None: below all bars."""

    candidates: tuple[Candidate, ...] = ()
    certainty: ReadingCertainty | None = None


def read_snippet(text: str, edit: ParsedEdit, language: str | None, said: tuple[str, ...] = ()) -> RankedReadings:
    """Return the readings of a lazy snippet with their calibrated confidence.

    None where snippet and file are too large, or no reading is legal.
    """
    order = load_ranker()
    try:
        found = find_readings(text, edit, language, said, order)
    except TooMuchWorkError:
        found = []
    if not found:
        return RankedReadings()
    total = sum(one.probability for one in found) or 1.0
    sure = order.calibrate(found[0].share)
    rest = (1.0 - sure) / max(1e-9, 1.0 - found[0].share)
    candidates = tuple(
        Candidate(
            one.text,
            max(_MIN_SCORE, round(one.probability / total, 4)),
            one.why,
            round(sure if one is found[0] else min(sure, one.probability * rest), 4),
        )
        for one in found
    )
    return RankedReadings(candidates, order.find_certainty(found[0]))
