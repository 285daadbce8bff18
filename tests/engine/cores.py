"""Cores on tiny random models, drafters and requests for them, and a slow way to run a request alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.request import StopFinder
from engine.sampling import Sampler
from engine.scheduler import SchedulerConfig
from engine.speculation.step_times import StepTimes
from engine.types import Draft, GenerationRequest, GenerationResult, GenerationUsage, Output, Proposer
from tests.engine.tiny import MISTRAL, TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_parameters

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 4, 6]
PAGE_SIZE = 4
WINDOW = 9


@cache
def tiny_model(*, windowed: bool = False) -> Decoder:
    return Decoder(tiny_parameters(tiny_config(**(MISTRAL | {"sliding_window": WINDOW} if windowed else {}))))


def make_core(
    *,
    num_pages: int = 64,
    model: Decoder | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    rows_are_free: bool = False,
    draft_model: Decoder | None = None,
    **limits: Any,
) -> EngineCore:
    """With `rows_are_free`, whatever has any chance to be right is drafted. The draft model takes no time."""
    model = model or tiny_model()
    kv_bytes = num_pages * page_bytes(model.config, PAGE_SIZE, torch.float32)
    config = EngineConfig(
        max_seq_len=200,
        kv_bytes=kv_bytes,
        page_size=PAGE_SIZE,
        scheduler=SchedulerConfig(**({"max_num_seqs": 8} | limits)),
        check_integrity=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        if rows_are_free:
            patch.setattr("engine.runner.torch_runner.StepTimes", lambda: StepTimes({1: 1.0, 1024: 1.0}))
        core = EngineCore(model, TOKEN_BYTES, config, clock, draft_model)
    if draft_model is not None:
        core._speculator._draft_model.times.replace(StepTimes({1: 1e-6, 1024: 1e-6}))
    return core


@torch.inference_mode()
def alone(model: Decoder, request: GenerationRequest) -> GenerationResult:
    """The request by itself, a token a pass in contiguous caches, without pages, batches or drafts."""
    prompt, output, logprobs = list(request.prompt_ids), [], []
    caches = model.new_caches(1, len(prompt) + request.max_new_tokens)
    sampler, stops = Sampler(request), StopFinder(TOKEN_BYTES, request.stop_ids, request.stop)
    hidden = model.forward(torch.tensor(prompt), caches)[-1:]
    while len(output) < request.max_new_tokens and not stops.stopped:
        choice = sampler.choose(model.logits(hidden), output, [])
        output += choice.token_ids
        logprobs += choice.logprobs
        stops.push(output[-1])
        hidden = model.forward(torch.tensor(output[-1:]), caches)
    reason = "stop" if stops.stopped else "length"
    return GenerationResult(tuple(output), bytes(stops.text), reason, GenerationUsage(), tuple(logprobs))


def same(actual: GenerationResult, expected: GenerationResult) -> bool:
    """Equal but for the last bits of log-probabilities."""
    assert [each.token_id for each in actual.logprobs] == [each.token_id for each in expected.logprobs]
    for ours, theirs in zip(actual.logprobs, expected.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    return (actual.token_ids, actual.text, actual.finish_reason) == (
        expected.token_ids,
        expected.text,
        expected.finish_reason,
    )


@dataclass
class Collected:
    """What a core gave, by request."""

    results: dict[int, GenerationResult] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, bytes] = field(default_factory=dict)
    guessed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Drafted and accepted tokens, as the steps have them."""

    def take(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            assert output.id not in self.results, "an output behind the result"
            assert output.id not in self.errors, "an output behind an error"
            if output.step is not None:
                self.ids.setdefault(output.id, []).extend(output.step.token_ids)
                self.texts[output.id] = self.texts.get(output.id, b"") + output.step.text
                drafted, accepted = self.guessed.get(output.id, (0, 0))
                assert output.step.num_accepted <= min(output.step.num_drafted, len(output.step.token_ids))
                self.guessed[output.id] = drafted + output.step.num_drafted, accepted + output.step.num_accepted
            if output.result is not None:
                self.results[output.id] = output.result
                assert tuple(self.ids[output.id]) == output.result.token_ids
                assert self.texts[output.id] == output.result.text
                usage = output.result.usage
                assert self.guessed[output.id] == (usage.drafted, usage.accepted)
                assert sum(end - first for first, end in usage.reused_at) == usage.reused_approximate
            if output.error is not None:
                self.errors[output.id] = output.error


def drain(core: EngineCore, collected: Collected | None = None) -> Collected:
    collected = collected or Collected()
    for _ in range(5000):
        if not core.has_pending_work():
            assert core.pages.num_available == core.pages.num_pages, "pages have leaked"
            assert not core._speculator.num_open, "the draft model keeps what is over"
            assert core._speculator.fault is None, "the draft model failed"
            return collected
        collected.take(core.step())
    raise AssertionError("requests are stuck")


def run_one(core: EngineCore, request: GenerationRequest, proposer: Proposer | None = None) -> GenerationResult:
    request_id = core.add(request, proposer)
    return drain(core).results[request_id]


@st.composite
def requests(draw: st.DrawFn) -> tuple[GenerationRequest, int | None, int]:
    """A request that may share a prefix with the others, after how many steps it is given up, and a drafter's seed."""
    shared = draw(st.integers(0, len(PROMPT)))
    own = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6))
    request = GenerationRequest(
        prompt=[*PROMPT[:shared], *own],
        max_new_tokens=draw(st.integers(1, 30)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 9)),
        stop_ids=frozenset(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2))),
        stop=draw(st.sampled_from([(), (b"a",), (b"</x>", b"\n\n")])),
    )
    return request, draw(st.one_of(st.none(), st.integers(0, 3))), draw(st.integers(0, 99))


@dataclass
class Oracle:
    """Proposes what the model is known to write."""

    target: Sequence[int]
    hazard: float = 0.01

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.from_tokens(self.target[len(output_ids) : len(output_ids) + max_tokens], hazard=self.hazard)


@dataclass
class AlwaysWrong:
    """Proposes what the model is known not to write, at every place."""

    target: Sequence[int]
    vocab_size: int

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        right = Oracle(self.target).propose(output_ids, max_tokens).token_ids
        return Draft.from_tokens([(token_id + 1) % self.vocab_size for token_id in right])


class RandomDraft:
    """Proposes any ids, any number of them, more than were asked for too; now and then some right ones first."""

    def __init__(self, target: Sequence[int], vocab_size: int, seed: int) -> None:
        self._oracle = Oracle(target)
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        num_right = self._random.choice([0, 0, 1, 3, 9])
        num_random = self._random.randrange(0, 12)
        right = self._oracle.propose(output_ids, num_right).token_ids
        return Draft.from_tokens([*right, *(self._random.randrange(self._vocab_size) for _ in range(num_random))])
