"""Measure what lossy shortcuts cost: `python -m benchmarks.lossy`.

The model is shown the same edits, as it is and with a shortcut: with windows in all layers, with keys and values or
weights in fewer bits, and without some of its layers, which are taken out before the last one and nothing is trained
again (arXiv 2403.17887). Edits are real lazy snippets that no rule decides. Of each answer that is right, the model is
asked for every token, given the right ones before: it would write the answer exactly if it chooses them all.

A run that was stopped goes on with `--resume FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ModelChoice, ModelMerge, ModelTask
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.llm.questions import find_scope
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.store import ModelStore, find_tensor_folder, resolve
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest
from agent_runtime.wiring import open_model
from benchmarks.cases import DEFAULT_CASES, Case, load_cases_at
from benchmarks.harness import Row, describe_machine, make_parser, render_rows, say, warn_if_busy, write_json
from editor.scope import cut, is_confined
from engine.config import ModelConfig
from engine.decoder import LM_HEAD_ROWS, Decoder
from engine.layers import Quantization
from engine.weights import Parameters
from engine.weights.checkpoint import TensorFolder, read_config
from engine.weights.memory import count_kv_bytes

CONTEXT = 8192
MOST_PROMPT, MOST_ANSWER = 1300, 600
"""The most tokens of a question, without the example before it, and of its answer."""

NUM_DECODED = 12
"""Tokens that are run one by one, behind the last edit, for the time of one."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Token ids of an edit's prompt, and of the answer that is right."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class Asked(Exception):
    """Raised in place of an answer: the prompt is what is wanted."""


