"""Measure the quality of reuse: `python -m benchmarks.reuse.quality --model qwen2.5-coder-0.5b`.

Probes are made from files of this Python's standard library by a seed: an edit in the middle, and a question whose
answer it changes (`look-up`, `conclusion`) or leaves alone (`insensitive`). Every mode is held to the greedy
continuation of a full recompute, token by token. With `--kv-dtype int8` the modes, `exact` among them, keep keys and
values in int8; the full recompute that they are held to does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from time import perf_counter
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_runtime.models.config import KVDtype, LoadOptions, ModelSettings
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.wiring import open_model
from benchmarks.harness import Row, describe_machine, make_parser, render_rows, say, write_json
from benchmarks.quantize import store_kv_in_int8
from benchmarks.reuse.probes import MAKERS, SENSITIVE, Probe, make_probes
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.reuse import EXACT, Reuse
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest, GenerationResult
from repo_cache.chunks import cut_spans
from repo_cache.incremental import EncodedText, encode_text

MODES = ("exact", "fast", "turbo")
"""`exact` is measured of KV in another format only: else it is what the others are held to."""

NUM_TOKENS = 128
"""Tokens of the reference continuation."""

ANSWER_TOKENS = 24
"""Tokens of an answer that are looked at for a symbol: it comes next, or the model has missed the question."""

NUM_SENSITIVE, NUM_INSENSITIVE = 8, 50
"""Probes of a kind: the ones are answered in a few tokens, of the others' 10,000 are to be compared."""

NOISE_EVERY, OTHER_CHUNK = 4, 96
"""Of so many probes one is run exactly a second time, in passes of so many tokens; a usual pass has 512. The distance
of the two exact runs is the noise floor."""

NOISE = "noise floor"
FIRST_QUESTION = "Does this file look complete? Answer in one word."
"""The question of the turn before the edit: it leaves the file in the span store, and asks nothing about the edit."""

