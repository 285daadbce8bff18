"""How reasons and checks say what they saw."""

from __future__ import annotations

from collections.abc import Sequence

NOT_APPLICABLE = "not applicable"
SHOWN = 5
_MAX_CHARS = 120


def span_of(start: int, end: int) -> str:
    """Return 'line 3' or 'lines 3-5' for lines [start, end), which count from 0."""
    return f"line {end}" if end <= start + 1 else f"lines {start + 1}-{end}"


def listed(what: str, found: Sequence[str]) -> str:
    """Return 'what: a, b (and n more)', '' if there are none. A long line is cut."""
    if not found:
        return ""
    short = [text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…" for text in found[:SHOWN]]
    more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
    return f"{what}: {', '.join(short)}{more}"
