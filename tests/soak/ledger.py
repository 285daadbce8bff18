"""The outcome of every request: counted and timed, and a sample of the finished ones run again alone."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.engine import Engine
from engine.sampling import Sampler
from engine.types import GenerationRequest, GenerationResult, GenerationStep
from tests.soak.traffic import OUTCOMES, Call

MOST_FAILURES = 20
MOST_KEPT = 32


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that was read to its end."""

    request: GenerationRequest
    result: GenerationResult


class Ledger:
    """Thread-safe. `failures` are sentences; any is one too many."""

    def __init__(self, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.num_tokens = 0
        self.num_preempted = 0
        self.longest_s = 0.0
        self.failures: list[str] = []
        self.kept: list[Finished] = []
        self._open: dict[int, tuple[float, Call]] = {}
        self._num_finished = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def begin(self, call: Call) -> None:
        """A caller submits."""
        with self._lock:
            self._open[id(call)] = (time.monotonic(), call)

    def end(self, call: Call, outcome: str, steps: list[GenerationStep], result: GenerationResult | None) -> None:
        """A caller has its outcome."""
        with self._lock:
            began, _ = self._open.pop(id(call))
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.outcomes[outcome] += 1
            self.num_tokens += sum(len(step.token_ids) for step in steps)
        expected = OUTCOMES[call.ending] | ({"queue_full"} if call.ending != "refuse" else set())
        if outcome not in expected:
            self.fail(f"{call.ending}: came to {outcome!r}: {call.request}"[:1000])
        if result is not None:
            self._check(call, steps, result)

    def fail(self, sentence: str) -> None:
        """Something is wrong."""
        with self._lock:
            if len(self.failures) < MOST_FAILURES:
                self.failures.append(sentence)

    def oldest(self) -> tuple[float, Call] | None:
        """The request that has been open for longest, and for how many seconds."""
        with self._lock:
            if not self._open:
                return None
            began, call = min(self._open.values(), key=lambda each: each[0])
            return time.monotonic() - began, call

    def _check(self, call: Call, steps: list[GenerationStep], result: GenerationResult) -> None:
        """The steps come to the result, and what it cost adds up."""
        usage = result.usage
        right = (
            tuple(token_id for step in steps for token_id in step.token_ids) == result.token_ids
            and b"".join(step.text for step in steps) == result.text
            and usage.completion == len(result.token_ids) <= call.request.max_new_tokens
            and usage.accepted <= usage.drafted
            and usage.cached < usage.prompt == len(call.request.prompt_ids)
        )
        if not right:
            self.fail(f"the steps are not the result: {steps} {result}"[:1000])
        with self._lock:
            self.num_preempted += usage.preempted
            self._num_finished += 1
            if len(self.kept) < MOST_KEPT:
                self.kept.append(Finished(call.request, result))
            elif (at := self._random.randrange(self._num_finished)) < MOST_KEPT:  # each equally likely to be kept
                self.kept[at] = Finished(call.request, result)


NOISE = 1e-4
"""By how much logits in float32 differ when they are summed in another order, at most; likewise log-probabilities."""

NUM_DISTURBED = 200


def replay(engine: Engine, kept: Sequence[Finished], fail: Callable[[str], None]) -> Counter[str]:
    """How many are `equal`, and how many part where rounding decides (`tipped`); the others are failures.

    Nobody else may use the engine meanwhile.
    """
    counts: Counter[str] = Counter()
    for each in kept:
        engine.forget_cached()
        again = engine.run(replace(each.request, deadline_s=None))
        if _same(again, each.result):
            counts["equal"] += 1
        elif _tipped(engine, each.request, each.result.token_ids, again.token_ids):
            counts["tipped"] += 1
        else:
            counts["different"] += 1
            fail(f"alone it is {again}, among others it was {each.result}: {each.request}"[:1500])
    return counts


def _same(again: GenerationResult, before: GenerationResult) -> bool:
    return (
        (again.token_ids, again.text, again.finish_reason) == (before.token_ids, before.text, before.finish_reason)
        and len(again.logprobs) == len(before.logprobs)
        and all(abs(a.logprob - b.logprob) <= NOISE for a, b in zip(again.logprobs, before.logprobs, strict=True))
    )


def _tipped(engine: Engine, request: GenerationRequest, first: Sequence[int], again: Sequence[int]) -> bool:
    """Whether, where two outputs part, both tokens are chosen when the logits are disturbed by rounding.

    That is so for near-ties of a greedy choice, and for a drawn number at the border of two tokens.
    """
    at = next((at for at, (a, b) in enumerate(zip(first, again, strict=False)) if a != b), None)
    if at is None:
        return False
    logits = _logits(engine, [*request.prompt_ids, *first[:at]])
    random = torch.Generator().manual_seed(0)
    chosen = {
        Sampler(request)
        .choose(logits + NOISE * torch.randn(logits.shape, generator=random), first[:at], [])
        .token_ids[0]
        for _ in range(NUM_DISTURBED)
    }
    return {first[at], again[at]} <= chosen


def _logits(engine: Engine, token_ids: Sequence[int]) -> Tensor:
    """Scores behind the last token, [1, vocab_size], by a pass of its own."""
    caches = engine.model.new_caches(1, len(token_ids))
    return engine.model.logits(engine.model.forward(torch.tensor(token_ids), caches)[-1:])