_STORED_TOKENS = 8192
_SLOT = "\ue0f0"


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = make_parser("reuse.quality", __doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a name of the catalogue, a file or a folder")
    parser.add_argument("--probes", type=int, help="only so many of a kind")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of the reference continuation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kv-dtype", choices=get_args(KVDtype), default="auto", help="of the modes' keys and values")
    options = parser.parse_args()
    if options.probes is not None and options.probes < 1:
        parser.error("--probes must be at least 1")
    loaded = open_model(options.model, ModelSettings.from_env(os.environ), LoadOptions(context=2048, kv_sequences=1))
    try:
        scorer = Scorer(loaded.engine.model, loaded.text, options.tokens, kv_int8=options.kv_dtype == "int8")
        rows = list(measure_probes(scorer, loaded.text, options.probes, options.seed))
    finally:
        loaded.engine.close()
    found = summarise(rows)
    print(f"{describe_machine()}\n\n{options.model}\n\n{render_quality(found)}", flush=True)
    facts = {"machine": describe_machine(), "load": os.getloadavg()[0], "model": options.model, "seed": options.seed}
    facts["kv_dtype"] = options.kv_dtype
    write_json(options.json, found | facts, rows)


def measure_probes(scorer: Scorer, text: TokenizerBundle, most: int | None, seed: int) -> Iterator[Row]:
    """Yield a row for each probe; the kinds take turns."""
    made = {}
    for kind in MAKERS:
        usual = NUM_INSENSITIVE if kind == "repeat" else NUM_SENSITIVE
        made[kind] = make_probes(kind, usual if most is None else min(usual, most), seed)
    for number in range(max(map(len, made.values()))):
        for probe in (probes[number] for probes in made.values() if number < len(probes)):
            began = perf_counter()
            row = scorer.score(lay_out(probe, text), with_noise=number % NOISE_EVERY == 0)
            if row is not None:
                say(f"{probe.kind} {number}: {row['verdict']}, {perf_counter() - began:.1f} s")
                yield row


@dataclass(frozen=True)
class LaidOutProbe:
    """A probe for one model. A prompt is `head`, the file, and a tail, in which the question stands."""

    probe: Probe
    head: tuple[int, ...]
    before: EncodedText
    after: EncodedText
    first_tail: tuple[int, ...]
    tail: tuple[int, ...]
    segment_ends: tuple[int, ...]
    """Where the segments of the new prompt end: the head, the file's spans; the tail is one more."""

    @property
    def first_prompt(self) -> list[int]:
        return [*self.head, *self.before.token_ids.tolist(), *self.first_tail]

    @property
    def stale_prompt(self) -> list[int]:
        """The turn after the edit, had there been none."""
        return [*self.head, *self.before.token_ids.tolist(), *self.tail]

    @property
    def prompt(self) -> list[int]:
        return [*self.head, *self.after.token_ids.tolist(), *self.tail]

    @property
    def tail_start(self) -> int:
        """Where the file ends in the new prompt."""
        return len(self.head) + len(self.after.token_ids)

    @cached_property
    def edit_end(self) -> int:
        """The end of what the edit changed, in tokens of the new prompt."""
        old, new = self.before.token_ids[::-1], self.after.token_ids[::-1]
        shorter = min(len(old), len(new))
        differs = old[:shorter] != new[:shorter]
        return self.tail_start - (int(differs.argmax()) if differs.any() else shorter)

    def to_reuse(self, mode: Any) -> Reuse:
        """Return what an apply asks for: what is not the file is run (agent_runtime/llm/interface.py)."""
        apart = ((0, len(self.head)), (self.tail_start, len(self.prompt)))
        return Reuse(mode, self.segment_ends, recompute=apart)


def lay_out(probe: Probe, text: TokenizerBundle) -> LaidOutProbe:
    """Encode a probe for one model."""
    tokenizer = text.tokenizer
    head, tail = text.template.render([{"role": "user", "content": _SLOT}]).split(_SLOT)
    opening = tokenizer.encode_template(f"{head}This is the file `{probe.file_name}`:\n\n```python\n")
    before, after = (encode_text(tokenizer, each.encode()) for each in (probe.before, probe.after))
    spans = cut_spans(after, "python", tokenizer.fingerprint).spans.ends
    first_tail, own_tail = (
        (*tokenizer.encode(f"```\n\n{asked}"), *tokenizer.encode_template(tail), *tokenizer.encode(begun))
        for asked, begun in ((FIRST_QUESTION, ""), (probe.question, probe.begun))
    )
    ends = (len(opening), *(len(opening) + end for end in spans.tolist()))
    return LaidOutProbe(probe, tuple(opening), before, after, first_tail, own_tail, ends)


class RecordingDecoder(Decoder):
    """A decoder that keeps the logits it makes, on the same weights and scratch memory."""

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)
        self.recorded: list[Tensor] = []

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """As `Decoder.logits`."""
        made = super().logits(hidden)
        self.recorded.append(made)
        return made


