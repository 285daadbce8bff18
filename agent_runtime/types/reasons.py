"""Why an edit is refused, as its sender is told."""

from __future__ import annotations

from dataclasses import dataclass

from editor.types import ReasonCode


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of an edit that no rule proves: its score in (0, 1], what was assumed, and its short diff.

    `confidence` is the probability, in [0, 1], that it is right; None where there is none.
    """

    score: float
    why: str
    diff: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the edit of one file is refused, short enough to be handed to a model.

    `num_candidates` counts the places or readings that came into question, `candidates` holds the likeliest of them.
    `nearest` is the closest miss as text with line numbers, `suggestion` what to send instead.
    """

    code: ReasonCode
    reason: str
    num_candidates: int = 0
    nearest: str = ""
    suggestion: str = ""
    candidates: tuple[Reading, ...] = ()
    path: str = ""
