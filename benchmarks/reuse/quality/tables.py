"""The quality of reuse as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.engine.tables import table
from benchmarks.reuse.quality.probe import SENSITIVE
from benchmarks.reuse.quality.rows import NOISE

Summary = Mapping[str, Mapping[str, Any]]


def quality_table(summary: Summary, settings: Iterable[str]) -> str:
    """Of these settings and the noise floor, class by class."""
    heads = ["setting", "class", "probes", "tokens", "file tokens run again", "KL mean", "p90", "p99", "max", "top-1"]
    heads += ["same output", "effect recovered", "stale answers", "of full"]
    lines = [
        [setting, name, *_cells(summary[setting][name])]
        for setting in (*settings, NOISE)
        for name in (*SENSITIVE, "sensitive", "answered", "insensitive")
        if name in summary.get(setting, {})
    ]
    return table(heads, lines)


def choices_table(summary: Summary, kinds: Sequence[str]) -> str:
    """A line a choice: its price, and what it recovers of the edit's effect, kind by kind."""
    kinds = [kind for kind in kinds if any(kind in found for found in summary.values())]
    heads = ["run again beside the change", "of the file behind it", *kinds, "all", "answered", "stale", "of full"]
    lines = []
    for setting, found in summary.items():
        all_ = found.get("sensitive")
        if all_ is None or setting == NOISE:
            continue
        shares = [f"{found[kind]['effect_recovered']:.2%}" if kind in found else "-" for kind in kinds]
        answered = found.get("answered", {}).get("effect_recovered")
        lines.append(
            [
                setting,
                _percent(all_["share_run_behind"]),
                *shares,
                f"{all_['effect_recovered']:.2%}",
                "-" if answered is None else f"{answered:.2%}",
                _percent(all_["stale_rate"]),
                _percent(all_["stale_rate_full"]),
            ]
        )
    return table(heads, lines)


def answers_table(summary: Summary, setting: str, kinds: Sequence[str]) -> str:
    """What the model says itself with a full recompute, and with a setting, kind by kind."""
    heads = ["probe", "number", "right, full", f"right, {setting}", "stale, full", f"stale, {setting}"]
    names = ("right_rate_full", "right_rate", "stale_rate_full", "stale_rate")
    found = summary[setting]
    lines = [
        [kind, str(found[kind]["probes"]), *(_percent(found[kind][name]) for name in names)]
        for kind in kinds
        if kind in found
    ]
    return table(heads, lines)


def _cells(found: Mapping[str, Any]) -> list[str]:
    run = found.get("share_run_behind")
    optional = [found.get(name) for name in ("effect_recovered", "stale_rate", "stale_rate_full")]
    return [
        str(found["probes"]),
        f"{found['tokens']:,}",
        "-" if run is None else _percent(run),
        *(f"{found[f'kl_{name}']:.1e}" for name in ("mean", "p90", "p99", "max")),
        f"{found['top1']:.2%}",
        _percent(found["exact_match"]),
        *("-" if each is None else _percent(each) for each in optional),
    ]


def _percent(share: float) -> str:
    return f"{share:.1%}"
