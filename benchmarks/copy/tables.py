"""The contest as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.copy.outcome import OWN, PLAIN, Outcome
from benchmarks.copy.rows import Row, pass_rows, rows
from benchmarks.engine.tables import number, table


def tables(outcome: Outcome) -> str:
    """Everything for people."""
    found = rows(outcome)
    measured = [row for row in found if "output_tokens" in row]
    parts = [
        _ours(measured),
        _scopes(found),
        _peers(measured),
        _settings(outcome),
        _passes(outcome),
        *(f"{row['case']}: no speed is told: {row['parted']}" for row in found if "parted" in row),
        *(_fresh(row) for row in found if row["case"] == "fresh" and "parted" not in row),
        *(f"{name}: not copied whole: {why}" for name, why in outcome.not_measured.items()),
        *(f"{name} was left out: {why.splitlines()[0]}" for name, why in outcome.left_out.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _ours(found: Sequence[Row]) -> str:
    heads = ["lines x hunks", "style", "prompt", "output", "of expected", "lines right", "forwards", "tokens/pass"]
    heads += ["tok/s", "plain tok/s", "x plain", "x best peer", "s cold", "s cached", "s plain cold"]
    lines = [
        [
            row["case"],
            row["style"],
            f"{row['prompt_tokens']:,}",
            f"{row['output_tokens']:,}",
            f"{row['output_tokens'] / row['expected_tokens']:.0%}",
            "all" if row["exact"] else f"{row['equal_lines']:.1%}",
            f"{row['forwards']:.0f}",
            f"{row['tokens_a_pass']:.0f}",
            number(row["tok_s"]),
            number(row["plain_tok_s"]),
            _times(row["ratio_plain"]),
            _times(row["ratio_best_peer"]),
            number(row["cold_seconds"]),
            number(row["seconds"]),
            number(row["plain_seconds"]),
        ]
        for row in found
    ]
    return table(heads, lines) if lines else ""


def _scopes(found: Sequence[Row]) -> str:
    heads = [
        "scope auto: the whole apply",
        "lines",
        "prompt",
        "output",
        "forwards",
        "s an edit",
        "whole file, s",
        "result",
    ]
    lines = [
        [
            row["case"],
            f"{row['num_lines']:,}",
            f"{scope['prompt']:,}",
            f"{scope['completion']:,}",
            str(scope["forwards"]),
            number(scope["seconds"]),
            number(row.get("cold_seconds")),
            "exact" if scope["exact"] else scope["status"],
        ]
        for row in found
        if (scope := row.get("scope_auto"))
    ]
    return table(heads, lines) if lines else ""


def _peers(found: Sequence[Row]) -> str:
    heads = [
        "lines x hunks",
        "peer",
        "plain tok/s",
        "setting",
        "tok/s",
        "tokens/pass",
        "s cold",
        "tokens as ours, plain",
    ]
    heads += ["tokens as ours, drafted", "lines as ours"]
    lines = [
        [
            row["case"],
            name,
            number(peer["plain_tok_s"]),
            peer["setting"] or "-",
            number(peer["tok_s"]),
            number(peer["tokens_a_pass"]),
            number(peer["cold_seconds"]),
            _leading(peer.get(PLAIN)),
            _leading(peer.get(OWN)),
            f"{(peer.get(OWN) or peer[PLAIN])['equal_lines']:.1%}",
        ]
        for row in found
        for name, peer in row["peers"].items()
    ]
    return table(heads, lines) if lines else ""


def _leading(like: Row | None) -> str:
    if like is None:
        return "-"
    return f"{like['leading_tokens_equal']:,} ({like['pieces_equal']}/{like['pieces']} to the end)"


def _settings(outcome: Outcome) -> str:
    lines = [[peer, name, number(rate)] for peer, rates in outcome.settings.items() for name, rate in rates]
    return table(["peer", "setting", "tok/s"], lines) if lines else ""


def _passes(outcome: Outcome) -> str:
    heads = ["a pass over k tokens", "ms", "tok/s if all are confirmed", "ceiling of x plain"]
    lines = [
        [str(row["pass"]), f"{1e3 * row['seconds']:.1f}", number(row["tok_s"]), _times(row["ratio"])]
        for row in pass_rows(outcome)
    ]
    return table(heads, lines) if lines else ""


def _fresh(row: Row) -> str:
    return (
        f"nothing to copy: {row['tok_s']:.1f} tok/s with drafts, {row['plain_tok_s']:.1f} without: "
        f"{row['ratio_plain']:.3f} x plain (median of pairs)"
    )


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f} x"
