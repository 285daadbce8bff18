"""Chooses among readings of an edit by their log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agent_runtime.llm.generate import Follow, RunResults, run_requests
from agent_runtime.llm.interface import ModelTask
from agent_runtime.prompt import ApplyPrompt
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ScoredReading
from editor.grammars import find_language
from editor.scope import Scope, is_confined
from editor.types import Candidate, Unresolved
from editor.verify import is_accepted, verify
from engine.engine import Engine
from engine.types import GenerationRequest, TokenLogprob

MAX_SCORED = 4
"""Candidates that are scored. Of 241 development cases that no reading answers and some candidate does, it is among the
first four in 237."""


def find_valid_candidates(task: ModelTask, scope: Scope) -> list[int]:
    """Return the indices of the task's candidates that change only the scope's regions and pass the checks under the
    request's policy.
    """
    if not isinstance(task.by_rule, Unresolved):
        return []
    language, said = find_language(task.request.path), (task.request.instruction,)
    return [
        number
        for number, candidate in enumerate(task.by_rule.candidates)
        if is_confined(task.text, candidate.text, scope.regions)  # cheaper than the checks
        and is_accepted(verify(task.text, candidate.text, task.edit, language, instructions=said), task.request.policy)
    ]


NUM_TOKENS_AFTER = 8
"""Tokens that are scored after the last difference: an omission shows in the tokens that follow it."""


@dataclass(frozen=True, slots=True)
class AnswerDivergence:
    """Token ids: the common `prefix` of all answers, and `parts[i]`, the continuation of the i-th answer.

    A part ends `NUM_TOKENS_AFTER` tokens after the last difference, or with its answer; none is empty.
    """

    prefix: Sequence[int]
    parts: tuple[Sequence[int], ...]


def find_divergence(answers: Sequence[Sequence[int]], unchanged: Sequence[int]) -> AnswerDivergence | None:
    """Find where answers differ from each other and from `unchanged`; return None if they do not.

    Example, with 2 tokens after the last difference: the answers "a b c d e f" and "a b d e f", and "a x c d e f"
    unchanged, have the prefix "a" and the parts "b c d e" and "b d e".
    """
    everything = [*answers, unchanged]
    num_before = min(count_common_prefix(everything), min(map(len, everything)) - 1)  # one may be another's beginning
    rests = [answer[num_before:] for answer in everything]
    num_common = count_common_prefix([rest[::-1] for rest in rests])
    if all(len(rest) == num_common for rest in rests):
        return None
    parts = tuple(rest[: len(rest) - num_common + NUM_TOKENS_AFTER] for rest in rests[:-1])
    return AnswerDivergence(answers[0][:num_before], parts)


def count_common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """Return the length of the common prefix."""
    first, *others = sequences
    for at, token_id in enumerate(first):
        if any(at >= len(other) or other[at] != token_id for other in others):
            return at
    return len(first)


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """The log-probabilities of consecutive tokens of an answer, each given those before it.

    is_likeliest: each of them is the model's likeliest token, so it would write this answer.
    """

    logprobs: tuple[float, ...] = ()
    is_likeliest: bool = True


def score_answers(
    engine: Engine,
    prompts: Sequence[ApplyPrompt],
    answers: Sequence[Sequence[Sequence[int]]],
    context: RequestContext,
    progress: ProgressListener,
    run: RunResults,
    deadline_s: float | None = None,
    salt: str = "",
    follow: Follow | None = None,
) -> list[list[AnswerScore]]:
    """Score `answers[q]`, the token ids of possible answers to the question of `prompts[q]`, best first.

    Returns for each question and answer the score of its part (`find_divergence`), which is empty if nothing differs.
    If the model would write the first answer to every question, the others are not scored: it would write none of them.
    The common prefix is added to the prompt, so the engine computes it once. Equal answers are run once, and the parts
    of all questions share forward passes. Raises what the engine raises.
    """
    requests: list[GenerationRequest] = []
    regions: list[int] = []
    places: list[list[int | None]] = []
    for region, (prompt, ids) in enumerate(zip(prompts, answers, strict=True)):
        distinct = list(dict.fromkeys(tuple(answer) for answer in ids))
        found = find_divergence(distinct, prompt.file_ids)
        if found is None:
            places.append([None] * len(ids))
            continue
        places.append([len(requests) + distinct.index(tuple(answer)) for answer in ids])
        requests += [
            GenerationRequest(
                [*prompt.token_ids, *found.prefix],
                len(part),
                forced_ids=part,
                logprobs=1,
                deadline_s=deadline_s,
                salt=salt,
            )
            for part in found.parts
        ]
        regions += [region] * len(found.parts)

    def score(numbers: Sequence[int]) -> dict[int | None, AnswerScore]:
        num_before, some = len(run.results), [requests[at] for at in numbers]
        texts = [] if follow is None else [follow(requests[at], regions[at]) for at in numbers]
        run_requests(engine, [(request, None) for request in some], context, progress, run, texts)
        results = run.results[num_before:]
        return {at: _build_score(result.logprobs) for at, result in zip(numbers, results, strict=True)}

    first = [place for place, *_ in places if place is not None]
    scores = {None: AnswerScore()} | score(first)
    if all(scores[place].is_likeliest for place in first):
        return [[scores[place]] for place, *_ in places]
    scores |= score([at for at in range(len(requests)) if at not in first])
    return [[scores[place] for place in of_question] for of_question in places]


def _build_score(logprobs: Sequence[TokenLogprob]) -> AnswerScore:
    is_likeliest = all(each.logprob >= each.top[0][1] for each in logprobs)
    return AnswerScore(tuple(each.logprob for each in logprobs), is_likeliest)


LOGPROB_WEIGHT = 0.25
"""Weight of the model's log-probability relative to the logarithm of the editor's score."""

LEAST_WEIGHT = 0.8
"""Minimum share of all weight of a reading that is chosen."""

LEAST_LOGPROB = math.log(0.02)
"""Minimum log-probability of the least likely token of a chosen reading; below it the model would write another one."""


def score_readings(
    candidates: Sequence[Candidate], scores: Sequence[Sequence[AnswerScore]]
) -> tuple[ScoredReading, ...]:
    """Return the readings with their scores, which sum to 1; `scores[q][c]` is that of candidate c in question q.

    As in Bayes' rule, the weight of a reading is its score by rule times its probability as the model's answer. The
    latter is raised to the power of `LOGPROB_WEIGHT`, since models are overconfident. Log-probabilities are summed, not
    averaged: a copied token adds almost nothing, and the one token that keeps or drops twenty lines must not be lost in
    a mean.
    """
    of_each = [[logprob for question in scores for logprob in question[at].logprobs] for at in range(len(candidates))]
    exponents = [
        math.log(candidate.score) + LOGPROB_WEIGHT * math.fsum(found)
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


def pick_reading(readings: Sequence[ScoredReading], scores: Sequence[Sequence[AnswerScore]]) -> int | None:
    """Return the index of the only reading that the model would write, or else of the best one.

    None if another is nearly as good as the best, or the model would write neither.
    """
    written = [at for at in range(len(readings)) if all(question[at].is_likeliest for question in scores)]
    if len(written) == 1:
        return written[0]
    best = max(range(len(readings)), key=lambda at: readings[at].score)
    chosen = readings[best]
    return best if chosen.score >= LEAST_WEIGHT and chosen.least_logprob >= LEAST_LOGPROB else None
