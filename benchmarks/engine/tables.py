"""The contest as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.engine.agreement import Agreement
from benchmarks.engine.contest import Outcome
from benchmarks.engine.contestants import OURS
from benchmarks.engine.rows import TITLES, Row, figure_rows, pass_rows, typical


def tables(outcome: Outcome) -> str:
    """Everything for people."""
    machine = typical(outcome.machines)
    best = max(outcome.products[-1], key=lambda product: float(product["flops_s"]))
    packed = "prepacked" if best["prepacked"] else "plain"
    parts = [
        f"GEMM ceiling {machine.flops_s / 1e12:.2f} TFLOP/s ({best['shape']}, {best['num_rows']} rows, {packed}), "
        f"memory read at {machine.read_bytes_s / 1e9:.1f} GB/s",
        _figure_table(outcome),
        _pass_table(pass_rows(outcome)),
        *(_agreement_line(peer, found) for peer, found in outcome.agreements.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _figure_table(outcome: Outcome) -> str:
    peers = list(outcome.agreements)
    heads = ["", OURS, *(head for peer in peers for head in (peer, "ours ahead"))]
    lines = []
    for row in figure_rows(outcome):
        cells = [TITLES[row["figure"]], number(row["median"][OURS])]
        for peer in peers:
            ahead = row["ours_ahead"].get(peer)
            cells += [number(row["median"].get(peer)), "-" if ahead is None else f"{ahead:.2f} x"]
        lines.append(cells)
    return table(heads, lines)


def _pass_table(rows: Iterable[Row]) -> str:
    heads = ["one pass", "ms", "GFLOP", "MB", "least ms", "roofline share"]
    lines = [
        [
            row["pass"],
            f"{1e3 * row['seconds']:.1f}",
            f"{row['flops'] / 1e9:.1f}",
            f"{row['bytes'] / 1e6:.0f}",
            f"{1e3 * row['least_seconds']:.1f}",
            f"{row['roofline_share']:.0%}",
        ]
        for row in rows
    ]
    return table(heads, lines)


def _agreement_line(peer: str, by_measure: Mapping[str, Agreement]) -> str:
    found = sum(by_measure.values(), Agreement())
    withheld = [measure for measure, one in by_measure.items() if not one.comparable]
    return (
        f"{peer}: {found.equal} of {found.outputs} outputs are ours to the end, {found.near_ties} part at a near-tie, "
        f"{found.parted_far} elsewhere, {found.first_tokens_wrong} at the first token; "
        f"{found.tokens_agreed} of {found.tokens_compared} tokens agree"
        + (f"; no speed is shown for: {', '.join(withheld)}" if withheld else "")
    )


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Markdown, the columns padded."""
    widths = [max(len(line[column]) for line in (heads, *lines)) for column in range(len(heads))]
    padded = [
        [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in (heads, ["-" * width for width in widths], *lines)
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)
