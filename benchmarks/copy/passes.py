"""What each forward pass drafted, from which source, and how much of it was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from engine.types import Draft, Proposer, RowObserver

MODEL = "model"
"""Named as the source of the token that each pass gives for free."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass that gave output tokens [at, at + num_tokens).

    `accepted`: sources and how many tokens of each, in the order of the output.
    """

    at: int
    num_tokens: int
    accepted: tuple[tuple[str, int], ...]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Pass:
        """Read what `asdict` wrote."""
        return cls(raw["at"], raw["num_tokens"], tuple((source, count) for source, count in raw["accepted"]))


class Traced:
    """A proposer that notes its drafts; it passes everything on to another."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._drafts: dict[int, tuple[tuple[str, int], ...]] = {}

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """The other's draft."""
        draft = self._proposer.propose(output_ids, max_tokens)
        self._drafts[len(output_ids)] = tuple(cut(draft_runs(draft), max_tokens))
        return draft

    def passes(self, times: Sequence[float]) -> list[dict[str, Any]]:
        """All passes of an output whose tokens came at these times: those of one pass came together."""
        found, at = [], 0
        for _, together in groupby(times):
            num_tokens = len(list(together))
            accepted = (*cut(self._drafts.get(at, ()), num_tokens - 1), (MODEL, 1))
            found.append(asdict(Pass(at, num_tokens, accepted)))
            at += num_tokens
        return found


class TracedObserver(Traced):
    """The same for a drafter that wants to be shown what the passes showed."""

    def __init__(self, proposer: Proposer, observer: RowObserver) -> None:
        """Both are the same object."""
        super().__init__(proposer)
        self._observer = observer

    def rows_behind(self, num_accepted: int, num_drafted: int) -> int:
        """As many as the other wants."""
        return self._observer.rows_behind(num_accepted, num_drafted)

    def observe(self, num_output: int, draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        """What the pass showed, for the other."""
        self._observer.observe(num_output, draft_ids, likeliest_ids)


def traced(proposer: Proposer) -> Traced:
    """A proposer that notes its drafts, and is an observer where the other is one."""
    other: object = proposer
    return TracedObserver(proposer, other) if isinstance(other, RowObserver) else Traced(proposer)


def draft_runs(draft: Draft) -> list[tuple[str, int]]:
    """Sources and how many tokens of each."""
    return [(run.source, run.num_tokens) for run in draft.runs]


def cut(runs: Sequence[tuple[str, int]], num_tokens: int) -> Iterator[tuple[str, int]]:
    """The first so many tokens of runs."""
    for source, count in runs:
        if num_tokens <= 0:
            return
        yield source, min(count, num_tokens)
        num_tokens -= count
