"""The values of reuse: what a request allows, what was found stored, why a token is run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError

ReuseMode = Literal["exact", "fast", "turbo"]
"""How much KV a prompt takes from earlier ones.

`exact`: that of its longest cached prefix, so that the answer is that of a cold run. `fast`: that of unchanged tokens
behind a change, too, but for the rest of the changed segment and a budget of others. `turbo`: that of all unchanged
tokens.
"""

RecomputeReason = Literal["changed", "segment", "budget", "asked", "tail"]
"""Why a prompt's token is run: nothing stored fits it; it stands behind a change in the changed segment; it was chosen
by the budget; the request asks for it; it is among the last, whose logits or whose view of the whole is wanted."""


@dataclass(frozen=True, slots=True)
class PromptSegment:
    """A run of a prompt's tokens with a border of meaning at its end; `key` names its content, b"" what changes often.

    A segment is what a change spoils as a whole: the definition in a file, the turn of a history.
    """

    token_ids: Sequence[int]
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a request allows. Raises RequestError where the numbers make no sense.

    segment_ends: where the prompt's segments end, in tokens, ascending; what lies behind the last is one more. budget:
    the share, in [0, 1], of the tokens behind the first change that is run again although it is stored (None: the
    mode's own; 1: all of them, which is a full prefill). recompute: half-open ranges of the prompt that are run
    whatever is stored. edit_class: what kind of edit the prompt follows, as the caller names it; audits keep apart what
    they find of each.
    """

    mode: ReuseMode = "exact"
    segment_ends: Sequence[int] = ()
    budget: float | None = None
    recompute: Sequence[tuple[int, int]] = ()
    edit_class: str = ""

    def __post_init__(self) -> None:
        if self.mode not in ("exact", "fast", "turbo"):
            raise RequestError(f"reuse mode {self.mode!r} is not one of exact, fast, turbo")
        if self.budget is not None and not 0.0 <= self.budget <= 1.0:
            raise RequestError(f"the reuse budget is {self.budget}; it must lie in [0, 1]")
        if any(second < first for first, second in pairwise(self.segment_ends)):
            raise RequestError("segment_ends must ascend")
        if any(first < 0 or end < first for first, end in self.recompute):
            raise RequestError("a range to recompute begins before the prompt or ends before it begins")

    @classmethod
    def of(cls, segments: Sequence[PromptSegment], mode: ReuseMode, budget: float | None = None) -> Reuse:
        """For a prompt of these segments."""
        return cls(mode, tuple(accumulate(len(each.token_ids) for each in segments)), budget)


EXACT = Reuse()
"""What a request allows that says nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """The prompt's tokens [start, start + len(slots)) are stored, in these slots of the span store, in this order.

    source: where the first of them stood in the prompt that it was stored of. record: which prompt that was; matches
    of one record that keep their distance saw one another. generation: 0 where the stored KV is what a full prefill
    computed; n where it looked back on KV that was taken over and had missed n changes.
    """

    start: int
    slots: NDArray[np.int64]
    source: int
    record: int
    generation: int = 0

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.start + len(self.slots)

    def cut(self, start: int, end: int) -> Match:
        """The part of it at the positions [start, end), which must lie within."""
        assert self.start <= start <= end <= self.end, "the part is not of this match"
        first = start - self.start
        return Match(start, self.slots[first : end - self.start], self.source + first, self.record, self.generation)
