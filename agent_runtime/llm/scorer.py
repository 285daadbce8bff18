"""Chooses among readings of an edit by their log-probability and by how sure the reader is of them."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agent_runtime.llm.generate import Follow, RunResults, run_requests
from agent_runtime.llm.interface import ModelTask
from agent_runtime.prompt.builder import ApplyPrompt
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
    adapter: str | None = None,
    follow: Follow | None = None,
    goes_on: Callable[[Sequence[AnswerScore]], bool] = lambda first: True,
) -> list[list[AnswerScore]]:
    """Score `answers[q]`, the token ids of possible answers to the question of `prompts[q]`, best first.

    Returns for each question and answer the score of its part (`find_divergence`), which is empty if nothing differs.
    If the model would write the first answer to every question, the others are not scored: it would write none of them.
    Nor are they if `goes_on` says so of the scores of the first answers.
    The common prefix is added to the prompt, so the engine computes it once. adapter: acts from the last token of the
    prompt on, so that the prompt's KV is the bare model's. Equal answers are run once, and the parts of all questions
    share forward passes. Raises what the engine raises.
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
                adapter=adapter,
                adapter_start=0 if adapter is None else len(prompt.token_ids) - 1,
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
    firsts = [scores[place] for place, *_ in places]
    if all(each.is_likeliest for each in firsts) or not goes_on(firsts):
        return [[each] for each in firsts]
    scores |= score([at for at in range(len(requests)) if at not in first])
    return [[scores[place] for place in of_question] for of_question in places]


def _build_score(logprobs: Sequence[TokenLogprob]) -> AnswerScore:
    is_likeliest = all(each.logprob >= each.top[0][1] for each in logprobs)
    return AnswerScore(tuple(each.logprob for each in logprobs), is_likeliest)


LOGPROB_WEIGHT = 0.25
"""Weight of the model's log-probability relative to the logarithm of the editor's score, without trained weights."""

LEAST_WEIGHT = 0.8
"""Minimum share of all weight of a reading that is chosen, likewise."""

LEAST_LOGPROB = math.log(0.02)
"""Minimum log-probability of the least likely token of a chosen reading, likewise; below it the model would write
another one."""

FEATURES = ("confidence", "ahead", "least", "margin", "alone")
"""What the probability of a reading is computed from (`compute_features`)."""

_FLOOR = -12.0
_MOST_AHEAD = 5.0
_MOST_MARGIN = 3.0


@dataclass(frozen=True, slots=True)
class ChooserWeights:
    """What `python -m benchmarks.train_chooser` has learned, from `chooser.json`.

    A reading's probability is the softmax of `weights . features` over all scored readings and "none of these", whose
    score is `none`. bar: the least probability of a reading that is chosen. written: the share right of first readings
    that the model would write.
    """

    weights: tuple[float, ...]
    none: float
    bar: float
    written: float


@cache
def load_chooser() -> ChooserWeights:
    """Return the weights that are shipped."""
    found = json.loads((files(__package__) / "chooser.json").read_bytes())
    return ChooserWeights(
        tuple(found["weights"][name] for name in FEATURES), found["none"], found["bar"], found["written"]
    )


@dataclass(frozen=True, slots=True)
class ReadingChoice:
    """A choice among scored readings. number: of the chosen one, None in doubt. confidence: that it is right."""

    readings: tuple[ScoredReading, ...]
    number: int | None
    confidence: float | None


def choose_reading(candidates: Sequence[Candidate], scores: Sequence[Sequence[AnswerScore]]) -> ReadingChoice:
    """Choose one of the candidates; `scores[q][c]` is that of candidate c in question q.

    A first reading that the model would write is chosen; then the others have no scores. Else it is the most probable
    one, if its probability reaches the bar; none if only the first was scored (`can_be_chosen`), whose probability is
    then the most that it could have. Candidates without a calibrated confidence (those of edits that are no lazy
    snippets) are judged by fixed weights, which were not trained.
    """
    scored = candidates[: len(scores[0])]
    is_calibrated = all(candidate.confidence is not None for candidate in candidates)
    of_each = [[logprob for question in scores for logprob in question[at].logprobs] for at in range(len(scored))]
    chooser = load_chooser()
    is_cut = len(scored) < len(candidates)
    if is_calibrated and is_cut:
        shares = _bound_probabilities(candidates, sum(of_each[0]), min(of_each[0], default=0.0), chooser)[:1]
    elif is_calibrated:
        sums, leasts = [math.fsum(found) for found in of_each], [min(found, default=0.0) for found in of_each]
        shares = compute_probabilities(compute_features(scored, sums, leasts), chooser)
    else:
        shares = _weigh(scored, of_each)
    best = max(range(len(scored)), key=shares.__getitem__)
    if all(question[0].is_likeliest for question in scores):
        rest = sum(each.score for each in scored) / sum(each.score for each in candidates)
        shares = [chooser.written if is_calibrated else shares[0] * rest, *shares[1:]]
        best, is_sure = 0, True
    elif is_calibrated:
        is_sure = shares[best] >= chooser.bar and not is_cut
    else:
        is_sure = shares[best] >= LEAST_WEIGHT and min(of_each[best], default=0.0) >= LEAST_LOGPROB
    readings = tuple(
        ScoredReading(
            why=candidate.why,
            score=share,
            logprob=math.fsum(found) / len(found) if found else 0.0,
            least_logprob=min(found, default=0.0),
        )
        for candidate, share, found in zip(scored, shares, of_each, strict=True)
    )
    return ReadingChoice(readings, best if is_sure else None, shares[best] if is_sure else None)


