"""What was counted and measured, as tables for people, which docs/kernels.md takes as they are, and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.ops.measuring import Measured, Way
from benchmarks.ops.shapes import common, label, model_of

HEADS = ("shape", "MB", "GFLOP", "floor, µs", "measured, µs", "best peer, µs", "share")
CACHED = "\\*"
TINY = 0.001
WITH = "With "


def op_lines(rows: Sequence[Measured]) -> Iterator[str]:
    """One op's tables, one for each model's sizes: what all its shapes have alike, then a line a shape."""
    for number, (_, found) in enumerate(groupby(rows, key=lambda row: model_of(row.shape))):
        own = list(found)
        alike = common([row.shape for row in own]) if len(own) > 1 else dict(model_of(own[0].shape))
        if number:
            yield ""
        yield f"{WITH}{label(alike)}:"
        yield ""
        yield _line(HEADS)
        yield _line(["---", *["--:"] * (len(HEADS) - 1)])
        for row in own:
            yield _line([label(row.shape, alike), *counted_cells(row), *_measured_cells(row)])
    if any(row.cached for row in rows):
        yield ""
        yield f"{CACHED} All inputs together fit the card's cache, so it can be quicker than the floor."


def way_lines(rows: Sequence[Measured]) -> Iterator[str]:
    """Each way's time with its spread, and its error; or why it has none."""
    for row in rows:
        yield f"  {label(row.shape)}"
        for way in row.ways:
            yield f"    {way.name:16} {_timed(way)}"


def counted_cells(row: Measured) -> list[str]:
    """MB, GFLOP and the floor in µs, the same on every machine."""
    return [digits(row.cost.num_bytes / 1e6), digits(row.cost.num_flops / 1e9), digits(1e6 * row.floor_s)]


def row_json(row: Measured) -> dict[str, Any]:
    """One shape, for programs."""
    found: dict[str, Any] = {
        "op": row.op,
        "shape": dict(row.shape),
        "bytes": row.cost.num_bytes,
        "flops": row.cost.num_flops,
        "floor_s": row.floor_s,
        "share": row.share,
        "cached": row.cached,
        "ways": {way.name: _way_json(way) for way in row.ways},
    }
    if row.own and row.peer and row.own.timing and row.peer.timing:
        found["ratio_best_peer"] = row.peer.timing.median_s / row.own.timing.median_s
    return found


def digits(number: float) -> str:
    """Three digits that count: 0.0123, 1.23, 123, 12,300; what is tiny is told as that."""
    if 0 < number < TINY:
        return f"< {TINY}"
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def _measured_cells(row: Measured) -> list[str]:
    own, peer = row.own, row.peer
    mark = CACHED if row.cached and own else ""
    return [
        f"{digits(1e6 * own.timing.median_s)}{mark}" if own and own.timing else "",
        f"{digits(1e6 * peer.timing.median_s)} ({peer.name})" if peer and peer.timing else "",
        "" if row.share is None else f"{row.share:.0%}",
    ]


def _timed(way: Way) -> str:
    if way.timing is None:
        return f"- {way.why}"
    launched = "" if way.timing.graphed else ", launches included"
    return f"{digits(1e6 * way.timing.median_s)} µs, spread {way.timing.spread:.1%}, error {way.error:.1e}{launched}"


def _way_json(way: Way) -> Mapping[str, Any]:
    timing = way.timing
    if timing is None:
        return {"error": way.error if way.error < float("inf") else None, "why": way.why}
    return {
        "error": way.error,
        "median_s": timing.median_s,
        "spread": timing.spread,
        "runs": len(timing.seconds),
        "graphed": timing.graphed,
    }


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
