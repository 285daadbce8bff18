"""Plots of what is run again against what it recovers, by choice and by kind of probe."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.reuse.quality.rows import NOISE

mpl.use("Agg")

COLOURS = [mpl.colormaps["tab20"](at) for at in range(20)]
"""One a choice."""

DOTS_PER_INCH = 80

LEAST_LOSS = 1e-4
"""Less is drawn as this much: it is noise."""

_SHARE = re.compile(r" \d+%$")


def write_plot(summary: Mapping[str, Mapping[str, Any]], classes: Sequence[str], folder: Path, model: str) -> Path:
    """Write the picture of one model as a PNG file, a panel a class or kind, and return its path."""
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    figure = against_share(summary, [name for name in classes if any(name in each for each in summary.values())], model)
    file = folder / f"reuse-quality-{model}.png"
    figure.savefig(file, dpi=DOTS_PER_INCH)
    plt.close(figure)
    return file


def against_share(summary: Mapping[str, Mapping[str, Any]], classes: Sequence[str], model: str) -> Any:
    """The figure: the edit's effect that is missed, on a log scale, against the file's tokens that are run again."""
    import matplotlib.pyplot as plt

    num_rows = -(-len(classes) // 3)
    figure, panels = plt.subplots(
        num_rows, 3, figsize=(13, 3.2 * num_rows), layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for axes, name in zip(panels.flat, classes, strict=False):
        for (label, points), colour in zip(curves(summary, name).items(), COLOURS, strict=False):
            style = "o-" if len(points) > 1 else "s"
            shares, losses = zip(*points, strict=True)
            axes.plot(shares, losses, style, label=label, markersize=5, color=colour)
        noise = summary.get(NOISE, {}).get(name)
        if noise is not None:
            floor = max(LEAST_LOSS, 1.0 - noise["effect_recovered"])
            axes.axhline(floor, color="#777777", linewidth=0.8, linestyle=":", label="two exact runs")
        axes.set_xscale("symlog", linthresh=0.01)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2%}")
        axes.axhline(0.02, color="#777777", linewidth=0.8, linestyle="--", label="goal")
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.3)
    for axes in panels.flat[len(classes) :]:
        axes.set_axis_off()
    figure.suptitle(f"{model}: effect of the edit that is missed, against the file's tokens run again behind it")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def curves(summary: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, list[tuple[float, float]]]:
    """Points (share run again, effect missed) by choice; the shares of one choice are one curve."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for setting, by_class in summary.items():
        figures = by_class.get(name, {})
        if "share_run_behind" in figures and "effect_recovered" in figures:
            loss = max(LEAST_LOSS, 1.0 - figures["effect_recovered"])
            found[_SHARE.sub("", setting)].append((figures["share_run_behind"], loss))
    return {label: sorted(points) for label, points in found.items()}
