"""Rows, summary and tables of the copy benchmark: medians over the rounds."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.copy.cases import GOAL
from benchmarks.copy.contest import OWN, PLAIN, Likeness, Outcome
from benchmarks.harness import Row, render_rows
from benchmarks.peers.contest import OURS

OUR_COLUMNS = {
    "lines x hunks": "{case}",
    "style": "{style}",
    "prompt": "{prompt_tokens:,}",
    "output": "{output_tokens:,}",
    "of expected": "{of_expected:.0%}",
    "lines right": "{right}",
    "forwards": "{forwards:.0f}",
    "tokens/pass": "{tokens_a_pass:.0f}",
    "tok/s": "{tok_s:n}",
    "plain tok/s": "{plain_tok_s:n}",
    "x plain": "{ratio_plain:x}",
    "x best peer": "{ratio_best_peer:x}",
    "s cold": "{cold_seconds:n}",
    "s cached": "{seconds:n}",
    "s plain cold": "{plain_seconds:n}",
}
PEER_COLUMNS = {
    "lines x hunks": "{case}",
    "peer": "{name}",
    "plain tok/s": "{plain_tok_s:n}",
    "setting": "{setting}",
    "tok/s": "{tok_s:n}",
    "tokens/pass": "{tokens_a_pass:n}",
    "s cold": "{cold_seconds:n}",
    "tokens as ours, plain": "{plain}",
    "tokens as ours, drafted": "{own}",
    "lines as ours": "{lines:.1%}",
}

SPEEDS = ("tok_s", "plain_tok_s", "ratio_plain", "ratio_best_peer", "seconds", "cold_seconds", "plain_seconds")
"""Left out of a case whose drafted output is not our plain output."""


def make_rows(outcome: Outcome) -> list[Row]:
    """Return a row for each case, and one for the file that is written freshly."""
    found = [_make_row(outcome, name) for name in outcome.cases]
    if ("fresh", OURS, "ratio") in outcome.samples:
        found.append(_make_fresh_row(outcome))
    return found


def summarise(model: str, outcome: Outcome) -> dict[str, Any]:
    """Return the keys of interfaces.md, of the goal's case where it was measured, else of the first one."""
    found = {row["case"]: row for row in make_rows(outcome) if row["case"] in outcome.tasks}
    goal = found.get(GOAL) or next(iter(found.values()), {})
    keys = ("tok_s", "plain_tok_s", "ratio_plain", "ratio_best_peer", "best_peer", "tokens_a_pass", "exact")
    forwards = [row["forwards"] for row in found.values()]
    return {
        "model": model,
        "case": goal.get("case"),
        **{key: goal.get(key) for key in keys},
        "forwards_mean": statistics.fmean(forwards) if forwards else None,
        "fresh_ratio": _make_fresh_row(outcome)["ratio_plain"] if ("fresh", OURS, "ratio") in outcome.samples else None,
        "settings": {peer: dict(rates) for peer, rates in outcome.settings.items()},
        "versions": outcome.versions,
        "left_out": outcome.left_out,
        "not_measured": outcome.not_measured,
        "num_rounds": outcome.num_rounds,
    }


def _make_row(outcome: Outcome, name: str) -> Row:
    case = outcome.cases[name]
    row: Row = {"case": name, "num_lines": case.num_lines, "style": case.style, "path": case.path}
    if name not in outcome.tasks:
        return row | {"not_measured": outcome.not_measured[name]}
    task, own = outcome.tasks[name], _take_medians(outcome, name, OURS)
    peers = {
        peer: _make_peer_row(outcome, name, peer)
        for peer in outcome.versions
        if (name, peer, PLAIN) in outcome.likeness
    }
    best = max(peers, key=lambda peer: float(peers[peer]["best_tok_s"]), default=None)
    row |= outcome.facts[name] | {
        "output_tokens": task.num_new,
        "forwards": own["passes"] - 1,  # the one that ends the prefill is not counted
        "passes": own["passes"],
        "tokens_a_pass": task.num_new / own["passes"],
        "tok_s": own["tok_s"],
        "plain_tok_s": own["plain_tok_s"],
        "ratio_plain": own["tok_s"] / own["plain_tok_s"],
        "best_peer": best,
        "ratio_best_peer": own["tok_s"] / peers[best]["best_tok_s"] if best else None,
        "seconds": own["seconds"],
        "cold_seconds": own["cold_seconds"],
        "plain_seconds": own["cold_seconds"] - own["seconds"] + task.num_new / own["plain_tok_s"],
        "near_ties": outcome.plain[name].near_ties,
        "peers": peers,
    }
    if name in outcome.parted:
        row |= dict.fromkeys(SPEEDS) | {"parted": outcome.parted[name]}
    return row


