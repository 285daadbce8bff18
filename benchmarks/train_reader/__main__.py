"""Train the weights by which the reader orders the readings of a lazy snippet: `python -m benchmarks.train_reader`.

It reads the training part of `../shared/data/snippets` and as many made snippets over the training part of the commits,
fits the order (a softmax over all readings of a snippet and "none of these"), and measures it on folds that share no
file: the calibrated confidence and the bars above which is answered come from held-out cases. It writes
`editor/reader/weights.json` with its data card, and prints the figures, those of the fixed test part last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from benchmarks.cases import DEFAULT_CASES, Case, find_part, load_cases_at
from benchmarks.harness import say
from benchmarks.scoring import compute_interval, hides_deletion
from benchmarks.snippets import make_imitations
from benchmarks.train_reader.order import (
    Answer,
    Labelled,
    Line,
    Order,
    bin_answers,
    calibrate,
    compute_confidence,
    find_bar,
    fit_order,
    hash_folders,
    label_cases,
)
from editor.reader.features import FEATURES
from editor.reader.reader import find_readings, limit_certainties

ROOT = Path(__file__).resolve().parents[2]
READER = ROOT / "editor" / "reader"
WEIGHTS = READER / "weights.json"
_FOLDS = 5
_COLOURS = ("#2166ac", "#e08214")
_PLOT_BINS = 8
_MOST_WRONG = {"certain": 0.0005, "likely": 0.0025}
"""A quarter of what is promised (0.2 and 1 %): failures of the training part were read, so others are worse."""

_LEAST_BAR = 0.75
"""An answer is at least three times as probable as all other readings and none together."""


def main() -> None:
    options = _options()
    cache = options.cache / f"readings-{hash_folders(ROOT / 'editor', READER)}.jsonl"
    cache.parent.mkdir(parents=True, exist_ok=True)
    cases = _load_cases(options)
    found = list(label_cases(_select_open(cases), find_readings, len(FEATURES), cache))
    parts = {case.id: find_part(case.repo, case.path) for case in cases}
    hidden = {case.id for case in cases if hides_deletion(case)}
    train = [case for case in found if parts[case.id] == "train" and case.id not in hidden]
    test = [case for case in found if parts[case.id] == "test" and case.id not in hidden]
    real = [case for case in train if not case.made]

    answers = answer_held_out(train, lambda case: case.group, options.l2, options.made_weight)
    line = calibrate(list(answers.values()))
    bars = {
        name: find_bar([one for one in answers.values() if name in one.allowed], most)
        for name, most in _MOST_WRONG.items()
    }
    bars["likely"] = max(bars["likely"], _LEAST_BAR)
    bars["certain"] = max(bars.values())
    order = fit_order(train, options.l2, options.made_weight)
    print(f"{len(train)} cases of the training part ({len(real)} real), {len(hidden)} hidden deletions left out")
    figures = {"snippets, folds by file": compute_figures(real, answers, bars)}
    figures["made, folds by file"] = compute_figures([case for case in train if case.made], answers, bars)
    by_repository = answer_held_out(train, lambda case: case.repo, options.l2, options.made_weight, folds=0)
    figures["snippets, folds by repository"] = compute_figures(real, by_repository, bars)
    for name, some in (
        ("snippets", [one for one in test if not one.made]),
        ("made", [one for one in test if one.made]),
    ):
        figures[f"test part, {name}"] = compute_figures(
            some, {case.id: make_answer(case, order) for case in some}, bars
        )
    for title, block in figures.items():
        print(f"{title}: {json.dumps(block)}")
    for at in np.argsort(-np.abs(order.weights))[:12]:
        print(f"  {FEATURES[at]} {order.weights[at]:.3f}")
    card = _make_card(options, train, real, figures["snippets, folds by file"])
    kept = [answers[case.id] for case in train if case.id in answers]
    card["reliability"] = bin_answers(kept, np.array([compute_confidence(one.probability, line) for one in kept]))
    if options.plot:
        shown = {"training snippets, held out": [answers[case.id] for case in real]}
        shown |= {"test part": [make_answer(case, order) for case in test if not case.made]}
        write_reliability(shown, line, bars, options.plot)
    options.out.write_text(
        json.dumps(_write_weights(card, FEATURES, order, line, bars), indent=1) + "\n", encoding="utf-8"
    )
    print(f"wrote {options.out}")


def answer_held_out(
    cases: Sequence[Labelled], group: Callable[[Labelled], str], l2: float, made_weight: float, folds: int = _FOLDS
) -> dict[str, Answer]:
    """Return the first reading of each case by weights that were fitted without its group; `folds` 0: one a group."""
    names = sorted({group(case) for case in cases})
    fold_of = {
        name: at if folds == 0 else int(sha256(name.encode()).hexdigest(), 16) % folds for at, name in enumerate(names)
    }
    answers: dict[str, Answer] = {}
    for fold in sorted(set(fold_of.values())):
        order = fit_order([case for case in cases if fold_of[group(case)] != fold], l2, made_weight)
        answers |= {case.id: make_answer(case, order) for case in cases if fold_of[group(case)] == fold}
    return answers


def make_answer(case: Labelled, order: Order) -> Answer:
    """Return the first reading by an order, with its probability and that of all like it but for blank lines.

    Of a case without readings it is wrong, and has no probability.
    """
    if not len(case.features):
        return Answer(0.0, exact=False, modulo=False)
    probabilities = order.probabilities(case.features)
    first = int(np.argmax(probabilities))
    share = float(probabilities[case.groups == case.groups[first]].sum())
    features = case.features[first].tolist()
    return Answer(share, bool(case.exact[first]), bool(case.modulo[first]), limit_certainties(features))


def compute_figures(cases: Sequence[Labelled], answers: dict[str, Answer], bars: dict[str, float]) -> dict[str, Any]:
    """Return how often the first reading is right, and one of all; and what is answered above each bar."""
    found = [answers[case.id] for case in cases]
    out: dict[str, Any] = {
        "n": len(cases),
        "first": _format_interval([one.exact for one in found]),
        "first_modulo": _format_interval([one.modulo for one in found]),
        "among": _format_interval([bool(case.exact.any()) for case in cases]),
        "among_modulo": _format_interval([bool(case.modulo.any()) for case in cases]),
    }
    for name, least in bars.items():
        above = [one for one in found if name in one.allowed and one.probability >= least]
        wrong = sum(not one.modulo for one in above)
        out[name] = {"n": len(above), "wrong": wrong, "upper95": (compute_interval(wrong, len(above)) or (0.0, 1.0))[1]}
    return out


def write_reliability(
    answers: Mapping[str, Sequence[Answer]],
    line: Line,
    bars: Mapping[str, float],
    file: Path,
    axis: str = "answered without a model, % of the snippets",
) -> None:
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
        bins = np.array_split(order, _PLOT_BINS)
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
    risk.set(xlabel=axis, ylabel="wrong of these, %", xlim=(0, 100), ylim=(0, 15))
    right.legend(loc="upper left", frameon=False)
    risk.legend(loc="upper left", frameon=False)
    for axes in (right, risk):
        axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80)
    plt.close(figure)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, help="the folder with snippets and commits")
    parser.add_argument("--made", type=int, default=1200, help="so many made snippets to train on (default 1200)")
    parser.add_argument("--made-test", type=int, default=600, help="and so many of the test part (default 600)")
    parser.add_argument("--made-weight", type=float, default=0.5, help="weight of a made one; a real one has 1")
    parser.add_argument("--l2", type=float, default=0.05, help="how small the weights are held (default 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="for the made snippets")
    parser.add_argument("--cache", type=Path, default=user_cache_path("hunk") / "train_reader", help="for the readings")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights are written")
    parser.add_argument("--plot", type=Path, help="draw the reliability there, as PNG (needs the bench extra)")
    return parser.parse_args()


def _load_cases(options: argparse.Namespace) -> list[Case]:
    found = [case for case in load_cases_at(options.cases / "snippets").cases if isinstance(case, Case)]
    found += make_imitations(options.cases / "commits", options.made, options.seed, "train")
    found += make_imitations(options.cases / "commits", options.made_test, options.seed, "test")
    if not found:
        sys.exit(f"{options.cases} holds no snippets and no commits; name another folder with --cases")
    return found


def _select_open(cases: Sequence[Case]) -> Iterator[Case]:
    """Yield the cases, and print now and then how many there were."""
    for number, case in enumerate(cases):
        if number % 100 == 0:
            say(f"{number} of {len(cases)} cases read")
        yield case


def _format_interval(hits: Sequence[bool]) -> str:
    low, high = compute_interval(sum(hits), len(hits)) or (0.0, 1.0)
    share = sum(hits) / len(hits) if hits else 0.0
    return f"{share:.1%} [{low:.1%}, {high:.1%}]"


def _make_card(
    options: argparse.Namespace, train: Sequence[Labelled], real: Sequence[Labelled], figures: dict[str, Any]
) -> dict[str, Any]:
    """Return what the weights were learned from, and how good they are on held-out folds."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = (options.cases / "snippets" / "cases.jsonl.gz", *sorted((options.cases / "commits").glob("*.gz")))
    return {
        "command": "python -m benchmarks.train_reader",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "seed": options.seed,
        "l2": options.l2,
        "cases": {"snippets": len(real), "made": len(train) - len(real), "made_weight": options.made_weight},
        "sources": {file.name: sha256(file.read_bytes()).hexdigest()[:16] for file in files if file.exists()},
        "left_out": "the test part (benchmarks/test_part.txt)",
        "held_out": figures,
    }


def _write_weights(
    card: dict[str, Any], names: Sequence[str], order: Order, line: Line, bars: dict[str, float]
) -> dict[str, Any]:
    """Return the contents of the file."""
    return {
        "card": card,
        "weights": {name: round(float(weight), 6) for name, weight in zip(names, order.weights, strict=True)},
        "none": round(order.none, 6),
        "confidence": line,
        "bars": {name: round(least, 6) for name, least in bars.items()},
    }


if __name__ == "__main__":
    main()
