"""Requests that ran among others, run again alone: the answer must be the same, but for what rounding tips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.engine import Engine
from engine.sampling.sampler import Sampler
from engine.types import GenerationRequest, GenerationResult
from tests.soak.ledger import Finished

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
