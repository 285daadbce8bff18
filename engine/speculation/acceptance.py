"""The probability that the model accepts a drafted token."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from engine.speculation.copy_plan import TELLING, CopyPlan, CopyRun, MatchQuality
from engine.speculation.sources import Sources
from engine.types import Draft, DraftRun


class CopyKind(Enum):
    """Kinds of planned tokens."""

    CERTAIN = "copy of the only merge"
    CERTAIN_BORDER = "where a hunk of the only merge begins or ends"
    LIKELY = "copy of the best of several merges"
    LIKELY_BORDER = "where a hunk of one of several merges begins or ends"
    UNMERGED = "copy of the original without a merge"
    MATCHED = "first token after a long match"
    WEAK = "first token after a short match"
    GUESSED = "first token after a guess"
    FOUND = "copy after a match"
    FOUND_WEAK = "copy after a short match or a guess"
    RETURN = "first token after a block that was copied"
    FREE_MATCHED = "first token after a long match, where no file is written"
    FREE_WEAK = "first token after a short match, where no file is written"
    FREE_GUESSED = "first token after a guess, where no file is written"
    FREE_NEAR = "the next few tokens, where no file is written"
    FREE_MIDDLE = "those after 4 that agreed, where no file is written"
    FREE_FAR = "those after 16 that agreed, where no file is written"
    FREE_LONG = "those after 32 that agreed, where no file is written"


class DraftPrior:
    """Splits planned tokens into runs by source, with the prior hazard of each kind of token."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._borders: dict[int, list[int]] = {}
        texts = sources.texts
        self._is_free = sources.original == 0 and texts.starts[0] == texts.ends[0]  # no file is written

    def label_runs(self, plan: CopyPlan, start: int, end: int) -> tuple[DraftRun, ...]:
        """Return the runs of planned tokens [start, end), in order; they cover all of them."""
        runs: list[DraftRun] = []
        for text, kind, num_tokens in self.label_kinds(plan, start, end):
            source, hazard = self._sources.names[text], HAZARDS[kind]
            if runs and runs[-1].source == source and runs[-1].hazard == hazard:
                runs[-1] = DraftRun(source, runs[-1].num_tokens + num_tokens, hazard)
            else:
                runs.append(DraftRun(source, num_tokens, hazard))
        return tuple(runs)

    def label_kinds(self, plan: CopyPlan, start: int, end: int) -> Iterator[tuple[int, CopyKind, int]]:
        """Yield (text, kind, number of tokens) for planned tokens [start, end)."""
        runs = plan.runs
        first = max(0, bisect_right(runs, start, key=lambda run: run.start) - 1)
        for number in range(first, len(runs)):
            run_end = runs[number + 1].start if number + 1 < len(runs) else len(plan.token_ids)
            low, high = max(start, runs[number].start), min(end, run_end)
            if low < high:
                yield from self._label_run(plan, runs[number], low, high)

    def _label_run(self, plan: CopyPlan, run: CopyRun, low: int, high: int) -> Iterator[tuple[int, CopyKind, int]]:
        if self._is_free:
            yield from self._label_free_run(run, low, high)
            return
        if low == run.start and run.quality in _FIRST_KINDS:
            yield run.text, _FIRST_KINDS[run.quality], 1
            low += 1
        steady, border = self._choose_kinds(run)
        for place in self._find_borders(run.text) if border is not steady else ():
            at = bisect_left(plan.places, place, low, high) if low < high else high
            if at < high and plan.places[at] == place:
                if low < at:
                    yield run.text, steady, at - low
                yield run.text, border, 1
                low = at + 1
        if low < high:
            yield run.text, steady, high - low

    def _label_free_run(self, run: CopyRun, low: int, high: int) -> Iterator[tuple[int, CopyKind, int]]:
        """As `_label_run` where no file is written: what counts is how many tokens agreed before."""
        if low == run.start:
            yield run.text, _FREE_FIRST_KINDS.get(run.quality, CopyKind.FREE_MATCHED), 1
            low += 1
        first = run.start - (TELLING if run.quality is MatchQuality.MATCHED else 0)
        for kind, num_agreed in _FREE_KINDS:
            end = high if num_agreed is None else min(high, first + num_agreed)
            if low < end:
                yield run.text, kind, end - low
                low = end

    def _choose_kinds(self, run: CopyRun) -> tuple[CopyKind, CopyKind]:
        """Return the kinds of a run's tokens: in general, and at the borders of hunks."""
        if run.text < self._sources.original:
            several = self._sources.original > 1
            return (CopyKind.LIKELY, CopyKind.LIKELY_BORDER) if several else (CopyKind.CERTAIN, CopyKind.CERTAIN_BORDER)
        if run.quality is MatchQuality.FIRST:
            return CopyKind.UNMERGED, CopyKind.UNMERGED
        kind = CopyKind.FOUND if run.quality in (MatchQuality.MATCHED, MatchQuality.ALONG) else CopyKind.FOUND_WEAK
        return kind, kind

    def _find_borders(self, text: int) -> list[int]:
        """Return the places of a whole file where it, or another one, begins or ends to differ from the original."""
        if text not in self._borders:
            own = self._sources.hunks[text]
            found = {place for hunk in own.hunks for place in (hunk.start, hunk.end)}
            for other in self._sources.hunks[: self._sources.original]:
                found |= {own.find_new_place(place) for hunk in other.hunks for place in (hunk.old_start, hunk.old_end)}
            self._borders[text] = sorted(found)
        return self._borders[text]


