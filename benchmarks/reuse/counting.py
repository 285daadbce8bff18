"""What each mode runs again of a session's prompts, by the engine's own bookkeeping and without a forward pass.

A turn is booked as the engine books it: pages of the exact prefix cache, then the span store's matches and the plan of
what they are good for; what would be run is entered as if it had been, and so is the recorded answer. Tests hold the
counts to what a real engine reports of the same turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from benchmarks.reuse.compaction import WINDOW, Compactor, Limits
from benchmarks.reuse.prompts import Prompts
from benchmarks.reuse.sessions import Message, Session
from engine.kv_cache import KVPages, root_key
from engine.reuse import PromptSegment, RecomputeReason, Reuse, ReuseMode, ReusePlan, plan_reuse
from engine.reuse.plan import Lineage
from engine.reuse.span_index import SpanIndex
from engine.reuse.span_store import SpanStore
from engine.runner.kv_reuse import Recording

PAGE_SIZE = 32
NUM_PAGES = 2 * 16_384 // PAGE_SIZE
"""Those of an engine as it is by default: two prompts of the longest."""

ALL = 1 << 30
"""Idle time for any prompt."""

NUM_SLOTS = 65_536
"""Tokens in the span store: 0.8 GB for the 0.5B model, 1.9 GB for the 1.5B one."""


@dataclass(frozen=True, slots=True)
class TurnCount:
    """What became of one prompt's tokens, as in `GenerationUsage`: the first three add up to `prompt`.

    new: tokens of messages that are in this prompt for the first time, and no answer of the turn before: nobody can
    have their KV, but of the same text elsewhere. compacted: whether the prompt was cut since the turn before.
    """

    prompt: int
    cached: int
    reused: int
    recomputed: int
    by_reason: Mapping[RecomputeReason, int]
    new: int = 0
    compacted: bool = False


class Books:
    """One engine's books: what it would have cached and stored."""

    def __init__(self, num_pages: int = NUM_PAGES, num_slots: int = NUM_SLOTS, page_size: int = PAGE_SIZE) -> None:
        self.num_pages = num_pages
        self._pages = KVPages(num_pages, page_size)
        self._index = SpanIndex(num_slots)
        self._lineage = Lineage()
        self._num_sequences = 0

    def turn(
        self, segments: Sequence[PromptSegment], mode: ReuseMode, answer_ids: Sequence[int] = (), salt: str = ""
    ) -> TurnCount:
        """Run a prompt and the answer to it, one token of which is the turn's end and has no KV."""
        prompt = [token for segment in segments for token in segment.token_ids]
        all_ids, root = [*prompt, *answer_ids], root_key(b"", salt, None)
        sequence, self._num_sequences = self._num_sequences, self._num_sequences + 1
        num_cached = self._pages.open(sequence, prompt, root)
        plan = None if mode == "exact" else self._plan(segments, prompt, num_cached, root, mode)
        if plan is not None:
            self._pages.taint(sequence, plan.num_exact)
        has_grown = self._pages.grow(sequence, len(all_ids))
        assert has_grown, "alone every sequence fits"
        self._pages.take_copies()
        self._pages.commit(sequence, all_ids[num_cached:])
        self._pages.close(sequence)
        run = list(range(num_cached, len(prompt))) if plan is None else plan.pending.tolist()
        self._record(root, all_ids, [*run, *range(len(prompt), len(all_ids))], plan)
        reused = 0 if plan is None else plan.num_placed
        by_reason: dict[RecomputeReason, int] = {"changed": len(run)} if plan is None else dict(plan.by_reason)
        return TurnCount(len(prompt), num_cached, reused, len(run), by_reason)

    def rebuild(self, segments: Sequence[PromptSegment], most: int, salt: str = "") -> int:
        """Run up to `most` tokens of a prompt exactly, as the engine does while nobody waits; returns how many it ran.

        What an interrupted run has computed stays: the next one goes on from there.
        """
        prompt = [token for segment in segments for token in segment.token_ids]
        num_cached = self._pages.num_cached(prompt, root_key(b"", salt, None))
        return self.turn([PromptSegment(prompt[: num_cached + most])], "exact", salt=salt).recomputed

    def check_integrity(self) -> None:
        """The books add up."""
        self._pages.check_integrity()
        self._index.check_integrity()

    def _plan(
        self, segments: Sequence[PromptSegment], prompt: list[int], num_cached: int, root: bytes, mode: ReuseMode
    ) -> ReusePlan | None:
        matches = self._index.find(root, np.array(prompt, np.uint32), num_cached)
        plan = plan_reuse(len(prompt), num_cached, matches, Reuse.of(segments, mode), self._lineage)
        return plan if plan.placed else None

    def _record(self, root: bytes, token_ids: list[int], positions: list[int], plan: ReusePlan | None) -> None:
        recording = Recording(cast(SpanStore, self._index))  # of a store, it uses what the index has
        recording.reserve(len(positions))
        recording.keep(positions)
        recording.plan = plan
        recording.enter(root, token_ids, self._lineage)
        recording.give_back()


@dataclass(slots=True)
class SessionCount:
    """One session's turns in one mode.

    idle: tokens that the engine has time for between two turns, while tools run; rebuilt: how many it ran.
    """

    session: str
    mode: str
    idle: int = 0
    turns: list[TurnCount] = field(default_factory=list)
    rebuilt: int = 0

    def total(self, name: str) -> int:
        """The sum over the turns of a field of `TurnCount`."""
        return sum(int(getattr(turn, name)) for turn in self.turns)

    @property
    def by_reason(self) -> Counter[str]:
        """Recomputed tokens by why."""
        found: Counter[str] = Counter()
        for turn in self.turns:
            found.update(turn.by_reason)
        return found


@dataclass(frozen=True, slots=True)
class Prompt:
    """One turn's prompt: its segments, the answer's ids, and what `TurnCount` says of it beside the counts."""

    segments: list[PromptSegment]
    answer_ids: list[int]
    new: int
    compacted: bool


def prompts_of(session: Session, prompts: Prompts, limits: Limits = WINDOW) -> list[Prompt]:
    """The prompts of a session's turns, compacted."""
    compactor = Compactor(prompts.size, limits)
    made, before, answer = [], set[Message](), None
    for turn in session.turns:
        num_compactions = compactor.num_compactions
        messages = compactor.prompt(turn.messages)
        new = [message for message in messages if message not in before and message != answer]
        made.append(
            Prompt(
                prompts.of(messages),
                [] if turn.answer is None else prompts.answer(turn.answer),
                sum(map(prompts.size, new)),
                compactor.num_compactions > num_compactions,
            )
        )
        before, answer = set(messages), turn.answer
    return made


def count(
    name: str, made: Sequence[Prompt], mode: ReuseMode, books: Books, *, salt: str = "", idle: int = 0
) -> SessionCount:
    """Replay a session's prompts; between two turns up to `idle` tokens of what was taken over are run exactly."""
    found = SessionCount(name, mode, idle)
    for prompt in made:
        turn = books.turn(prompt.segments, mode, prompt.answer_ids, salt)
        found.turns.append(replace(turn, new=prompt.new, compacted=prompt.compacted))
        if idle and turn.reused:
            found.rebuilt += books.rebuild([*prompt.segments, PromptSegment(prompt.answer_ids)], idle, salt)
    return found
