"""Measured probes as rows of JSON, and what they come to by setting and class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.reuse.quality.divergence import Divergence, Spread, recovered
from benchmarks.reuse.quality.probe import SENSITIVE
from benchmarks.reuse.quality.scoring import Approximation, Scored

Row = dict[str, Any]

DIGITS = 10
"""Of a KL in nats: the noise floor is some 1e-6."""

NOISE = "noise floor"
"""What stands for the second exact run among the settings."""


def row_of(scored: Scored, number: int) -> Row:
    """A row; `number` counts the probes of a kind."""
    probe = scored.probe
    by_setting = {name: _approximation(found) for name, found in scored.by_setting.items()}
    return {
        "kind": probe.kind,
        "class": probe.probe_class,
        "number": number,
        "file": probe.file_name,
        "prompt_tokens": scored.num_prompt,
        "tokens_behind": scored.num_behind,
        "right": probe.right,
        "stale": probe.stale,
        "answer": scored.answer,
        "verdict": scored.verdict,
        "stale_kl": None if scored.stale is None else _rounded(scored.stale),
        "noise": None if scored.noise is None else _divergence(scored.noise),
        "settings": by_setting,
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """By setting: `insensitive`, `sensitive`, its two classes and kinds, and the sensitive ones that the model answers
    right itself (`answered`): of the others a change of the edit's symbol says little."""
    names = {name: None for row in rows for name in row["settings"]}
    found = {name: _classes([row for row in rows if name in row["settings"]], name) for name in names}
    noisy = [row | {"settings": {NOISE: row["noise"]}} for row in rows if row["noise"] is not None]
    return found | ({NOISE: _classes(noisy, NOISE)} if noisy else {})


def _classes(rows: Sequence[Row], setting: str) -> dict[str, Any]:
    sensitive = [row for row in rows if row["class"] in SENSITIVE]
    parts = {
        "insensitive": [row for row in rows if row["class"] not in SENSITIVE],
        "sensitive": sensitive,
        "answered": [row for row in sensitive if row["verdict"] == "right"],
        **{name: [row for row in rows if row["class"] == name] for name in SENSITIVE},
        **{row["kind"]: [each for each in rows if each["kind"] == row["kind"]] for row in rows},
    }
    return {name: figures(part, setting) for name, part in parts.items() if part}


def figures(rows: Sequence[Row], setting: str) -> dict[str, Any]:
    """Of one setting over some probes: divergence, what is recovered of the edit's effect, the answers' verdicts."""
    own = [row["settings"][setting] for row in rows]
    divergences = [_divergence_of(each) for each in own]
    spread = asdict(Spread.over(divergences))
    found = {
        "probes": len(rows),
        "tokens": spread.pop("num_tokens"),
        "top1": spread.pop("top1"),
        **{f"kl_{'max' if name == 'largest' else name}": value for name, value in spread.items()},
        "exact_match": fmean(all(each["same_top"]) for each in own),
    }
    if all("verdict" in each for each in own):
        found["share_run"] = _share(rows, own, "num_run", "prompt_tokens")
        found["share_run_behind"] = _share(rows, own, "num_file", "tokens_behind")
    if rows[0]["right"]:
        stale = [Divergence(np.array(row["stale_kl"]), np.empty(0, np.bool_)) for row in rows]
        found["effect_recovered"] = recovered(divergences, stale)
        found["stale_rate_full"] = _rate(rows, lambda row: row["verdict"], "stale")
        found["right_rate_full"] = _rate(rows, lambda row: row["verdict"], "right")
        if all("verdict" in each for each in own):
            found["stale_rate"] = _rate(own, lambda each: each["verdict"], "stale")
            found["right_rate"] = _rate(own, lambda each: each["verdict"], "right")
    return found


def _share(rows: Sequence[Row], own: Sequence[Row], part: str, whole: str) -> float:
    return sum(float(each[part]) for each in own) / sum(float(row[whole]) for row in rows)


def _rate(rows: Sequence[Row], verdict: Callable[[Row], str], which: str) -> float:
    return fmean(verdict(row) == which for row in rows)


def _approximation(found: Approximation) -> Row:
    counts = {"num_run": found.num_run, "num_file": found.num_file, "verdict": found.verdict}
    return _divergence(found.divergence) | counts


def _divergence(found: Divergence) -> Row:
    return {"kl": _rounded(found), "same_top": found.same_top.tolist()}


def _divergence_of(row: Row) -> Divergence:
    return Divergence(np.array(row["kl"]), np.array(row["same_top"]))


def _rounded(found: Divergence) -> list[float]:
    return [round(each, DIGITS) for each in found.kl.tolist()]
