"""All checks of a card in stages: `python -m benchmarks.gpu.check --out FOLDER`, or `make gpu-check`.

It installs nothing and needs no network, weights or shared data: whatever Python it is given has torch with CUDA,
Triton and what Hunk imports. Each stage is a process of its own that ends after eight minutes at most and leaves
`STAGE.json` and `STAGE.txt` in the folder. A stage that has succeeded there is not run again, so a check that was cut
short goes on. `index.html` shows all of it. Stages for which something is missing, such as real weights or vLLM, say
what it is and are left out. Exits with 2 where there is no card, with 1 if a stage has failed.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_runtime.models.config import CATALOGUE, ModelSettings
from agent_runtime.models.store import ModelStore
from benchmarks.gpu.__main__ import NO_CARD
from benchmarks.gpu.card import NoCard, cuda_device
from benchmarks.harness import say

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 480
"""Limit of a stage."""

HEADS_7B = "num_kv_heads=4,group=7,head_dim=128"
WEIGHTS = "qwen2.5-coder-1.5b"
FIGURES = "{out}/{stage}-figures.json"
STAGES: dict[str, tuple[str, ...]] = {
    "tests": (
        *("-m", "pytest", "-m", "gpu", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark"),
        *("tests/kernels", "tests/engine", "tests/benchmarks/test_gpu_card.py"),
    ),
    "tune": (
        *("-m", "kernels.tune", "paged_attention", "--budget-seconds", "420", "--shapes"),
        *(f"{HEADS_7B},{rows},num_keys=8192" for rows in ("num_rows=16", "num_rows=128", "num_rows=1,num_seqs=64")),
    ),
    "engine": ("-m", "benchmarks.gpu", "--rounds", "2", "--limit", "6", "--most-context", "32768", "--json", FIGURES),
    "users-1.5b": ("-m", "benchmarks.gpu.users", "--model", "1.5b", "--json", FIGURES),
    "users-7b": ("-m", "benchmarks.gpu.users", "--model", "7b", "--json", FIGURES),
    "ops": ("-m", "benchmarks.gpu", "--ops", "--json", FIGURES),
    "weights": ("-m", "benchmarks.models", "--models", WEIGHTS, "--device", "cuda", "--json", FIGURES),
    "vllm-1.5b": ("-m", "benchmarks.gpu.users", "--engine", "vllm", "--model", "1.5b", "--json", FIGURES),
}
"""Arguments of Python for each stage, the most telling first."""


def find_missing(name: str) -> str | None:
    """Return what a stage lacks here, None if nothing."""
    if name.startswith("vllm") and find_spec("vllm") is None:
        return "vLLM is not installed in this Python: `pip install vllm`"
    if name == "weights":
        store = ModelStore(ModelSettings.from_env(os.environ).cache_dir)
        entry = next(each for each in CATALOGUE if each.name == WEIGHTS)
        if not store.path(entry).exists():
            return f"there are no weights of {WEIGHTS}: `hunk models pull {WEIGHTS}`"
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stages that are left, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check", help="default build/gpu-check")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="only these")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="limit of a stage")
    options = parser.parse_args(arguments)
    try:
        cuda_device()
    except NoCard:
        print("gpu-check: there is no CUDA device (`nvidia-smi` tells whether the driver finds one)", file=sys.stderr)
        sys.exit(NO_CARD)
    options.out.mkdir(parents=True, exist_ok=True)
    missing = {name: why for name in options.stages if (why := find_missing(name)) is not None}
    for name, why in missing.items():
        say(f"{name}: left out: {why}")
    left = [name for name in options.stages if name not in missing]
    results = {name: run_stage(name, STAGES[name], options.out, options.seconds) for name in left}
    write_page(options.out)
    failed = [name for name, result in results.items() if result["returncode"]]
    verdict = f"failed: {', '.join(failed)}" if failed else "all stages passed"
    say(f"{options.out / 'index.html'}: {verdict}" + (f", left out: {', '.join(missing)}" if missing else ""))
    sys.exit(bool(failed))


def run_stage(name: str, command: Sequence[str], out: Path, seconds: int) -> dict[str, Any]:
    """Run a stage unless it has succeeded here, and return what `STAGE.json` says of it."""
    report, log = out / f"{name}.json", out / f"{name}.txt"
    if report.exists():
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        if found["returncode"] == 0:
            say(f"{name}: passed before")
            return found
    given = [part.format(out=out, stage=name) for part in command]
    say(f"{name}: python {' '.join(given)}")
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                [sys.executable, *given], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=False
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            file.write(f"\nended after {seconds} s\n")
            code = 124
    result = {"stage": name, "command": given, "seconds": round(time.monotonic() - began, 1), "returncode": code}
    report.write_text(json.dumps(result) + "\n", encoding="utf-8")
    say(f"{name}: {'passed' if code == 0 else f'failed ({code})'} in {result['seconds']} s")
    return result


def write_page(out: Path) -> None:
    """Write `index.html`: each stage's result, the shares of the bounds that were reached as bars, and its output."""
    parts = ["<!doctype html><meta charset=utf-8><title>gpu-check</title>", _STYLE, "<h1>gpu-check</h1>"]
    for name in STAGES:
        report = out / f"{name}.json"
        if not report.exists():
            continue
        result = json.loads(report.read_text(encoding="utf-8"))
        verdict = "passed" if result["returncode"] == 0 else f"failed ({result['returncode']})"
        parts.append(f"<h2>{name}: {verdict} in {result['seconds']} s</h2>")
        figures = out / f"{name}-figures.json"
        if figures.exists():
            parts += _draw_shares(json.loads(figures.read_text(encoding="utf-8"))["rows"])
        text = (out / f"{name}.txt").read_text(encoding="utf-8", errors="replace")
        parts.append(f"<pre>{html.escape(text[-20_000:])}</pre>")
    (out / "index.html").write_text("\n".join(parts) + "\n", encoding="utf-8")


_STYLE = """<style>
body{font:14px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}
pre{overflow:auto;background:#f4f4f4;padding:1em;font-size:12px}
.bar{background:#2166ac;height:.9em;display:inline-block}td{padding:0 .6em 0 0;white-space:nowrap}
</style>"""


def _draw_shares(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table with a bar for each figure's share of its bound, kernel share, or share of the floor."""
    found = []
    for row in rows:
        share, name = row.get("kernel_share") or row.get("share"), row.get("figure") or row.get("op") or ""
        if row.get("values"):
            middle = sorted(row["values"])[len(row["values"]) // 2]
            share = middle / row["bound"] if row["figure"].endswith("tok/s") else row["bound"] / middle
        if isinstance(share, float):
            label = html.escape(" ".join(str(row.get(key, "")) for key in ("model", "users", "shape")) + f" {name}")
            bar = f"<span class=bar style='width:{min(share, 1.0) * 20:.1f}em'></span>"
            found.append(f"<tr><td>{label}<td>{bar} {share:.0%}")
    return [f"<table>{''.join(found)}</table>"] if found else []


if __name__ == "__main__":
    main()
