"""Suggests the name that a misspelt one may mean."""

from __future__ import annotations

from collections.abc import Iterable

from rapidfuzz import process
from rapidfuzz.distance import OSA, JaroWinkler

LEAST_SIMILARITY = 0.6
"""Of 1; a less similar name is no suggestion."""


def find_nearest(name: str, known: Iterable[str], *, by_prefix: bool = False) -> str | None:
    """Return the most similar known name, or None; `by_prefix` gives more weight to a common beginning."""
    scorer = JaroWinkler.normalized_similarity if by_prefix else OSA.normalized_similarity
    found = process.extractOne(name, list(known), scorer=scorer, score_cutoff=LEAST_SIMILARITY)
    return found[0] if found else None
