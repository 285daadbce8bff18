"""Measure what lossy shortcuts cost: `python -m benchmarks.lossy`.

The model writes the same edits as it is, with windows in all layers, with keys and values or weights in fewer bits, and
without some of its layers, which are taken out before the last one and nothing is trained again (arXiv 2403.17887).
The edits are lazy snippets made from real commits; each is written whole (mode `model`, decide `generate`), and a merge
that is refused or rejected by a check is no damage. A run that was stopped goes on with `--resume FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.store import ModelStore, locate_copy, resolve
from agent_runtime.types import ApplyRequest
from agent_runtime.wiring import open_model
from benchmarks.cases import DEFAULT_CASES
from benchmarks.copy.cases import CopyCase, draw_cases
from benchmarks.harness import Row, describe_machine, make_parser, render_rows, say, warn_if_busy, write_json
from benchmarks.snippets import read_pairs
from engine.config import ModelConfig
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.layers import Quantization
from engine.weights import Parameters
from engine.weights.checkpoint import TensorFolder, read_config
from engine.weights.memory import count_kv_bytes

CONTEXT = 8192
WRITE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Shortcut:
    """One way of computing less. windows: of all layers. dropped: layers that are taken out."""

    name: str
    window: int | None = None
    quantize: Quantization | None = None
    kv_int8: bool = False
    dropped: int = 0


SHORTCUTS = (
    Shortcut("as it is"),
    *(Shortcut(f"windows of {window}", window=window) for window in (1024, 512, 256, 128)),
    Shortcut("int8 KV", kv_int8=True),
    Shortcut("int8 weights", quantize="int8"),
    Shortcut("int4 weights", quantize="int4"),
    *(Shortcut(f"without {count} layers", dropped=count) for count in (1, 2, 4, 8)),
)


def main() -> None:
    """Measure, print the table and write the JSON."""
    options = _options()
    print(describe_machine(), flush=True)
    load, kept = warn_if_busy(), _read_kept(options.resume)
    rows: list[Row] = []
    try:
        loaded = open_model(
            options.model, ModelSettings.from_env(os.environ), LoadOptions(context=CONTEXT, kv_sequences=1)
        )
        cases = draw_edits(options.limit, options.lines, options.seed)
        for shortcut in SHORTCUTS:
            if not options.only or any(part in shortcut.name for part in options.only.split(",")):
                rows.append(summarise(shortcut, list(measure(shortcut, loaded, cases, options, kept))))
                print(render_rows(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
        loaded.engine.close()
    except (HunkError, OSError, ValueError) as error:
        sys.exit(str(error))
    print(render_rows(rows, COLUMNS))
    write_json(options.json, {"machine": describe_machine(), "model": options.model, "load_at_start": load}, rows)


def _options() -> argparse.Namespace:
    parser = make_parser("lossy", __doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name of the catalogue")
    parser.add_argument("--limit", type=int, default=20, help="edits")
    parser.add_argument("--lines", type=int, default=40, help="lines of a file")
    parser.add_argument("--only", default="", help="parts of the shortcuts' names, by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="keep each answer there")
    options = parser.parse_args()
    if min(options.limit, options.lines) < 1:
        parser.error("--limit and --lines must be at least 1")
    return options


def draw_edits(limit: int, lines: int, seed: int) -> list[CopyCase]:
    """Return edits of files of so many lines with one hunk: of more the 0.5B writes few right, lossy or not."""
    return [next(drawn) for drawn in draw_cases(read_pairs(DEFAULT_CASES), [(lines, 1)] * limit, seed)]


def change(config: ModelConfig, shortcut: Shortcut) -> tuple[ModelConfig, Callable[[str], str]]:
    """Return the config with the shortcut, and what its tensors are called in the model's own folder."""
    first = config.num_layers - 1 - shortcut.dropped  # of the layers that are taken out
    kept = config.layers[:first] + config.layers[-1:] if shortcut.dropped else config.layers
    layers = tuple(
        replace(layer, window=shortcut.window if layer.window is None else min(layer.window, shortcut.window))
        if shortcut.window
        else layer
        for layer in kept
    )

    def rename(name: str) -> str:
        parts = name.split(".")
        if shortcut.dropped and parts[:2] == ["model", "layers"] and int(parts[2]) >= first:
            parts[2] = str(int(parts[2]) + shortcut.dropped)
        return ".".join(parts)

    return replace(config, layers=layers), rename


