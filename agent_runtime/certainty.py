"""How sure a merge is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Certainty = Literal["certain", "likely", "scored", "model"]
"""How sure a merge is, and who decided; the surest first.

`certain`: a rule with one place, or a reading above the strict bar. `likely`: a reading above the lower bar, without a
model. `scored`: a model chose one of the readings. `model`: a model wrote the merge."""

CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)
"""All certainties, the surest first."""

WRITE_CERTAINTY: Certainty = "likely"
"""Default minimum for a merge that is written before anybody has seen it."""


def is_as_sure(certainty: Certainty, least: Certainty) -> bool:
    """Return whether a certainty is at least as sure as `least`."""
    return CERTAINTIES.index(certainty) <= CERTAINTIES.index(least)


def find_surest(certainties: Iterable[Certainty]) -> Certainty:
    """Return the surest of at least one certainty."""
    return min(certainties, key=CERTAINTIES.index)


def find_least_sure(certainties: Iterable[Certainty]) -> Certainty:
    """Return the least sure certainty; `certain` if there is none."""
    return max(certainties, key=CERTAINTIES.index, default="certain")


def describe_certainty(certainty: Certainty, rung: str, confidence: float | None) -> str:
    """Describe for a person or an agent who made a merge and how sure it is. `confidence` is rounded down."""
    by = {"certain": f"by rule ({rung})", "likely": f"as its likeliest reading ({rung})"}.get(certainty, "by the model")
    sure = {"likely": "likely right", "scored": "chosen and checked", "model": "checked"}.get(certainty)
    share = "" if sure is None or confidence is None else f" ({format_percent(confidence)})"
    return f"{by}, {sure or certainty}{share}"


def format_percent(confidence: float) -> str:
    """Return a confidence in whole per cent, rounded down: only 1 is 100 %."""
    return f"{int(confidence * 100)} %"
