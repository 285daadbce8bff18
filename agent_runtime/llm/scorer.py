"""Asks a model how likely it is to write each of some answers: their common beginning is run once, the rest at once."""

from __future__ import annotations

from collections.abc import Sequence

from agent_runtime.deciding.siblings import siblings
from agent_runtime.generation.answer_text import Follow
from agent_runtime.generation.running import Run, run_together
from agent_runtime.generation.watcher import Watcher
from agent_runtime.prompt import ApplyPrompt
from engine.engine import Engine
from engine.types import GenerationRequest

Logprobs = tuple[float, ...]
"""The natural logarithms of some tokens' probabilities, each behind those before it."""


def score_answers(
    engine: Engine,
    prompts: Sequence[ApplyPrompt],
    answers: Sequence[Sequence[Sequence[int]]],
    watcher: Watcher,
    run: Run,
    deadline_s: float | None = None,
    salt: str = "",
    follow: Follow | None = None,
) -> list[list[Logprobs]]:
    """What the model thinks of `answers[q]`, the token ids of some answers to the question of `prompts[q]`.

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
    run_together(engine, [(request, None) for request in requests], watcher, run, texts)
    given = [tuple(each.logprob for each in result.logprobs) for result in run.results[num_before:]]
    return [[() if place is None else given[place] for place in of_question] for of_question in places]
