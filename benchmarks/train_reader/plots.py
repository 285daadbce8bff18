"""The reliability plot: how often the first reading is right by its confidence, how many answers are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.counting import interval
from benchmarks.train_reader.confidence import Answer, Line, confidence

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
        sure = np.array([confidence(one.probability, line) for one in found])
        good = np.array([one.modulo for one in found])
        order = np.argsort(sure, kind="stable")
        bins = np.array_split(order, _BINS)
        x = [float(sure[some].mean()) for some in bins]
        y = [float(good[some].mean()) for some in bins]
        ends = [interval(int(good[some].sum()), len(some)) or (0.0, 1.0) for some in bins]
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
