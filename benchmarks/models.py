"""Measure speed, load time and memory of the catalogue's models: `python -m benchmarks.models`.

The task is an apply of about 900 prompt tokens: the model copies `examples/shopping_cart.ts` with one method
changed. Prefill is the whole prompt with an empty cache; plain decoding and decoding with the merge draft, which has no
merge here but the file and the edit alone, both start after the cached prompt. Every model runs in a process of its
own, so that its peak memory is its own. The first load dequantises the GGUF file and keeps a bf16 copy, which the later
ones read.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agent_runtime.models.config import CATALOGUE, LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel, load_model
from agent_runtime.models.store import ModelStore, resolve
from agent_runtime.process import build_environment
from agent_runtime.prompt.builder import ApplyPrompt, build_prompt
from agent_runtime.wiring import open_model
from benchmarks.harness import describe_machine, make_parser, render_rows, say, write_json
from engine.speculation import MergeDraft
from engine.types import GenerationRequest, GenerationResult, Proposer

REPEATS = 3
NUM_PLAIN_TOKENS = 64
NUM_COPY_TOKENS = 400
EXAMPLES = Path(__file__).parent.parent / "examples"
FILE, EDIT = EXAMPLES / "shopping_cart.ts", EXAMPLES / "shopping_cart.lazy.txt"

COLUMNS = {
    "model": "{model}",
    "load s": "{load_seconds:.1f}",
    "first load s": "{first_load_seconds:.1f}",
    "peak GB": "{peak_gb:.1f}",
    "prefill tok/s": "{prefill_tok_s:.1f}",
    "plain tok/s": "{plain_tok_s:.1f}",
    "copy tok/s": "{copy_tok_s:.1f}",
    "copy / plain": "{ratio_plain:.1f}",
    "forwards": "{forwards}",
}


@dataclass(frozen=True, slots=True)
class Task:
    """The measured apply, encoded for one model."""

    prompt: ApplyPrompt
    loaded: LoadedModel

    def run(self, num_tokens: int, proposer: Proposer | None = None) -> GenerationResult:
        return self.loaded.engine.run(
            GenerationRequest(
                prompt=self.prompt.token_ids,
                max_new_tokens=num_tokens,
                stop_ids=self.loaded.text.stop_ids,
                stop=(self.prompt.stop.encode(),),
            ),
            proposer,
        )

    def draft(self) -> MergeDraft:
        """Return the draft that an apply uses."""
        return MergeDraft(
            merges=[],
            original=self.prompt.file_ids,
            update=self.prompt.edit_ids,
            token_bytes=self.loaded.text.tokenizer.token_bytes(),
        )


def measure(name: str, device: str) -> dict[str, Any]:
    """Return one row of the table, for the model `name`, loaded and measured in this process."""
    loaded = open_model(name, ModelSettings.from_env(os.environ), LoadOptions(device=device))
    task = _make_task(loaded)
    prefill = [_time_run(lambda: _prefill_cold(task)) for _ in range(REPEATS)]
    plain = [_time_run(lambda: task.run(NUM_PLAIN_TOKENS)) for _ in range(REPEATS)]
    copied = [_time_run(lambda: task.run(NUM_COPY_TOKENS, task.draft())) for _ in range(REPEATS)]
    agreed = _count_common(plain[0][1].token_ids, copied[0][1].token_ids)
    plain_tok_s = _compute_rate(plain)
    return {
        "model": name,
        "load_seconds": loaded.load_seconds,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "prompt_tokens": len(task.prompt.token_ids),
        "prefill_tok_s": len(task.prompt.token_ids) / statistics.median(seconds for seconds, _ in prefill),
        "plain_tok_s": plain_tok_s,
        "copy_tok_s": _compute_rate(copied),
        "ratio_plain": _compute_rate(copied) / plain_tok_s,
        "completion": copied[0][1].usage.completion,
        "forwards": copied[0][1].usage.forwards,
        "same_text": agreed == min(len(plain[0][1].token_ids), len(copied[0][1].token_ids)),
        "tokens_compared": agreed,
    }


def _make_task(loaded: LoadedModel) -> Task:
    template, tokenizer = loaded.text.template, loaded.text.tokenizer
    file_text, edit_text = (path.read_text(encoding="utf-8").strip("\n") for path in (FILE, EDIT))
    return Task(build_prompt(template, tokenizer, file_text=file_text, edit_text=edit_text, instruction=""), loaded)


def _prefill_cold(task: Task) -> GenerationResult:
    """Run the prompt, with nothing of it cached, and one token."""
    task.loaded.engine.forget_cached()
    result = task.run(1)
    assert result.usage.cached == 0
    return result


def _time_run(work: Callable[[], GenerationResult]) -> tuple[float, GenerationResult]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def _compute_rate(runs: list[tuple[float, GenerationResult]]) -> float:
    return statistics.median(len(result.token_ids) / seconds for seconds, result in runs)


def _count_common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _measure_first_load(name: str, device: str) -> float:
    """Load from the GGUF file as if for the first time: the bf16 copy goes to a folder that is then removed."""
    with tempfile.TemporaryDirectory() as folder:
        files = resolve(name, ModelStore(ModelSettings.from_env(os.environ).cache_dir))
        return load_model(files, Path(folder), device=torch.device(device)).load_seconds


def _run_step(name: str, step: str, device: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.models", "--models", name, "--step", step, "--device", device]
    environ = os.environ | build_environment(os.environ)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


STEPS: dict[str, Callable[[str, str], Any]] = {"measure": measure, "first-load": _measure_first_load}


def main() -> None:
    """Measure every model that is asked for, and print the table."""
    parser = make_parser("models", __doc__)
    parser.add_argument("--models", default=",".join(entry.name for entry in CATALOGUE), help="names, by commas")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(STEPS[options.step](options.models, options.device)))
        return
    print(describe_machine(), flush=True)
    rows = []
    for name in options.models.split(","):
        say(f"measuring {name} ...")
        first_load_seconds = _run_step(name, "first-load", options.device)
        rows.append(_run_step(name, "measure", options.device) | {"first_load_seconds": first_load_seconds})
    print(render_rows([row for row in rows if row["same_text"]], COLUMNS))
    for row in rows:
        if not row["same_text"]:
            print(f"{row['model']}: plain and drafted text part at token {row['tokens_compared']}; no speed is shown")
    write_json(options.json, {"machine": describe_machine(), "models": len(rows)}, rows)


if __name__ == "__main__":
    main()
