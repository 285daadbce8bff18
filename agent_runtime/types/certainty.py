"""How sure an answer is that its merge is right, and how sure a request wants it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Certainty = Literal["certain", "likely", "scored", "model"]
"""Who decided, surest first.

`certain`: a rule with one place, or a reading above the strict bar. `likely`: a reading above the lower bar, without a
model. `scored`: a model chose one of the readings. `model`: a model wrote the merge.
"""

CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)
"""All of them, surest first."""

UNSEEN: Certainty = "likely"
"""What a merge has to be at least that is written before anybody has seen it, where nothing else is asked for."""


def is_as_sure(certainty: Certainty, least: Certainty) -> bool:
    """Tell whether a certainty is `least` or a surer one."""
    return CERTAINTIES.index(certainty) <= CERTAINTIES.index(least)


def surest(certainties: Iterable[Certainty]) -> Certainty:
    """Return the surest of one or more."""
    return min(certainties, key=CERTAINTIES.index)


def least_sure(certainties: Iterable[Certainty]) -> Certainty:
    """Return the least sure of several; `certain` of none."""
    return max(certainties, key=CERTAINTIES.index, default="certain")


def describe(certainty: Certainty, rung: str, confidence: float | None) -> str:
    """Return in words, for a person or an agent, who made a merge and how sure that is.

    `confidence` is cut to whole per cents, never rounded up.
    """
    by = {"certain": f"by rule ({rung})", "likely": f"as its likeliest reading ({rung})"}.get(certainty, "by the model")
    sure = {"likely": "likely right", "scored": "chosen and checked", "model": "checked"}.get(certainty)
    share = "" if sure is None or confidence is None else f" ({percent(confidence)})"
    return f"{by}, {sure or certainty}{share}"


def percent(confidence: float) -> str:
    """Return a confidence in whole per cents, cut: nothing short of 1 is 100 %."""
    return f"{int(confidence * 100)} %"
