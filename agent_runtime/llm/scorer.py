"""Chooses among readings of an edit by their log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agent_runtime.llm.generate import Follow, Run, run_together
from agent_runtime.llm.interface import ModelTask
from agent_runtime.prompt import ApplyPrompt
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ScoredReading
from editor.grammars import find_language
from editor.scope import Scope, is_confined
from editor.types import Candidate, Unresolved
from editor.verify import is_accepted, verify
from engine.engine import Engine
from engine.types import GenerationRequest


def sound(task: ModelTask, scope: Scope) -> list[int]:
    """The numbers of the task's candidates that change nothing outside of the scope's regions and that the checks let
    pass under the request's policy.
    """
    if not isinstance(task.by_rule, Unresolved):
        return []
    language, said = find_language(task.request.path), (task.request.instruction,)
    return [
        number
        for number, candidate in enumerate(task.by_rule.candidates)
        if is_confined(task.text, candidate.text, scope.regions)  # it takes less than the checks
        and is_accepted(verify(task.text, candidate.text, task.edit, language, instructions=said), task.request.policy)
    ]


NUM_BEHIND = 8
"""Tokens after the last difference that belong to a part: an omission shows in the tokens that follow it."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Token ids: `trunk` is what every answer begins with, `parts[i]` is how the i-th goes on from there.

    Parts end `NUM_BEHIND` tokens behind the last difference, or with their answer; none is empty.
    """

    trunk: Sequence[int]
    parts: tuple[Sequence[int], ...]


def siblings(answers: Sequence[Sequence[int]], unchanged: Sequence[int]) -> Siblings | None:
    """Split answers at their differences from each other and from `unchanged`; None if there are none.

    Example, with 2 tokens behind: "a b c d e f", "a b d e f" and, unchanged, "a x c d e f" have the trunk "a" and the
    parts "b c d e" and "b d e".
    """
    everything = [*answers, unchanged]
    num_before = min(common_start(everything), min(map(len, everything)) - 1)  # one may be another's beginning
    rests = [answer[num_before:] for answer in everything]
    num_behind = common_start([rest[::-1] for rest in rests])
    if all(len(rest) == num_behind for rest in rests):
        return None
    parts = tuple(rest[: len(rest) - num_behind + NUM_BEHIND] for rest in rests[:-1])
    return Siblings(answers[0][:num_before], parts)


def common_start(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all begin with in common."""
    first, *others = sequences
    for at, token_id in enumerate(first):
        if any(at >= len(other) or other[at] != token_id for other in others):
            return at
    return len(first)


Logprobs = tuple[float, ...]
"""Log-probabilities of some tokens, each given those before it."""


def score_answers(
    engine: Engine,
    prompts: Sequence[ApplyPrompt],
    answers: Sequence[Sequence[Sequence[int]]],
    context: RequestContext,
    progress: ProgressListener,
    run: Run,
    deadline_s: float | None = None,
    salt: str = "",
    follow: Follow | None = None,
) -> list[list[Logprobs]]:
    """Score `answers[q]`, the token ids of some answers to the question of `prompts[q]`.

    Returned for each question and answer: the log-probabilities of the tokens from the first at which the answers part,
    or change the file, to a few behind the last such (`siblings`); none where nothing differs. Equal answers are run
    once. The trunk goes into the prompt, so the engine computes it once for all of them; the parts of all questions
    ride in the same passes. Raises what the engine raises.
    """
    requests: list[GenerationRequest] = []
    regions: list[int] = []
    places: list[list[int | None]] = []
    for region, (prompt, ids) in enumerate(zip(prompts, answers, strict=True)):
        distinct = list(dict.fromkeys(tuple(answer) for answer in ids))
        found = siblings(distinct, prompt.file_ids)
        if found is None:
            places.append([None] * len(ids))
            continue
        places.append([len(requests) + distinct.index(tuple(answer)) for answer in ids])
        requests += [
            GenerationRequest(
                [*prompt.token_ids, *found.trunk],
                len(part),
                forced_ids=part,
                logprobs=0,
                deadline_s=deadline_s,
                salt=salt,
            )
            for part in found.parts
        ]
        regions += [region] * len(found.parts)
    num_before = len(run.results)
    texts = [] if follow is None else list(map(follow, requests, regions))
    run_together(engine, [(request, None) for request in requests], context, progress, run, texts)
    given = [tuple(each.logprob for each in result.logprobs) for result in run.results[num_before:]]
    return [[() if place is None else given[place] for place in of_question] for of_question in places]


TRUST = 0.25
"""Weight of a model's log-probability relative to the logarithm of the editor's score."""

LEAST_WEIGHT = 0.8
"""The share of all weight that a reading must have to be taken."""

LEAST_LOGPROB = math.log(0.02)
"""Minimum log-probability of the least likely token of a taken reading; below it the model would write another text."""


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