def build(shortcut: Shortcut, loaded: LoadedModel) -> LoadedModel:
    """Return the model with the shortcut; its weights are read from the converted copy of the loaded one."""
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    files, precision = resolve(loaded.name, ModelStore(cache_dir)), loaded.engine.model.precision
    folder = files.path if files.kind == "safetensors" else locate_copy(files, cache_dir)
    config, rename = change(read_config(folder), shortcut)
    tensors = TensorFolder(folder)

    def read(name: str) -> Tensor:
        return tensors.read(rename(name))

    parameters = Parameters(config, torch.bfloat16, "cpu", read)
    quantize = shortcut.quantize or precision.quantize
    decoder = Decoder(parameters, quantize, precision.activations, kv_int8=shortcut.kv_int8)
    engine = Engine(decoder, loaded.text.tokenizer.token_bytes(), EngineConfig(CONTEXT, kv_sequences=1))
    return replace(loaded, engine=engine)


def measure(
    shortcut: Shortcut,
    loaded: LoadedModel,
    cases: Sequence[CopyCase],
    options: argparse.Namespace,
    kept: Mapping[tuple[str, int], Row],
) -> Iterator[Row]:
    """Yield a row for each edit; the model is built if one is not kept."""
    left = [number for number in range(len(cases)) if (shortcut.name, number) not in kept]
    changed = build(shortcut, loaded) if left else None
    for number, case in enumerate(cases):
        if changed is None or number not in left:
            yield kept[shortcut.name, number]
            continue
        row = {"name": shortcut.name, "case": number} | _write(changed, case)
        say(f"{shortcut.name}: {number + 1} of {len(cases)}, {row['outcome']} in {row['seconds']:.0f} s")
        if options.resume is not None:
            with options.resume.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        yield row
    if changed is not None:
        changed.engine.close()


def _write(changed: LoadedModel, case: CopyCase) -> Row:
    """Apply one edit by the model."""
    applier = Applier(lambda: ModelMerger(changed))
    changed.engine.forget_cached()
    facts = {"weight_gb": changed.engine.model.weights.num_bytes / 1e9, "kv_kb": _count_kv_bytes(changed) / 1e3}
    request = ApplyRequest(
        case.before.encode(),
        case.edit,
        path=case.path,
        format="lazy",
        mode="model",
        decide="generate",
        max_write_seconds=WRITE_SECONDS,
    )
    started = time.perf_counter()
    try:
        result = applier.apply(request)
    except HunkError as fault:
        return facts | {"outcome": "refused", "seconds": time.perf_counter() - started, "why": type(fault).__name__}
    seconds = time.perf_counter() - started
    if result.status != "merged":
        return facts | {"outcome": "refused", "seconds": seconds, "why": result.status}
    return facts | {"outcome": "exact" if result.file.merged == case.after else "wrong", "seconds": seconds, "why": ""}


def _count_kv_bytes(changed: LoadedModel) -> float:
    weights = changed.engine.model.weights
    return count_kv_bytes(weights.config, torch.int8 if weights.kv_format.is_int8 else weights.kv_dtype)


def summarise(shortcut: Shortcut, rows: Sequence[Row]) -> Row:
    """Return one row of all edits of a shortcut."""
    counts = {kind: sum(row["outcome"] == kind for row in rows) for kind in ("exact", "refused", "wrong")}
    seconds = statistics.median(row["seconds"] for row in rows)
    return (
        {"name": shortcut.name, "edits": len(rows), "seconds": seconds}
        | counts
        | {key: rows[0][key] for key in ("weight_gb", "kv_kb")}
    )


def _read_kept(file: Path | None) -> dict[tuple[str, int], Row]:
    if file is None or not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {(row["name"], row["case"]): row for row in rows}


COLUMNS = {
    "shortcut": "{name}",
    "edits": "{edits}",
    "exact": "{exact}",
    "refused": "{refused}",
    "wrong": "{wrong}",
    "s an edit": "{seconds:.1f}",
    "weights GB": "{weight_gb:.2f}",
    "KV kB a token": "{kv_kb:.1f}",
}


if __name__ == "__main__":
    main()
