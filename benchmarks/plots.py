"""Plots: passes along a file, seconds against a file's length, the reliability of the reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks.copy.cases import GOAL
from benchmarks.copy.contest import Outcome
from benchmarks.copy.ours import MODEL, Pass
from benchmarks.copy.report import make_rows
from benchmarks.harness import Row
from benchmarks.scoring import compute_interval
from benchmarks.train_reader.order import Answer, Line, compute_confidence

mpl.use("Agg")

COLOURS = {
    "merge": "#1b7837",
    "prediction": "#5aae61",
    "original": "#2166ac",
    "update": "#e08214",
    "output": "#8073ac",
    "draft": "#1b7837",
    MODEL: "#b2182b",
}
"""By draft source; `model` is the token that a pass gives for free."""

OTHER = "#777777"
DOTS_PER_INCH = 80


def write_plots(outcome: Outcome, folder: Path, model: str) -> Iterator[Path]:
    """Write what there is to plot, as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    name = GOAL if GOAL in outcome.passes else next(iter(outcome.passes), None)
    if name is not None:
        yield _save(plot_along_file(outcome.passes[name], f"{model}, {name}"), folder / f"copy-passes-{model}.png")
    if len({row["num_lines"] for row in make_rows(outcome) if "num_lines" in row}) > 1:
        yield _save(plot_by_length(outcome, model), folder / f"copy-seconds-{model}.png")


def plot_along_file(passes: list[Pass], title: str) -> Any:
    """Return the figure of one output: each pass is as wide and as high as the tokens that it gave."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    seen: dict[str, str] = {}
    for one in passes:
        at = one.at
        for source, count in one.accepted:
            colour = seen.setdefault(source, COLOURS.get(source, OTHER))
            axes.bar(at, one.num_tokens, width=count, align="edge", color=colour)
            at += count
        axes.plot([one.at, one.at], [1, one.num_tokens], color="white", linewidth=0.6)
    total = sum(one.num_tokens for one in passes)
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.8, 2 * max(one.num_tokens for one in passes))
    axes.set_xlim(0, total)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("token of the output")
    axes.set_ylabel("tokens of the pass")
    axes.set_title(f"{title}: {total:,} tokens in {len(passes)} forward passes, by draft source", fontsize=10)
    handles = [mpl.patches.Patch(color=colour, label=source) for source, colour in seen.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(handles), frameon=False)
    return figure


def plot_by_length(outcome: Outcome, model: str) -> Any:
    """Return the figure of seconds an edit with one hunk against the lines of its file, prompt and all."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
    found = sorted(
        (row for row in make_rows(outcome) if row["case"].endswith("x1")), key=lambda row: int(row["num_lines"])
    )
    for label, points in _collect_curves(found).items():
        style = "o-" if label.startswith("hunk") else "s--"
        axes.plot([lines for lines, _ in points], [seconds for _, seconds in points], style, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([row["num_lines"] for row in found], [f"{row['num_lines']:,}" for row in found])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("lines of the file")
    axes.set_ylabel("seconds an edit, prompt and all")
    axes.set_title(f"{model}: one hunk", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _collect_curves(found: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """Return points (lines, seconds) by label; what was not measured has none."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in found:
        seconds = {
            "hunk, scope auto": (row.get("scope_auto") or {}).get("seconds"),
            "hunk, whole file": row.get("cold_seconds"),
            "hunk, plain": row.get("plain_seconds"),
        }
        seconds |= {f"{name}, {peer['setting']}": peer["cold_seconds"] for name, peer in row.get("peers", {}).items()}
        for label, value in seconds.items():
            if value is not None:
                curves.setdefault(label, []).append((row["num_lines"], value))
    return curves


def _save(figure: Any, file: Path) -> Path:
    figure.savefig(file, dpi=DOTS_PER_INCH)
    import matplotlib.pyplot as plt

    plt.close(figure)
    return file


Named = Mapping[str, Sequence[Answer]]
_COLOURS = ("#2166ac", "#e08214", "#1b7837", "#8073ac")
_DOTS_PER_INCH = 80
_BINS = 8


def write_reliability(answers: Named, line: Line, bars: Mapping[str, float], file: Path) -> None:
    """Write the plot of held-out answers, a line for each name, as a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (right, risk) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    right.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1)
    for colour, (name, found) in zip(_COLOURS, answers.items(), strict=False):
        sure = np.array([compute_confidence(one.probability, line) for one in found])
        good = np.array([one.modulo for one in found])
        order = np.argsort(sure, kind="stable")
        bins = np.array_split(order, _BINS)
        x = [float(sure[some].mean()) for some in bins]
        y = [float(good[some].mean()) for some in bins]
        ends = [compute_interval(int(good[some].sum()), len(some)) or (0.0, 1.0) for some in bins]
        spread = np.array([[share - low, high - share] for share, (low, high) in zip(y, ends, strict=True)]).T
        title = f"{name} (n = {len(found)})"
        right.errorbar(x, y, yerr=spread, color=colour, marker="o", markersize=4, linewidth=1, capsize=2, label=title)
        down = good[np.argsort([-one.probability for one in found], kind="stable")]
        answered = np.arange(1, len(down) + 1) / len(down)
        risk.plot(100 * answered, 100 * np.cumsum(~down) / np.arange(1, len(down) + 1), color=colour, label=title)
        for least in bars.values():
            share = sum(one.probability >= least for one in found) / len(found)
            risk.axvline(100 * share, color=colour, linewidth=0.8, linestyle=":")
    right.set(xlabel="confidence", ylabel="share right, modulo blank lines", xlim=(0, 1.01), ylim=(0, 1.01))
    risk.set(
        xlabel="answered without a model, % of the snippets", ylabel="wrong of these, %", xlim=(0, 100), ylim=(0, 15)
    )
    right.legend(loc="upper left", frameon=False)
    risk.legend(loc="upper left", frameon=False)
    for axes in (right, risk):
        axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=_DOTS_PER_INCH)
    plt.close(figure)
