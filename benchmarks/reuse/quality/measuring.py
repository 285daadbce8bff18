"""Measures the probes of one model one by one, and goes on where an earlier run was cut off."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.wiring import open_model
from benchmarks.reuse.quality.choices import SHARES, oracle
from benchmarks.reuse.quality.choices import settings as choices
from benchmarks.reuse.quality.layout import lay_out
from benchmarks.reuse.quality.probe import Probe
from benchmarks.reuse.quality.probes import MAKERS, make_probes
from benchmarks.reuse.quality.rows import Row, row_of
from benchmarks.reuse.quality.scoring import NUM_TOKENS, Scorer, modes
from engine.decoder import Decoder

BYSTANDERS = ("repeat", "go on")
NUM_SENSITIVE, NUM_BYSTANDERS = 8, 50
"""Probes of a kind: the ones are answered in a few tokens, of the others' 10,000 are to be compared."""

NOISE_EVERY = 4
"""Of so many probes one is run exactly a second time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: the modes, or `choices` of tokens to run again, some by oracles. num_probes: of a kind
    at most; None: the usual numbers. shares: of choices that rank tokens."""

    kinds: Sequence[str] = tuple(MAKERS)
    num_probes: int | None = None
    num_tokens: int = NUM_TOKENS
    seed: int = 1
    choices: bool = False
    shares: Sequence[float] = SHARES

    def probes(self) -> Iterator[tuple[int, Probe]]:
        """Numbered within their kinds, which take turns: what is cut off has some of each."""
        made = {}
        for kind in self.kinds:
            usual = NUM_BYSTANDERS if kind in BYSTANDERS else NUM_SENSITIVE
            count = usual if self.num_probes is None else min(usual, self.num_probes)
            made[kind] = make_probes(kind, count, self.seed)
        for number in range(max(map(len, made.values()))):
            yield from ((number, probes[number]) for probes in made.values() if number < len(probes))


def measure(model: str, plan: Plan, progress: Path | None = None) -> list[Row]:
    """A row for each probe. Those in the file `progress` are taken from there, the others appended to it."""
    loaded = open_model(model, ModelSettings.from_env(os.environ), LoadOptions(context=2048, kv_sequences=1))
    try:
        return list(rows(loaded.engine.model, loaded.text, plan, progress))
    finally:
        loaded.engine.close()


def rows(decoder: Decoder, text: TokenizerBundle, plan: Plan, progress: Path | None = None) -> Iterator[Row]:
    """As `measure`, of a model that is loaded."""
    scorer = Scorer(decoder, text, plan.num_tokens)
    done = {(row["kind"], row["number"]): row for row in _read(progress)}
    for number, probe in plan.probes():
        found = done.get((probe.kind, number))
        if found is not None:
            yield found
            continue
        started = perf_counter()
        laid_out = lay_out(probe, text)
        settings = choices(laid_out, oracle(decoder, laid_out), plan.shares) if plan.choices else modes()
        scored = scorer.score(laid_out, settings, with_noise=number % NOISE_EVERY == 0)
        if scored is None:
            continue
        row = row_of(scored, number)
        if progress is not None:
            with progress.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        print(f"{probe.kind} {number}: {row['verdict']}, {perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
        yield row


def _read(progress: Path | None) -> list[Row]:
    if progress is None or not progress.exists():
        return []
    return [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