_FIRST_KINDS = {
    MatchQuality.MATCHED: CopyKind.MATCHED,
    MatchQuality.WEAK: CopyKind.WEAK,
    MatchQuality.GUESSED: CopyKind.GUESSED,
    MatchQuality.ALONG: CopyKind.RETURN,
}

_FREE_FIRST_KINDS = {MatchQuality.WEAK: CopyKind.FREE_WEAK, MatchQuality.GUESSED: CopyKind.FREE_GUESSED}

_FREE_KINDS = (
    (CopyKind.FREE_NEAR, 4),
    (CopyKind.FREE_MIDDLE, 16),
    (CopyKind.FREE_FAR, 32),
    (CopyKind.FREE_LONG, None),
)
"""Kinds of tokens after the first of a copy, and the number of tokens that agreed up to which each holds."""

HAZARDS = {
    CopyKind.CERTAIN: 0.0003,
    CopyKind.CERTAIN_BORDER: 0.13,
    CopyKind.LIKELY: 0.0005,
    CopyKind.LIKELY_BORDER: 0.054,
    CopyKind.UNMERGED: 0.001,
    CopyKind.MATCHED: 0.15,
    CopyKind.WEAK: 0.15,
    CopyKind.GUESSED: 0.9,
    CopyKind.FOUND: 0.0014,
    CopyKind.FOUND_WEAK: 0.003,
    CopyKind.RETURN: 0.05,
    CopyKind.FREE_MATCHED: 0.15,
    CopyKind.FREE_WEAK: 0.65,
    CopyKind.FREE_GUESSED: 0.94,
    CopyKind.FREE_NEAR: 0.3,
    CopyKind.FREE_MIDDLE: 0.17,
    CopyKind.FREE_FAR: 0.08,
    CopyKind.FREE_LONG: 0.02,
}
"""Misses a token, counted on the cases of `benchmarks.forwards`: an oracle target and 600 snippets of six styles, a
third of the edits held out; 2.9 million tokens, 985 misses. Plain copies missed at 0.00004 (CERTAIN) to 0.0005
(UNMERGED); a model makes slips that an oracle does not, so these are set a few times as high. The misses of the model
at hand correct all of them (`AcceptanceModel`).

Those where no file is written are counted on 146 answers of a recorded agent session, drafted from its prompts, and on
tests and functions that the 1.5B wrote: 16,000 tokens, 6,500 misses, as they were."""

LEAST, MOST = 1e-5, 0.98
"""No draft is certain, and none is hopeless."""

LOST = 0.15
"""The least prior hazard of the first token after a miss: its value where an oracle edits files
(`benchmarks.forwards`)."""

WEIGHT = 0.25, 0.5
"""How many misses the prior counts for, of tokens after hits and of those after misses. Of the values tried, these took
the least time on real edits, with and without slips of the model."""

