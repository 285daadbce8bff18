"""Runs a probe through the engine: a full recompute, then each mode held to its greedy continuation, token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor

from agent_runtime.models.tokenizer import TokenizerBundle
from benchmarks.reuse.quality.divergence import Divergence
from benchmarks.reuse.quality.layout import LaidOutProbe
from benchmarks.reuse.quality.probe import Probe
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.reuse import EXACT, Reuse
from engine.scheduler import SchedulerConfig
from engine.speculation import CopyDraft
from engine.types import GenerationRequest, GenerationResult, Proposer

NUM_TOKENS = 128
"""Tokens of the reference continuation."""

ANSWER_TOKENS = 24
"""Tokens of an answer that are looked at for a symbol: it comes next, or the model has missed the question."""

OTHER_CHUNK = 96
"""Tokens of a pass in the second exact run, whose distance from the first is the noise floor; a usual one has 512."""

_STORED_TOKENS = 8192
"""What the span store has room for: one turn, several times."""

Setting = Callable[[LaidOutProbe], Reuse]
"""How a mode, or a choice of tokens to run again, is asked for on a probe's second prompt."""


def with_mode(reuse: Reuse, probe: LaidOutProbe) -> Reuse:
    """As an apply asks for it (agent_runtime/llm/interface.py): what is not the file is run."""
    whole = ((0, len(probe.head)), *reuse.recompute, (probe.tail_start, len(probe.prompt)))
    return Reuse(reuse.mode, probe.segment_ends, reuse.budget, whole)


def modes() -> dict[str, Setting]:
    """The engine's approximate modes as they are by default."""
    return {
        "fast": lambda probe: with_mode(Reuse("fast"), probe),
        "turbo": lambda probe: with_mode(Reuse("turbo"), probe),
    }


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


@dataclass(frozen=True)
class Approximation:
    """A setting against the full recompute. num_run: the prompt's tokens that were run, head and tail among them;
    num_file: those of the file. answer: what it says where it is judged."""

    divergence: Divergence
    num_run: int
    num_file: int
    verdict: str


@dataclass(frozen=True)
class Scored:
    """One probe, measured. `stale` is the distance of the answer that knows nothing of the edit, where it has a
    wrong one; `noise` that of another exact run, for some probes. `verdict` is the full recompute's own."""

    probe: Probe
    num_prompt: int
    num_behind: int
    answer: str
    verdict: str
    stale: Divergence | None
    noise: Divergence | None
    by_setting: dict[str, Approximation] = field(default_factory=dict)


