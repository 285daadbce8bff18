"""Requests that ran among others, run again alone: the answer must be the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.engine import Engine
from engine.types import GenerationRequest, GenerationResult
from tests.soak.ledger import Finished

NEAR_TIE = 1e-3
"""Two tokens whose log-probabilities differ by less may be taken for one another: float32, summed in another order."""

MOST_LOGPROBS = 100


def replay(engine: Engine, kept: Sequence[Finished], fail: Callable[[str], None]) -> Counter[str]:
    """How many are `equal`, how many part at a `near_tie`; the others are failures."""
    counts: Counter[str] = Counter()
    for each in kept:
        engine.forget_cached()
        again = engine.run(replace(each.request, deadline_s=None))
        if _same(again, each.result):
            counts["equal"] += 1
        elif _parts_at_near_tie(engine, each, again.token_ids):
            counts["near_tie"] += 1
        else:
            counts["different"] += 1
            fail(f"alone it is {again}, among others it was {each.result}: {each.request}"[:1500])
    return counts


def _same(again: GenerationResult, before: GenerationResult) -> bool:
    return (
        (again.token_ids, again.text, again.finish_reason) == (before.token_ids, before.text, before.finish_reason)
        and len(again.logprobs) == len(before.logprobs)
        and all(abs(a.logprob - b.logprob) <= NEAR_TIE for a, b in zip(again.logprobs, before.logprobs, strict=True))
    )


def _parts_at_near_tie(engine: Engine, each: Finished, again: tuple[int, ...]) -> bool:
    """Whether greedy outputs part where both tokens are as good; of sampled ones that cannot be told."""
    first = each.result.token_ids
    at = next((at for at, (a, b) in enumerate(zip(first, again, strict=False)) if a != b), None)
    if at is None or each.request.temperature > 0.0:
        return False
    context = (*each.request.prompt_ids, *first[:at])
    request = GenerationRequest(context, 1, logprobs=MOST_LOGPROBS, logit_bias=each.request.logit_bias)
    likely = dict(engine.run(request).logprobs[0].top)
    return each.request.repetition_penalty == 1.0 and (
        abs(likely.get(first[at], -1e9) - likely.get(again[at], 1e9)) <= NEAR_TIE
    )
