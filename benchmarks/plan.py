"""Compare the passes that `hunk plan --device measured` predicts with measured ones: `python -m benchmarks.plan`.

The prediction knows products of one matrix at seven row counts and the rate of memory. The passes are those of real
models over other row counts, each behind 512 tokens with all rows scored, and prompts without any. The load of the
machine changes, so products and passes are measured in turns, and the least of each counts.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator

import torch

from agent_runtime.errors import HunkError
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.wiring import open_model
from benchmarks.harness import (
    Row,
    describe_machine,
    make_parser,
    render_rows,
    say,
    take_percentile,
    warn_if_busy,
    write_json,
)
from engine.decoder import LM_HEAD_ROWS, Decoder
from engine.roofline.costs import Attention, Deployment
from engine.roofline.machine import measure_machine

CONTEXT = 512
ROWS = (1, 3, 6, 12, 24, 48, 96)
PROMPTS = (200, 600)
TURNS = 2


def main() -> None:
    """Measure, print the table and write the JSON."""
    parser = make_parser("plan", __doc__)
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b,qwen2.5-coder-1.5b", help="by commas")
    parser.add_argument("--quantize", choices=["auto", "none", "int8", "int4"], default="auto")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    load, rows = warn_if_busy(), list[Row]()
    try:
        for name in options.models.split(","):
            rows += compare(name, options.quantize)
    except (HunkError, OSError) as error:
        sys.exit(str(error))
    print(render_rows(rows, COLUMNS))
    errors = [abs(row["predicted_s"] / row["seconds"] - 1.0) for row in rows]
    summary = {"within_25": sum(error <= 0.25 for error in errors), "of": len(errors), "worst": max(errors)}
    summary["p50"] = take_percentile(errors, 50)
    print(summary)
    write_json(options.json, summary | {"machine": describe_machine(), "load_at_start": load}, rows)


def compare(name: str, quantize: str) -> Iterator[Row]:
    """Yield a row for each measured pass of a model."""
    how = LoadOptions(quantize=quantize, context=2048, kv_sequences=1)  # type: ignore[arg-type]
    loaded = open_model(name, ModelSettings.from_env(os.environ), how)
    model: Decoder = loaded.engine.model
    precision, config = model.precision, model.config
    passes = [("rows", rows, CONTEXT) for rows in ROWS] + [("prompt", rows, 0) for rows in PROMPTS]
    machine, least = measure_machine("this machine", precision), [math.inf] * len(passes)
    for turn in range(TURNS):
        for at, (kind, num_rows, known) in enumerate(passes):
            least[at] = min(least[at], _time_pass(model, num_rows, known, all_scored=kind == "rows"))
        machine = machine.take_least(measure_machine("this machine", precision))
        say(f"{name}: turn {turn + 1} of {TURNS}")
    weights = precision.quantize or str(precision.stored).removeprefix("torch.")
    planned = Deployment(config, machine, Attention.from_config(config), weights, precision.stored.itemsize)
    for (kind, num_rows, known), seconds in zip(passes, least, strict=True):
        predicted = planned.cost_pass(1, num_rows, known + num_rows, scored=None if kind == "rows" else 1).seconds
        yield {
            "model": name,
            "precision": weights,
            "kind": kind,
            "rows": num_rows,
            "seconds": seconds,
            "milliseconds": 1e3 * seconds,
            "predicted_s": predicted,
            "ratio": predicted / seconds,
        }
    loaded.engine.close()


@torch.inference_mode()
def _time_pass(model: Decoder, num_rows: int, known: int, *, all_scored: bool) -> float:
    """Return the least seconds of a pass behind `known` tokens."""
    caches, ids = model.new_caches(1, known + num_rows), torch.zeros(num_rows, dtype=torch.int64)
    if known:
        model.forward(torch.zeros(known, dtype=torch.int64), caches)

    def run() -> None:
        for cache in caches:
            cache.lengths[0] = known
        hidden = model.forward(ids, caches)
        for part in torch.split(hidden if all_scored else hidden[-1:], LM_HEAD_ROWS):
            model.likeliest(part)

    return min(_time(run) for _ in range(3))


def _time(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


COLUMNS = {
    "model": "{model}",
    "weights": "{precision}",
    "pass": "{kind}",
    "rows": "{rows}",
    "ms": "{milliseconds:.0f}",
    "predicted, of it": "{ratio:.2f}",
}


if __name__ == "__main__":
    main()