class Scorer:
    """One model's engine for probes, with a span store that holds the turn before the edit and nothing else."""

    def __init__(
        self, decoder: Decoder, text: TokenizerBundle, num_tokens: int = NUM_TOKENS, context: int = 4096
    ) -> None:
        self._text = text
        self._num_tokens = num_tokens
        self._token_bytes = text.tokenizer.token_bytes()
        self._decoder = RecordingDecoder(decoder)
        self._core = self._new_core(context, SchedulerConfig(max_num_seqs=1), _STORED_TOKENS)
        small = SchedulerConfig(max_batched_tokens=OTHER_CHUNK, prefill_beside_decodes=OTHER_CHUNK, max_num_seqs=1)
        self._other = self._new_core(context, small, 0)

    def score(self, probe: LaidOutProbe, settings: Mapping[str, Setting], *, with_noise: bool) -> Scored | None:
        """Measure one probe; None where the full recompute says nothing.

        Every setting finds the store as the turn before the edit has left it: what later turns compute is not kept.
        """
        core, prompt = self._core, probe.prompt
        core.reset()
        self._run(core, GenerationRequest(probe.first_prompt, 1))
        assert core.reuse is not None
        with patch.object(core.reuse.store, "reserve", lambda num_tokens: None):
            reference = self._reference(probe)
            if not reference:
                return None
            full = self._logits(core, prompt, reference, salt="full")
            stale = None
            if probe.probe.right:
                stale = Divergence.of(full, self._logits(core, probe.stale_prompt, reference))
            answer = self._decoded(reference[:ANSWER_TOKENS])
            asked = {name: setting(probe) for name, setting in settings.items()}
            found = {reuse: self._approximation(probe, full, reference, reuse) for reuse in set(asked.values())}
        noise = None
        if with_noise:
            self._other.reset()
            noise = Divergence.of(full, self._logits(self._other, prompt, reference))
        return Scored(
            probe.probe,
            len(prompt),
            probe.tail_start - probe.changed[1],
            answer,
            probe.probe.judged(answer),
            stale,
            noise,
            {name: found[reuse] for name, reuse in asked.items()},
        )

    def _reference(self, probe: LaidOutProbe) -> list[int]:
        """The greedy continuation on nothing but what this prompt itself computes, without what ends the turn."""
        request = GenerationRequest(probe.prompt, self._num_tokens, stop_ids=self._text.stop_ids, salt="full")
        result = self._run(self._core, request, CopyDraft([probe.copied]) if probe.copied else None)
        return [each for each in result.token_ids if each not in self._text.stop_ids]

    def _approximation(
        self, probe: LaidOutProbe, full: Tensor, reference: Sequence[int], reuse: Reuse
    ) -> Approximation:
        logits, result = self._scored(self._core, probe.prompt, reference, reuse)
        divergence = Divergence.of(full, logits)
        departure = divergence.first_departure()
        answer = reference[:ANSWER_TOKENS]
        if departure is not None and departure < ANSWER_TOKENS and probe.probe.right:
            answer = self._answer(probe.prompt, reuse)
        num_run = result.usage.recomputed
        num_apart = len(probe.head) + len(probe.tail)
        return Approximation(divergence, num_run, num_run - num_apart, probe.probe.judged(self._decoded(answer)))

    def _answer(self, prompt: Sequence[int], reuse: Reuse) -> Sequence[int]:
        self._core.pages.forget()
        request = GenerationRequest(prompt, ANSWER_TOKENS, stop_ids=self._text.stop_ids, reuse=reuse)
        return self._run(self._core, request).token_ids

    def _logits(self, core: EngineCore, prompt: Sequence[int], reference: Sequence[int], salt: str = "") -> Tensor:
        """Of an exact run, [len(reference), vocab_size]."""
        request = GenerationRequest(
            prompt, len(reference), forced_ids=tuple(reference), logprobs=0, reuse=EXACT, salt=salt
        )
        return self._forced(core, request)[0]

    def _scored(
        self, core: EngineCore, prompt: Sequence[int], reference: Sequence[int], reuse: Reuse
    ) -> tuple[Tensor, GenerationResult]:
        """Logits behind a prompt that takes over what the store has; its exact prefix is that of the store, too."""
        core.pages.forget()
        request = GenerationRequest(prompt, len(reference), forced_ids=tuple(reference), logprobs=0, reuse=reuse)
        return self._forced(core, request)

    def _forced(self, core: EngineCore, request: GenerationRequest) -> tuple[Tensor, GenerationResult]:
        self._decoder.recorded.clear()
        result = self._run(core, request)
        logits = torch.cat(self._decoder.recorded)
        assert len(logits) == len(request.forced_ids), "every forced token has a row of logits"
        return logits, result

    def _run(self, core: EngineCore, request: GenerationRequest, proposer: Proposer | None = None) -> GenerationResult:
        core.add(request, proposer)
        while True:
            for output in core.step():
                if output.error is not None:
                    raise output.error
                if output.result is not None:
                    self._decoder.recorded = self._decoder.recorded[-self._num_tokens :]
                    return output.result

    def _decoded(self, token_ids: Sequence[int]) -> str:
        return self._text.tokenizer.decode(token_ids)

    def _new_core(self, context: int, scheduler: SchedulerConfig, num_stored: int) -> EngineCore:
        token_bytes = page_bytes(self._decoder.config, 1, self._decoder.weights.dtype)
        config = EngineConfig(context, scheduler=scheduler, kv_sequences=3, span_bytes=num_stored * token_bytes)
        return EngineCore(self._decoder, self._token_bytes, config)
