"""What reuse does to answers: `python -m benchmarks.reuse.quality --model qwen2.5-coder-0.5b`.

Probes are made from files of this Python's standard library by a seed: an edit in the middle, and a question whose
answer it changes (`look-up`, `conclusion`) or leaves alone (`insensitive`). Every mode is held to the greedy
continuation of a full recompute, token by token. With `--choices` sets of tokens to run again are compared instead.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from agent_runtime.process import settle

settle()

from benchmarks.machine import describe  # noqa: E402 -- torch is imported below, behind the settings
from benchmarks.reuse.quality.choices import SHARES  # noqa: E402
from benchmarks.reuse.quality.measuring import BYSTANDERS, Plan, measure  # noqa: E402
from benchmarks.reuse.quality.probes import MAKERS  # noqa: E402
from benchmarks.reuse.quality.rows import summary  # noqa: E402
from benchmarks.reuse.quality.scoring import NUM_TOKENS, modes  # noqa: E402
from benchmarks.reuse.quality.tables import answers_table, choices_table, quality_table  # noqa: E402

SENSITIVE_KINDS = tuple(kind for kind in MAKERS if kind not in BYSTANDERS)


def main() -> None:
    """Measure, print the tables, write the JSON and the plot."""
    options = _options()
    plan = Plan(options.kinds, options.probes, options.tokens, options.seed, options.choices, options.shares)
    rows = measure(options.model, plan, options.progress)
    found = summary(rows)
    if options.choices:
        parts = [choices_table(found, SENSITIVE_KINDS)]
    else:
        parts = [quality_table(found, modes()), answers_table(found, "fast", SENSITIVE_KINDS)]
    print(f"{describe()}\n\n{options.model}\n\n" + "\n\n".join(parts), flush=True)
    if options.json:
        facts = {"machine": describe(), "load": os.getloadavg()[0], "model": options.model, "seed": options.seed}
        options.json.write_text(json.dumps({"summary": found | facts, "rows": rows}, indent=1), encoding="utf-8")
    if options.plots:
        from benchmarks.reuse.quality.plots import write_plot

        print(f"wrote {write_plot(found, ('sensitive', *SENSITIVE_KINDS), options.plots, options.model)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name of the catalogue, a file or a folder")
    parser.add_argument("--probes", type=int, help="only so many of a kind")
    parser.add_argument("--kinds", default=",".join(MAKERS), help="only these kinds, by commas")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of the reference continuation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--choices", action="store_true", help="compare choices of tokens to run again, not the modes")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="that ranking choices run again, of 1")
    parser.add_argument("--progress", type=Path, help="go on with the rows in this file, and append to it (JSON lines)")
    parser.add_argument("--json", type=Path, help="write summary and rows there, too")
    parser.add_argument("--plots", type=Path, nargs="?", const=Path("build"), help="write a plot into this folder")
    options = parser.parse_args()
    options.shares = [float(share) for share in options.shares.split(",") if share]
    options.kinds = [kind for kind in options.kinds.split(",") if kind]
    if unknown := set(options.kinds) - set(MAKERS):
        parser.error(f"--kinds: there is no {', '.join(sorted(unknown))}; there are {', '.join(MAKERS)}")
    if options.probes is not None and options.probes < 1:
        parser.error("--probes must be at least 1")
    return options


if __name__ == "__main__":
    main()
