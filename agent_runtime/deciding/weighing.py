"""Weighs the readings of an edit: what the rules hold of each, and how likely a model is to write it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agent_runtime.deciding.scoring import Logprobs
from agent_runtime.types import ScoredReading
from editor.types import Candidate

TRUST = 0.25
"""What a model's log-probability counts beside the logarithm of the editor's score."""

LEAST_WEIGHT = 0.8
"""The share of all weight that a reading must have to be taken."""

LEAST_LOGPROB = math.log(0.02)
"""Of the least likely token of a reading that is taken: below it, the model would write something else there."""


def weigh(candidates: Sequence[Candidate], logprobs: Sequence[Sequence[Logprobs]]) -> tuple[ScoredReading, ...]:
    """The readings with their weights; `logprobs[q][c]` is what the model thinks of candidate c in question q.

    As in Bayes' rule: a reading weighs its score by rule times its probability as the model's answer, the latter to the
    power of `TRUST`, as models are surer than they are right. Sums, not means: the answers to a question go on from the
    same tokens, what is copied costs next to nothing however long it is, and the one token at which an answer keeps or
    drops twenty lines must not be lost in their mean.
    """
    of_each = [[logprob for question in logprobs for logprob in question[at]] for at in range(len(candidates))]
    exponents = [
        math.log(candidate.score) + TRUST * math.fsum(found)
        for candidate, found in zip(candidates, of_each, strict=True)
    ]
    weights = [math.exp(exponent - max(exponents)) for exponent in exponents]
    return tuple(
        ScoredReading(
            why=candidate.why,
            score=weight / math.fsum(weights),
            logprob=math.fsum(found) / len(found) if found else 0.0,
            least_logprob=min(found, default=0.0),
        )
        for candidate, weight, found in zip(candidates, weights, of_each, strict=True)
    )


def best_of(readings: Sequence[ScoredReading]) -> int | None:
    """The reading to take; None where two are nearly as good, or the model would write none of them."""
    best = max(range(len(readings)), key=lambda at: readings[at].score)
    chosen = readings[best]
    return best if chosen.score >= LEAST_WEIGHT and chosen.least_logprob >= LEAST_LOGPROB else None