def _make_peer_row(outcome: Outcome, name: str, peer: str) -> Row:
    found, num_new = _take_medians(outcome, name, peer), outcome.tasks[name].num_new
    settings = outcome.settings.get(peer)
    best = max(found["plain_tok_s"], found.get("tok_s", 0.0))
    return {
        "plain_tok_s": found["plain_tok_s"],
        "setting": settings[0][0] if settings else None,
        "tok_s": found.get("tok_s"),
        "tokens_a_pass": found.get("tokens_a_pass"),
        "best_tok_s": best,
        "cold_seconds": found["first_seconds"] + num_new / best,
        **{
            way: _make_likeness_row(outcome.likeness[name, peer, way])
            for way in (PLAIN, OWN)
            if (name, peer, way) in outcome.likeness
        },
    }


def _make_likeness_row(likeness: Likeness) -> Row:
    found = likeness.agreement
    return {
        "pieces": found.outputs,
        "pieces_equal": found.equal,
        "pieces_parted_at_near_ties": found.near_ties,
        "leading_tokens_equal": found.tokens_agreed,
        "equal_lines": likeness.equal_lines,
    }


def _make_fresh_row(outcome: Outcome) -> Row:
    own = _take_medians(outcome, "fresh", OURS)
    row: Row = {"case": "fresh", "tok_s": own["tok_s"], "plain_tok_s": own["plain_tok_s"], "ratio_plain": own["ratio"]}
    row |= {"passes": own["passes"], "near_ties": outcome.plain["fresh"].near_ties}
    if "fresh" in outcome.parted:
        row |= {"tok_s": None, "plain_tok_s": None, "ratio_plain": None, "parted": outcome.parted["fresh"]}
    return row


def _take_medians(outcome: Outcome, name: str, contestant: str) -> dict[str, float]:
    return {
        figure: statistics.median(values)
        for (case, one, figure), values in outcome.samples.items()
        if (case, one) == (name, contestant)
    }


def render_tables(outcome: Outcome) -> str:
    found = make_rows(outcome)
    measured = [row for row in found if "output_tokens" in row]
    for row in measured:
        row |= {"right": "all" if row["exact"] else f"{row['equal_lines']:.1%}"}
        row |= {"of_expected": row["output_tokens"] / row["expected_tokens"]}
    peers = [
        {"case": row["case"], "name": name, "plain": _format_leading(peer.get(PLAIN))}
        | {"own": _format_leading(peer.get(OWN)), "lines": (peer.get(OWN) or peer[PLAIN])["equal_lines"]}
        | {key: peer[key] for key in ("plain_tok_s", "setting", "tok_s", "tokens_a_pass", "cold_seconds")}
        for row in measured
        for name, peer in row["peers"].items()
    ]
    settings = [
        {"peer": peer, "setting": name, "rate": rate}
        for peer, rates in outcome.settings.items()
        for name, rate in rates
    ]
    parts = [
        render_rows(measured, OUR_COLUMNS),
        render_rows(peers, PEER_COLUMNS),
        render_rows(settings, {"peer": "{peer}", "setting": "{setting}", "tok/s": "{rate:n}"}),
        *(f"{row['case']}: no speed is shown: {row['parted']}" for row in found if "parted" in row),
        *(
            f"nothing to copy: {row['tok_s']:.1f} tok/s with drafts, {row['plain_tok_s']:.1f} without: "
            f"{row['ratio_plain']:.3f} x plain (median of pairs)"
            for row in found
            if row["case"] == "fresh" and "parted" not in row
        ),
        *(f"{name}: not copied whole: {why}" for name, why in outcome.not_measured.items()),
        *(f"{name} was left out: {why.splitlines()[0]}" for name, why in outcome.left_out.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _format_leading(like: Row | None) -> str:
    if like is None:
        return "-"
    return f"{like['leading_tokens_equal']:,} ({like['pieces_equal']}/{like['pieces']} to the end)"
