"""What changes with every request by its nature: points in time, random ids, counters; found where two texts part."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "uuid",
        re.compile(r"(?<![0-9a-zA-Z])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9a-zA-Z])"),
    ),
    (
        "timestamp",
        re.compile(
            rf"""\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}  # 2026-01-31T09:30:00.123Z
                (?:[T ,]+\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d+)?)?(?:\s?[AaPp][Mm])?
                (?:\s?(?:Z|UTC|GMT|[+-]\d{{2}}:?\d{{2}}))?)?
            | (?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?,?\s+)?  # Sat, 31 Jan 2026 09:30:00
                (?:\d{{1,2}}\s+(?:{_MONTHS})[a-z]*|(?:{_MONTHS})[a-z]*\s+\d{{1,2}})(?:,?\s+\d{{4}})?
                (?:[ ,]+(?:at\s+)?\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?:\s+\d{{4}})?)?
            | \d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}(?:[T ,]+\d{{1,2}}:\d{{2}}(?::\d{{2}})?)?  # 31.01.2026
            | \d{{1,2}}:\d{{2}}(?::\d{{2}}(?:\.\d+)?)?(?:\s?[AaPp][Mm])?  # 09:30
            | (?<!\d)1[5-9]\d{{8}}(?:\.\d+|\d{{3}}|\d{{6}}|\d{{9}})?(?!\d)  # 1769851800
            """,
            re.VERBOSE,
        ),
    ),
    (
        "id",
        re.compile(
            r"(?<![0-9a-zA-Z_-])(?=[0-9a-zA-Z_-]*\d)(?=[0-9a-zA-Z_-]*[a-zA-Z])[0-9a-zA-Z_-]{8,}(?![0-9a-zA-Z_-])"
        ),
    ),
    ("counter", re.compile(r"(?<![\w.])\d+(?![\w.])|(?<=[#_])\d+\b")),
)
"""In the order in which they are tried: a point in time holds numbers, too."""


@dataclass(frozen=True, slots=True)
class Volatile:
    """A value that differs between two lines: its kind, what it reads in either, the character at which it begins."""

    kind: str
    first: str
    second: str
    start: int


def volatile_at(first: str, second: str, place: int) -> Volatile | None:
    """What value of these kinds two lines part in, at character `place`; None where they do not part in one."""
    for kind, pattern in _KINDS:
        one, other = _covering(pattern, first, place), _covering(pattern, second, place)
        if one is not None and other is not None and one.group() != other.group():
            return Volatile(kind, one.group(), other.group(), one.start()) if _is_value(kind, one, other) else None
    return None


def _is_value(kind: str, one: re.Match[str], other: re.Match[str]) -> bool:
    """Names in code look like ids; random ones are full of digits."""
    if kind != "id":
        return True
    return all(sum(char.isdigit() for char in each.group()) >= max(2, len(each.group()) // 8) for each in (one, other))


def _covering(pattern: re.Pattern[str], line: str, place: int) -> re.Match[str] | None:
    return next((found for found in pattern.finditer(line) if found.start() <= place <= found.end()), None)
