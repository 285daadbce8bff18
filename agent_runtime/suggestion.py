"""Suggests the name that a misspelt one may mean."""

from __future__ import annotations

from collections.abc import Iterable

from rapidfuzz import process
from rapidfuzz.distance import OSA


def find_nearest(name: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """Return the known name nearest to `name`, or None where none has a similarity of `least` (0 to 1)."""
    found = process.extractOne(name, list(known), scorer=OSA.normalized_similarity, score_cutoff=least)
    return found[0] if found else None