MEMORY = 512.0, 64.0
"""How many tokens after hits and after misses are remembered; newer ones count more."""


@dataclass(slots=True)
class MissCounts:
    """Misses that were seen and expected of tokens of one kind; both fade. `weight`: how many misses the prior counts
    for; `memory`: how many tokens are remembered.
    """

    weight: float
    memory: float
    seen: float = 0.0
    expected: float = 0.0

    def learn(self, num_tokens: int, hazard: float, *, missed: bool) -> None:
        """Count tokens with this hazard, the last of which missed or did not."""
        fading = (1.0 - 1.0 / self.memory) ** num_tokens
        self.seen = self.seen * fading + missed
        self.expected = self.expected * fading + num_tokens * hazard

    def correct(self, hazard: float) -> float:
        """Return the hazard times the ratio of misses seen and expected."""
        return _clip(hazard * (self.weight + self.seen) / (self.weight + self.expected))


@dataclass(slots=True)
class _SourceMisses:
    """The misses of one source."""

    after_hits: MissCounts = field(default_factory=lambda: MissCounts(WEIGHT[0], MEMORY[0]))
    after_misses: MissCounts = field(default_factory=lambda: MissCounts(WEIGHT[1], MEMORY[1]))


@dataclass(slots=True)
class AcceptanceModel:
    """The hazards of one request's drafts, by source.

    A model that edits either copies, and then rarely differs from the draft, or writes something new, and then any
    draft is wrong. The last token shows which: it was drafted, or it was not. So two rates are learned for every
    source: how often it is wrong after a token that was drafted right, and after one that was not. Each scales the
    drafter's hazard by misses seen over misses expected, the mean of the Gamma posterior of that ratio.

    Example: drafts with hazard 0.01 that miss at their first token: 0.01 at first, then 0.15 * (0.5 + 1) / (0.5 + 0.15)
    = 0.35, then 0.47, ...; had the first 100 tokens of one been right, 0.01 * 0.25 / (0.25 + 1) = 0.002 would be next.

    lost: the least prior hazard of the first token after a miss.
    """

    lost: float = LOST

    _on_track: bool | None = None  # None: nothing was foretold yet, so nothing is known but what the drafter says
    _sources: dict[str, _SourceMisses] = field(default_factory=dict)

    def estimate_runs(self, draft: Draft) -> Iterator[tuple[int, float]]:
        """Yield (tokens, hazard of each) along a draft."""
        is_lost = self._on_track is False
        for run in draft.runs:
            evidence, num_tokens = self._sources.get(run.source, _NOTHING), run.num_tokens
            if is_lost and num_tokens:
                yield 1, evidence.after_misses.correct(self._raise_after_miss(run.hazard))
                num_tokens, is_lost = num_tokens - 1, False
            if num_tokens:
                yield num_tokens, evidence.after_hits.correct(_clip(run.hazard))

    def observe(self, draft: Draft, num_right: int, *, missed: bool) -> None:
        """Learn that the model wrote so many tokens of a draft, and another one than the next if it `missed`.

        Tokens that were not verified count too: what the model wrote by itself shows whether they are right.
        """
        left = num_right + missed
        for run in draft.runs:
            num_seen = min(run.num_tokens, left)
            if num_seen:
                left -= num_seen
                evidence = self._sources.setdefault(run.source, _SourceMisses())
                self._learn(evidence, run.hazard, num_seen, missed=missed and left == 0)

    def observe_silence(self) -> None:
        """Learn that the model wrote a token for which there was no draft."""
        self._on_track = False

    def _learn(self, evidence: _SourceMisses, hazard: float, num_seen: int, *, missed: bool) -> None:
        misses_at_once = missed and num_seen == 1
        if self._on_track is False or (self._on_track is None and misses_at_once):
            evidence.after_misses.learn(1, self._raise_after_miss(hazard), missed=misses_at_once)
            num_seen -= 1
        if num_seen:
            evidence.after_hits.learn(num_seen, _clip(hazard), missed=missed)
        self._on_track = not missed

    def _raise_after_miss(self, hazard: float) -> float:
        return _clip(max(self.lost, hazard))


_NOTHING = _SourceMisses()


def _clip(hazard: float) -> float:
    return min(MOST, max(LEAST, hazard))
