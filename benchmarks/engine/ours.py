"""Our engine as a contestant.

Its core is stepped in this process: no thread between, nothing sent, as for the peers. The KV pool is as large as
theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from agent_runtime.models.config import LoadOptions, ModelSettings, Quantize
from agent_runtime.models.loader import LoadedModel
from agent_runtime.wiring import open_model
from benchmarks.peers.protocol import Job, Recorder, parse_flags, peak_bytes, serve, take_stdout
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.types import Draft, GenerationRequest, Output, Proposer

KV_BYTES = 2 << 30
MOST_LOGPROBS = 100
SURE = 1e-9
FAR = 1e9
"""Stands for a token that is not among the likeliest ones."""


class FixedDraft:
    """Proposes one draft, whatever has been written."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = list(token_ids)

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the draft, said to be right: so all of it is put into the pass, whatever a row costs."""
        return Draft.from_tokens(self._token_ids[:max_tokens], hazard=SURE)


class Ours:
    """One engine."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._num_verified = 0

    def run(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
        job = Job.from_json(raw)
        return self._run(job, [None] * len(job.arrivals))

    def _run(self, job: Job, proposers: Sequence[Proposer | None]) -> list[dict[str, Any]]:
        """Run a job; `proposers` draft for its requests."""
        recorder = Recorder(job, time.perf_counter())
        numbers: dict[int, int] = {}
        while (due := recorder.due(time.perf_counter())) or self._core.has_pending_work():
            for number, arrival in due:
                numbers[self._add(arrival.prompt_ids, arrival.num_new, job.salt, proposers[number])] = number
            for output in self._step():
                if output.step is not None:
                    recorder.tokens(numbers[output.id], output.step.token_ids, time.perf_counter())
        return [asdict(answer) for answer in recorder.answers()]

    def verify(self, asked: dict[str, Any]) -> list[tuple[int, list[float]]]:
        """Time one step of the engine over k tokens, the prompt's last one and k - 1 drafted, for each k.

        All of the prompt but its last token is cached. The draft is what the engine wrote before (`reference`, where
        that is known), so it is confirmed, but where rounding tips a near-tie.
        """
        prompt, sizes, repeats = asked["prompt_ids"], asked["sizes"], range(asked["repeats"])
        self._num_verified += 1
        salt = f"verify:{self._num_verified}"
        reference = asked.get("reference") or self._output(self._add(prompt, max(sizes), salt))
        self._output(self._add(prompt, 1, salt))
        return [
            (size, [self._seconds_of_pass(prompt, size, FixedDraft(reference[: size - 1]), salt) for _ in repeats])
            for size in sizes
        ]

    def margin(self, asked: dict[str, Any]) -> float:
        """By how much the model finds `first` likelier than `second` after `context`, natural logarithm."""
        request = GenerationRequest(asked["context"], 1, logprobs=MOST_LOGPROBS, salt="margin")
        request_id, found = self._core.add(request), dict[int, float]()
        while self._core.has_pending_work():
            for output in self._step():
                if output.id == request_id and output.result is not None:
                    found = dict(output.result.logprobs[0].top)
        return (
            found[asked["first"]] - found[asked["second"]] if {asked["first"], asked["second"]} <= set(found) else FAR
        )

    def _add(self, prompt: Sequence[int], num_new: int, salt: str, proposer: Proposer | None = None) -> int:
        return self._core.add(GenerationRequest(prompt, num_new, salt=salt), proposer)

    def _step(self) -> list[Output]:
        outputs = self._core.step()
        for output in outputs:
            if output.error is not None:
                raise output.error
        return outputs

    def _output(self, request_id: int) -> list[int]:
        token_ids: list[int] = []
        while self._core.has_pending_work():
            for output in self._step():
                if output.id == request_id and output.step is not None:
                    token_ids += output.step.token_ids
        return token_ids

    def _seconds_of_pass(self, prompt: Sequence[int], size: int, draft: FixedDraft, salt: str) -> float:
        request_id = self._add(prompt, size, salt, draft)
        began = time.perf_counter()
        self._step()
        seconds = time.perf_counter() - began
        self._core.cancel(request_id)  # where a near-tie left it unfinished
        return seconds


def open_core(
    model: str, quantize: Quantize, configure: Callable[[Decoder], EngineConfig]
) -> tuple[EngineCore, LoadedModel]:
    """Load a model, and open an engine core with its own configuration; the loaded model's engine is closed."""
    loaded = open_model(model, ModelSettings.from_env(os.environ), LoadOptions(context=2, quantize=quantize))
    loaded.engine.close()  # the core goes on with its model
    decoder = loaded.engine.model
    return EngineCore(decoder, loaded.text.tokenizer.token_bytes(), configure(decoder)), loaded


def main() -> None:
    options, channel = parse_flags(__doc__), take_stdout()
    config = EngineConfig(max_seq_len=options.context, kv_bytes=KV_BYTES)
    core, loaded = open_core(options.model, options.quantize, lambda _: config)
    contestant = Ours(core)
    operations = {
        "run": contestant.run,
        "verify": contestant.verify,
        "margin": contestant.margin,
        "peak_bytes": peak_bytes,
    }
    version = f"Hunk ({loaded.engine.model.precision.describe()})"
    serve(channel, operations, {"version": version, "abilities": ["arrivals", "prefix"]})


if __name__ == "__main__":
    main()
