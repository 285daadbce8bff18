"""Plots of a contest: tokens a forward pass along one file, and seconds an edit against the file's length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.copy.cases import GOAL
from benchmarks.copy.outcome import Outcome
from benchmarks.copy.passes import MODEL, Pass
from benchmarks.copy.rows import Row, rows

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
        yield _saved(along_file(outcome.passes[name], f"{model}, {name}"), folder / f"copy-passes-{model}.png")
    if len({row["num_lines"] for row in rows(outcome) if "num_lines" in row}) > 1:
        yield _saved(by_length(outcome, model), folder / f"copy-seconds-{model}.png")


def along_file(passes: list[Pass], title: str) -> Any:
    """The figure of one output: each pass is as wide and as high as the tokens that it gave."""
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


def by_length(outcome: Outcome, model: str) -> Any:
    """The figure of seconds an edit with one hunk against the lines of its file, prompt and all."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
    found = sorted((row for row in rows(outcome) if row["case"].endswith("x1")), key=lambda row: int(row["num_lines"]))
    for label, points in _curves(found).items():
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


def _curves(found: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """Points (lines, seconds) by label; what was not measured has none."""
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


def _saved(figure: Any, file: Path) -> Path:
    figure.savefig(file, dpi=DOTS_PER_INCH)
    import matplotlib.pyplot as plt

    plt.close(figure)
    return file