class Scorer:
    """One model's engine for probes, with a span store that holds the turn before the edit and nothing else."""

    def __init__(
        self,
        decoder: Decoder,
        text: TokenizerBundle,
        num_tokens: int = NUM_TOKENS,
        context: int = 4096,
        *,
        kv_int8: bool = False,
    ) -> None:
        self._text = text
        self._num_tokens = num_tokens
        plain, usual = RecordingDecoder(decoder), SchedulerConfig(max_num_seqs=1)
        self._core = self._new_core(plain, context, usual, _STORED_TOKENS)
        small = SchedulerConfig(max_batched_tokens=OTHER_CHUNK, prefill_beside_decodes=OTHER_CHUNK, max_num_seqs=1)
        self._other = self._new_core(plain, context, small, 0)
        self._modes = MODES if kv_int8 else MODES[1:]
        self._measured = self._core
        if kv_int8:
            self._measured = self._new_core(RecordingDecoder(store_kv_in_int8(decoder)), context, usual, _STORED_TOKENS)

    def score(self, laid_out: LaidOutProbe, *, with_noise: bool) -> Row | None:
        """Run a full recompute, then each mode along its greedy continuation; None where that is empty.

        Every mode finds the store as the turn before the edit has left it: what later turns compute is not kept.
        """
        core, prompt, probe = self._core, laid_out.prompt, laid_out.probe
        cores = [core] if self._measured is core else [core, self._measured]
        stop_ids = self._text.stop_ids
        with ExitStack() as frozen:
            for each in cores:
                each.reset()
                self._run(each, GenerationRequest(laid_out.first_prompt, 1))
                assert each.reuse is not None
                frozen.enter_context(patch.object(each.reuse.store, "reserve", lambda num_tokens: None))
            result = self._run(core, GenerationRequest(prompt, self._num_tokens, stop_ids=stop_ids, salt="full"))
            reference = [each for each in result.token_ids if each not in stop_ids]
            if not reference:
                return None
            full, _ = self._follow(core, prompt, reference, EXACT, "full")
            stale = self._follow(core, laid_out.stale_prompt, reference)[0] if probe.right else None
            by_mode = {mode: self._approximate(laid_out, full, reference, mode) for mode in self._modes}
        noise = None
        if with_noise:
            self._other.reset()
            noise = compare_logits(full, self._follow(self._other, prompt, reference)[0])
        answer = self._text.tokenizer.decode(reference[:ANSWER_TOKENS])
        return {
            "kind": probe.kind,
            "class": probe.probe_class,
            "file": probe.file_name,
            "prompt_tokens": len(prompt),
            "tokens_behind": laid_out.tail_start - laid_out.edit_end,
            "right": probe.right,
            "stale": probe.stale,
            "answer": answer,
            "verdict": probe.judge(answer),
            "stale_kl": None if stale is None else compare_logits(full, stale)["kl"],
            "noise": noise,
            "settings": by_mode,
        }

    def _approximate(self, laid_out: LaidOutProbe, full: Tensor, reference: Sequence[int], mode: str) -> Row:
        reuse, prompt, core = laid_out.to_reuse(mode), laid_out.prompt, self._measured
        core.pages.forget()
        logits, result = self._follow(core, prompt, reference, reuse)
        found = compare_logits(full, logits)
        answer = reference[:ANSWER_TOKENS]
        if laid_out.probe.right and not all(found["same_top"][:ANSWER_TOKENS]):
            core.pages.forget()
            request = GenerationRequest(prompt, ANSWER_TOKENS, stop_ids=self._text.stop_ids, reuse=reuse)
            answer = list(self._run(core, request).token_ids)
        num_run = result.usage.recomputed
        num_file = num_run - len(laid_out.head) - len(laid_out.tail)
        verdict = laid_out.probe.judge(self._text.tokenizer.decode(answer))
        return found | {"num_run": num_run, "num_file": num_file, "verdict": verdict}

    def _follow(
        self, core: EngineCore, prompt: list[int], reference: Sequence[int], reuse: Reuse = EXACT, salt: str = ""
    ) -> tuple[Tensor, GenerationResult]:
        """Return the logits [len(reference), vocab_size] along the reference."""
        forced, recorded = tuple(reference), self._get_recorded(core)
        recorded.clear()
        request = GenerationRequest(prompt, len(forced), forced_ids=forced, logprobs=0, reuse=reuse, salt=salt)
        result = self._run(core, request)
        logits = torch.cat(recorded)
        assert len(logits) == len(forced), "every forced token has a row of logits"
        return logits, result

    def _run(self, core: EngineCore, request: GenerationRequest) -> GenerationResult:
        core.add(request)
        recorded = self._get_recorded(core)
        while True:
            for output in core.step():
                if output.error is not None:
                    raise output.error
                if output.result is not None:
                    del recorded[: -self._num_tokens]
                    return output.result

    def _get_recorded(self, core: EngineCore) -> list[Tensor]:
        assert isinstance(core.model, RecordingDecoder)
        return core.model.recorded

    def _new_core(
        self, decoder: RecordingDecoder, context: int, scheduler: SchedulerConfig, num_stored: int
    ) -> EngineCore:
        token_bytes = page_bytes(decoder.config, 1, decoder.weights.kv_dtype)
        config = EngineConfig(context, scheduler=scheduler, kv_sequences=3, span_bytes=num_stored * token_bytes)
        return EngineCore(decoder, self._text.tokenizer.token_bytes(), config)


