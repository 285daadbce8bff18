"""The nearest miss: the place in a file that is most like lines that were not found, shown as a small diff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rapidfuzz import fuzz, process

from editor.alignment import line_opcodes

# A search over more lines than this would take seconds for an error message.
_MAX_LINES = 40_000
_NUM_PROBES = 6
_MIN_LIKENESS = 50.0
_MAX_SHOWN = 24


def nearest_miss(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """Return 'lines 12-15 are nearest (87 % alike)' with a diff from what was wanted to what stands there, or ''."""
    start, likeness = _best_place(lines, wanted)
    if likeness < _MIN_LIKENESS:
        return ""
    found = lines[start : start + len(wanted)]
    where = f"line {start + 1} is" if len(found) == 1 else f"lines {start + 1}-{start + len(found)} are"
    shown = _small_diff(wanted, found)
    return "\n".join([f"{where} nearest ({likeness:.0f} % alike; '-' was sent, '+' is in the file):", *shown])


def _best_place(lines: Sequence[str], wanted: Sequence[str]) -> tuple[int, float]:
    """Let the longest wanted lines vote where the rest should be, then compare the most voted places in full."""
    probes = sorted(range(len(wanted)), key=lambda at: -len(wanted[at].strip()))[:_NUM_PROBES]
    stripped = [line.strip() for line in lines[:_MAX_LINES]]
    votes: Counter[int] = Counter()
    for probe in probes:
        hits = process.extract(wanted[probe].strip(), stripped, scorer=fuzz.ratio, limit=5, score_cutoff=60)
        for _, score, at in hits:
            votes[max(0, at - probe)] += int(score)
    sought = "\n".join(wanted)
    places = [(fuzz.ratio(sought, "\n".join(lines[at : at + len(wanted)])), -at) for at, _ in votes.most_common(8)]
    likeness, place = max(places, default=(0.0, 0))
    return -place, likeness


def _small_diff(wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    shown: list[str] = []
    for op in line_opcodes(wanted, found):
        if op.equal:
            shown += ("  " + line for line in _abridged(wanted[op.a_start : op.a_end]))
        else:
            shown += ("- " + line for line in wanted[op.a_start : op.a_end])
            shown += ("+ " + line for line in found[op.b_start : op.b_end])
    return shown if len(shown) <= _MAX_SHOWN else [*shown[:_MAX_SHOWN], f"  ({len(shown) - _MAX_SHOWN} lines more)"]


def _abridged(lines: Sequence[str]) -> Sequence[str]:
    return lines if len(lines) <= 3 else [lines[0], f"({len(lines) - 2} equal lines)", lines[-1]]