def can_be_chosen(candidates: Sequence[Candidate], first: Sequence[AnswerScore]) -> bool:
    """Return whether `choose_reading` may choose any of the candidates, now that the first one is scored."""
    if any(candidate.confidence is None for candidate in candidates):
        return True
    found = [logprob for score in first for logprob in score.logprobs]
    chooser = load_chooser()
    return max(_bound_probabilities(candidates, sum(found), min(found, default=0.0), chooser)) >= chooser.bar


def _bound_probabilities(
    candidates: Sequence[Candidate], first_sum: float, first_least: float, chooser: ChooserWeights
) -> list[float]:
    """Return the most that each candidate's probability can be, whatever the scores of those after the first.

    A candidate is at its best if its tokens are certain and all others far behind. The weights of `least` and `margin`
    must not be negative.
    """
    behind = first_sum - 10.0 * _MOST_MARGIN
    bounds = []
    for at in range(len(candidates)):
        sums = [first_sum, *[behind] * (len(candidates) - 1)]
        leasts = [first_least, *[_FLOOR] * (len(candidates) - 1)]
        if at:
            sums[at], leasts[at] = 0.0, 0.0
        bounds.append(compute_probabilities(compute_features(candidates, sums, leasts), chooser)[at])
    return bounds


def compute_features(
    candidates: Sequence[Candidate], sums: Sequence[float], leasts: Sequence[float]
) -> list[tuple[float, ...]]:
    """Return `FEATURES` of each candidate.

    sums, leasts: of each, the sum and the least of the log-probabilities of the tokens in which it differs, in all
    questions. Sums, not means: a copied token adds almost nothing, and the one token that keeps or drops twenty lines
    must not be lost in a mean.

    The features: `confidence`, log odds of the reader's confidence. `ahead`, logarithm of its score over that of the
    best other one. `least`, log-probability of the least likely token. `margin`, a tenth of the log-probability of all
    tokens over that of the best other one. `alone`, 1 if there is no other.
    """
    scores = [math.log(candidate.score) for candidate in candidates]
    rows: list[tuple[float, ...]] = []
    for at, candidate in enumerate(candidates):
        confidence = min(max(candidate.confidence or 0.0, 1e-4), 1.0 - 1e-4)
        others = [other for other in range(len(candidates)) if other != at]
        ahead = scores[at] - max((scores[other] for other in others), default=-math.inf)
        margin = (sums[at] - max((sums[other] for other in others), default=-math.inf)) / 10.0
        rows.append(
            (
                math.log(confidence / (1.0 - confidence)),
                min(ahead, _MOST_AHEAD),
                max(leasts[at], _FLOOR),
                max(-_MOST_MARGIN, min(margin, _MOST_MARGIN)),
                float(not others),
            )
        )
    return rows


def compute_probabilities(features: Sequence[Sequence[float]], chooser: ChooserWeights) -> list[float]:
    """Return the probability of each reading; what they lack of 1 is that of none."""
    scores = [math.fsum(map(operator.mul, chooser.weights, row)) for row in features]
    top = max(*scores, chooser.none)
    powers = [math.exp(score - top) for score in scores]
    total = math.fsum([*powers, math.exp(chooser.none - top)])
    return [power / total for power in powers]


def _weigh(candidates: Sequence[Candidate], logprobs: Sequence[Sequence[float]]) -> list[float]:
    """Return the share of each candidate in the weight of all.

    As in Bayes' rule, the weight of a reading is its score by rule times its probability as the model's answer. The
    latter is raised to the power of `LOGPROB_WEIGHT`, since models are overconfident.
    """
    exponents = [
        math.log(candidate.score) + LOGPROB_WEIGHT * math.fsum(found)
        for candidate, found in zip(candidates, logprobs, strict=True)
    ]
    weights = [math.exp(exponent - max(exponents)) for exponent in exponents]
    return [weight / math.fsum(weights) for weight in weights]