def compare_logits(full: Tensor, other: Tensor) -> Row:
    """Compare logits [num_tokens, vocab_size] of one text.

    `kl`: KL(full || other) in nats, a value a token, in float32: bfloat16 makes of two exact runs hundreds of times as
    much. `same_top`: whether both find the same token likeliest.
    """
    assert full.shape == other.shape, "both must be of the same text"
    kl = []
    for row, its in zip(full, other, strict=True):  # a row at a time stays in the processor's cache
        log_full, log_other = (torch.log_softmax(each.to(torch.float32), -1) for each in (row, its))
        kl.append(round(max(0.0, float((log_full.exp() * (log_full - log_other)).sum())), 10))
    return {"kl": kl, "same_top": (full.argmax(-1) == other.argmax(-1)).tolist()}


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """By mode: `insensitive`, `sensitive`, its two classes and kinds, and the sensitive ones that the model answers
    right itself (`answered`): of the others a change of the edit's symbol says little."""
    found = {mode: _summarise_classes(rows, mode) for mode in MODES if rows and mode in rows[0]["settings"]}
    noisy = [row | {"settings": {NOISE: row["noise"]}} for row in rows if row["noise"] is not None]
    return found | ({NOISE: _summarise_classes(noisy, NOISE)} if noisy else {})


def _summarise_classes(rows: Sequence[Row], setting: str) -> dict[str, Any]:
    sensitive = [row for row in rows if row["class"] in SENSITIVE]
    parts = {
        "insensitive": [row for row in rows if row["class"] not in SENSITIVE],
        "sensitive": sensitive,
        "answered": [row for row in sensitive if row["verdict"] == "right"],
        **{name: [row for row in rows if row["class"] == name] for name in SENSITIVE},
        **{row["kind"]: [each for each in rows if each["kind"] == row["kind"]] for row in rows},
    }
    return {name: summarise_part(part, setting) for name, part in parts.items() if part}


def summarise_part(rows: Sequence[Row], setting: str) -> Row:
    """Of one setting over some probes: divergence, what is recovered of the edit's effect, the answers' verdicts.

    `effect_recovered` is 1 - KL(full || mode) / KL(full || stale) of sums over all texts: a ratio of one text is
    anything where the edit has next to no effect on it.
    """
    own = [row["settings"][setting] for row in rows]
    kl: NDArray[np.float64] = np.concatenate([each["kl"] for each in own])
    p50, p90, p99 = np.percentile(kl, [50, 90, 99]).tolist()
    found: Row = {
        "probes": len(rows),
        "tokens": len(kl),
        "top1": float(np.concatenate([each["same_top"] for each in own]).mean()),
        "kl_mean": float(kl.mean()),
        "kl_p50": p50,
        "kl_p90": p90,
        "kl_p99": p99,
        "kl_max": float(kl.max()),
        "exact_match": fmean(all(each["same_top"]) for each in own),
    }
    if setting != NOISE:
        for name, part, whole in (
            ("share_run", "num_run", "prompt_tokens"),
            ("share_run_behind", "num_file", "tokens_behind"),
        ):
            found[name] = sum(each[part] for each in own) / sum(row[whole] for row in rows)
    if rows[0]["right"]:
        effect = sum(sum(row["stale_kl"]) for row in rows)
        found["effect_recovered"] = 1.0 - float(kl.sum()) / effect if effect else 1.0
        for verdict in ("stale", "right"):
            found[f"{verdict}_rate_full"] = fmean(row["verdict"] == verdict for row in rows)
            if setting != NOISE:
                found[f"{verdict}_rate"] = fmean(each["verdict"] == verdict for each in own)
    return found


def render_quality(summary: Mapping[str, Mapping[str, Row]]) -> str:
    """Render the modes and the noise floor, class by class."""
    optional = dict.fromkeys(("share_run_behind", "effect_recovered", "stale_rate", "stale_rate_full"))
    return render_rows(
        [
            {"setting": setting, "class": name, **optional, **summary[setting][name]}
            for setting in (*MODES, NOISE)
            for name in (*SENSITIVE, "sensitive", "answered", "insensitive")
            if name in summary.get(setting, {})
        ],
        {
            "setting": "{setting}",
            "class": "{class}",
            "probes": "{probes}",
            "tokens": "{tokens:,}",
            "file tokens run again": "{share_run_behind:.1%}",
            "KL mean": "{kl_mean:.1e}",
            "p90": "{kl_p90:.1e}",
            "p99": "{kl_p99:.1e}",
            "max": "{kl_max:.1e}",
            "top-1": "{top1:.2%}",
            "same output": "{exact_match:.1%}",
            "effect recovered": "{effect_recovered:.1%}",
            "stale answers": "{stale_rate:.1%}",
            "of full": "{stale_rate_full:.1%}",
        },
    )


if __name__ == "__main__":
    main()