class AskedMerger(ModelMerger):
    """Keeps what it is asked instead of answering."""

    _task: ModelTask | None = None

    def take(self) -> ModelTask | None:
        """Return what it was asked since the last call, if anything."""
        task, self._task = self._task, None
        return task

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """Keep the task."""
        self._task = task
        raise Asked("no answer is wanted")

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """Keep the task."""
        self._task = task
        raise Asked("no answer is wanted")

    def build_edit(self, task: ModelTask, expected: str) -> Edit | None:
        """Return the edit with its right answer; None if that is too long, or not the answer to one question."""
        scope = find_scope(task)
        if len(scope.regions) != 1 or not is_confined(task.text, expected, scope.regions):
            return None
        (asked,) = self._prepare_questions(task, scope, "exact")
        answer = self._encode_answer(cut(task.text, expected, scope.regions)[0], asked)
        is_long = len(asked.prompt.token_ids) - asked.prompt.num_shared > MOST_PROMPT or len(answer) > MOST_ANSWER
        return None if is_long else Edit(asked.prompt.token_ids, tuple(answer))


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
        found = find_edits(loaded, draw_cases(options.seed))
        edits = [edit for _, _, edit in islice(found, options.limit)]
        for shortcut in SHORTCUTS:
            if not options.only or any(part in shortcut.name for part in options.only.split(",")):
                rows.append(summarise(shortcut, list(measure(shortcut, loaded, edits, options, kept))))
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
    parser.add_argument("--only", default="", help="parts of the shortcuts' names, by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="keep each answer there")
    options = parser.parse_args()
    if options.limit < 1:
        parser.error("--limit must be at least 1")
    return options


def draw_cases(seed: int) -> list[Case]:
    """Return the real lazy snippets in random order."""
    cases = [case for case in load_cases_at(DEFAULT_CASES / "snippets").cases if isinstance(case, Case)]
    random.Random(seed).shuffle(cases)
    return cases


def find_edits(loaded: LoadedModel, cases: Iterable[Case]) -> Iterator[tuple[Case, ModelTask, Edit]]:
    """Yield the cases that a model is asked about, with the task and the edit."""
    merger = AskedMerger(loaded)
    applier = Applier(lambda: merger)
    for case in cases:
        request = ApplyRequest(
            case.original.encode(), case.edit, path=case.path, format="lazy", instruction=case.instruction
        )
        with suppress(HunkError, Asked):
            applier.apply(request)
        task = merger.take()
        edit = None if task is None else merger.build_edit(task, case.expected)
        if task is not None and edit is not None:
            yield case, task, edit


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


def build(shortcut: Shortcut, loaded: LoadedModel) -> Decoder:
    """Return the model with the shortcut; its weights are read from the converted copy of the loaded one."""
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    files, precision = resolve(loaded.name, ModelStore(cache_dir)), loaded.engine.model.precision
    folder = find_tensor_folder(files, cache_dir)
    config, rename = change(read_config(folder), shortcut)
    tensors = TensorFolder(folder)

    def read(name: str) -> Tensor:
        return tensors.read(rename(name))

    parameters = Parameters(config, torch.bfloat16, "cpu", read)
    quantize = shortcut.quantize or precision.quantize
    return Decoder(parameters, quantize, precision.activations, kv_int8=shortcut.kv_int8)


def measure(
    shortcut: Shortcut,
    loaded: LoadedModel,
    edits: Sequence[Edit],
    options: argparse.Namespace,
    kept: Mapping[tuple[str, int], Row],
) -> Iterator[Row]:
    """Yield a row for each edit; the model is built if one is not kept."""
    left = [number for number in range(len(edits)) if (shortcut.name, number) not in kept]
    decoder = build(shortcut, loaded) if left else None
    for number, edit in enumerate(edits):
        if decoder is None or number not in left:
            yield kept[shortcut.name, number]
            continue
        row = {"name": shortcut.name, "edit": number} | ask(decoder, edit)
        say(f"{shortcut.name}: {number + 1} of {len(edits)}, {row['misses']} of {row['tokens']} tokens are others")
        if options.resume is not None:
            with options.resume.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        yield row


@torch.inference_mode()
def ask(decoder: Decoder, edit: Edit) -> Row:
    """Have the model choose each token of the right answer; time single tokens behind it."""
    caches = decoder.new_caches(1, len(edit.prompt) + len(edit.answer) + NUM_DECODED)
    hidden = decoder.forward(torch.tensor([*edit.prompt, *edit.answer]), caches)[len(edit.prompt) - 1 : -1]
    chosen = [
        token for rows in torch.split(hidden, LM_HEAD_ROWS) for token in decoder.likeliest(rows).token_ids.tolist()
    ]
    seconds = []
    for _ in range(NUM_DECODED):
        started = time.perf_counter()
        decoder.likeliest(decoder.forward(torch.tensor([edit.answer[-1]]), caches))
        seconds.append(time.perf_counter() - started)
    misses = sum(own != right for own, right in zip(chosen, edit.answer, strict=True))
    facts = {"weight_gb": decoder.weights.num_bytes / 1e9, "kv_kb": _count_kv_bytes(decoder) / 1e3}
    return {"misses": misses, "tokens": len(edit.answer), "token_ms": statistics.median(seconds) * 1e3} | facts


def _count_kv_bytes(decoder: Decoder) -> float:
    weights = decoder.weights
    return count_kv_bytes(weights.config, torch.int8 if weights.kv_format.is_int8 else weights.kv_dtype)


def summarise(shortcut: Shortcut, rows: Sequence[Row]) -> Row:
    """Return one row of all edits of a shortcut."""
    return {
        "name": shortcut.name,
        "edits": len(rows),
        "exact": sum(row["misses"] == 0 for row in rows),
        "misses": sum(row["misses"] for row in rows) / len(rows),
        "share": 1e3 * sum(row["misses"] for row in rows) / sum(row["tokens"] for row in rows),
        "token_ms": statistics.median(row["token_ms"] for row in rows),
        "weight_gb": rows[0]["weight_gb"],
        "kv_kb": rows[0]["kv_kb"],
    }


def _read_kept(file: Path | None) -> dict[tuple[str, int], Row]:
    if file is None or not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {(row["name"], row["edit"]): row for row in rows}


COLUMNS = {
    "shortcut": "{name}",
    "edits": "{edits}",
    "exact": "{exact}",
    "wrong tokens an edit": "{misses:.1f}",
    "of 1,000": "{share:.1f}",
    "ms a token": "{token_ms:.0f}",
    "weights GB": "{weight_gb:.2f}",
    "KV kB a token": "{kv_kb:.1f}",
}


if __name__ == "__main__":
    main()
