"""A draft model changes how many steps an output takes, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.runner import draft_model
from engine.runner.draft_model import DraftModel, DraftTask
from engine.speculation.draft_state import DRAFT_MODEL
from engine.speculation.step_times import StepTimes
from engine.types import GenerationRequest
from tests.engine.cores import (
    PROMPT,
    AlwaysWrong,
    Collected,
    Oracle,
    alone,
    drain,
    make_core,
    requests,
    run_one,
    same,
    tiny_model,
)
from tests.engine.runner.kernel_cores import by_kernels, kernel_model
from tests.engine.test_speculation import requests as single_requests
from tests.engine.tiny import VOCAB_SIZE, tiny_config, tiny_decoder, tiny_parameters


@cache
def small_vocabulary() -> Decoder:
    """The target, without the last half of its LM head."""
    parameters = tiny_parameters(tiny_config())
    parameters.lm_head = parameters.lm_head[: VOCAB_SIZE // 2]
    return Decoder(parameters)


@cache
def broken() -> Decoder:
    """Its logits are not numbers."""
    parameters = tiny_parameters(tiny_config())
    parameters.final_norm.fill_(float("nan"))
    return Decoder(parameters)


MODELS = {
    "itself": tiny_model,
    "another": lambda: tiny_decoder(seed=1),
    "another family": lambda: tiny_model(windowed=True),
    "a padded vocabulary": lambda: tiny_decoder(seed=2, vocab_size=VOCAB_SIZE + 16),
    "a part of the vocabulary": small_vocabulary,
    "not a number": broken,
}


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15)
@given(
    request=single_requests, rows_are_free=st.booleans(), context=st.sampled_from([16, 1024]), window=st.integers(1, 9)
)
def test_a_draft_model_changes_no_token_no_text_and_no_log_probability(
    name: str, request: GenerationRequest, rows_are_free: bool, context: int, window: int
) -> None:
    """Greedy and sampled, with every option; also where the draft model has to begin anew within the output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_model, "CONTEXT", context)
        patch.setattr(draft_model, "WINDOW", window)
        patch.setattr(draft_model, "MOST_BY_MODEL", 5)
        patch.setattr("engine.speculation.draft_state.MOST_BY_MODEL", 5)
        core = make_core(rows_are_free=rows_are_free, draft_model=MODELS[name]())
        result = run_one(core, request)
    assert same(result, alone(tiny_model(), request))
    usage = result.usage
    if result.finish_reason == "length":
        assert usage.completion == usage.forwards + usage.accepted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_like_the_target_is_always_right(temperature: float) -> None:
    """It draws with the request's own random numbers."""
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=60, temperature=temperature, seed=3)
    result = run_one(make_core(rows_are_free=True, draft_model=tiny_model()), request)
    assert same(result, alone(tiny_model(), request))
    counted = result.usage.by_source[DRAFT_MODEL]
    assert counted.accepted == counted.drafted == result.usage.accepted
    assert result.usage.forwards <= 1 + -(-60 // 4)


def test_a_draft_model_that_is_always_wrong_is_left_alone() -> None:
    """Where a pass of it takes a third of a pass of the target."""
    request, core = GenerationRequest(prompt=PROMPT, max_new_tokens=150), make_core(draft_model=tiny_decoder(seed=1))
    core._speculator._draft_model.times.replace(StepTimes({1: core.times(1) / 3, 1024: 1.0}))
    usage = run_one(core, request).usage
    assert usage.forwards >= 0.9 * 150
    assert 0 < usage.drafted < 20


@settings(max_examples=25)
@given(asked=st.lists(requests(), min_size=2, max_size=6), most_open=st.integers(1, 8), seed=st.integers(0, 3))
def test_requests_in_company_get_what_they_get_alone(
    asked: list[tuple[GenerationRequest, int | None, int]], most_open: int, seed: int
) -> None:
    """Also where the draft model has room for fewer sequences, and where some are given up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_model, "MOST_SEQUENCES", most_open)
        patch.setattr(draft_model, "CONTEXT", 40)
        core = make_core(rows_are_free=True, draft_model=tiny_model() if seed else tiny_decoder(seed=1))
        expected, collected = {}, Collected()
        for number, (request, given_up_after, _) in enumerate(asked):
            target = alone(tiny_model(), request)
            drafter = AlwaysWrong(target.token_ids, VOCAB_SIZE) if number % 3 == 2 else None
            request_id = core.add(request, drafter)
            if given_up_after is None:
                expected[request_id] = target
            else:
                collected.take(core.step())
                core.cancel(request_id)
        results = drain(core, collected).results
    for request_id, target in expected.items():
        assert same(results[request_id], target)


def test_what_is_drafted_is_what_the_draft_model_writes_after_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV of what was rejected is overwritten."""
    model, seen = tiny_decoder(seed=5), list[tuple[list[int], int, list[int]]]()
    draft = DraftModel.draft

    def spy(self: DraftModel, tasks: Sequence[DraftTask]) -> None:
        draft(self, tasks)
        seen.extend(
            (list(each.sequence.token_ids), self._contexts[each.sequence.id].start, list(each.token_ids))
            for each in tasks
        )

    monkeypatch.setattr(DraftModel, "draft", spy)
    monkeypatch.setattr(draft_model, "WINDOW", 7)
    monkeypatch.setattr(draft_model, "CONTEXT", 40)
    monkeypatch.setattr("engine.speculation.draft_state.DraftState.wants_model", lambda *_: True)
    core = make_core(draft_model=model)
    for first in range(3):
        core.add(GenerationRequest(prompt=[first, *PROMPT], max_new_tokens=60))
    drain(core)
    assert len({start for _, start, _ in seen}) > 1, "a context begins anew"
    for known, start, drafted in seen:
        caches = model.new_caches(1, 200)
        hidden = model.forward(torch.tensor(known[start:]), caches)
        for token_id in drafted:
            assert token_id == int(model.logits(hidden[-1:]).argmax())
            hidden = model.forward(torch.tensor([token_id]), caches)


def test_the_better_of_two_drafts_is_run() -> None:
    """A right drafter beside a wrong model, and a wrong drafter beside a right model."""
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=60)
    target = alone(tiny_model(), request).token_ids
    right = run_one(make_core(draft_model=tiny_decoder(seed=1)), request, Oracle(target)).usage
    assert right.forwards == 1
    assert set(right.by_source) == {"draft"}
    wrong = run_one(make_core(draft_model=tiny_model()), request, AlwaysWrong(target, VOCAB_SIZE)).usage
    assert wrong.by_source[DRAFT_MODEL].accepted > 30
    assert wrong.by_source["draft"].drafted == 59, "once, in the pass of the prompt"


def test_a_draft_model_that_fails_is_not_used_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    core = make_core(draft_model=tiny_model())
    monkeypatch.setattr(core._speculator._draft_model._runner, "compute_hidden", fail)
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=20)
    request_id, result = core.add(request), None
    with caplog.at_level(logging.WARNING):
        while core.has_pending_work():
            result = next((each.result for each in core.step() if each.id == request_id and each.result), None)
    assert result is not None
    assert same(result, alone(tiny_model(), request))
    assert result.usage.drafted == 0
    assert [each.getMessage() for each in caplog.records] == [
        "the draft model failed and is not used any more: RuntimeError: out of memory"
    ]


def test_forced_tokens_are_not_drafted_by_a_model() -> None:
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=30, forced_ids=list(range(20)))
    usage = run_one(make_core(draft_model=tiny_model()), request).usage
    assert usage.forwards < 1 + 10
    assert usage.by_source[DRAFT_MODEL].drafted <= 10


def test_a_reset_engine_drafts_again() -> None:
    core, request = make_core(draft_model=tiny_model()), GenerationRequest(prompt=PROMPT, max_new_tokens=30)
    core.add(request)
    for _ in range(5):
        core.step()
    core.reset()
    assert run_one(core, request).usage.by_source[DRAFT_MODEL].accepted > 10


def kernel_draft_core() -> EngineCore:
    model = kernel_model()
    with by_kernels():
        return make_core(model=model, draft_model=model, rows_are_free=True)


def test_passes_of_a_card_draft_as_those_of_a_cpu() -> None:
    """By the kernels' references."""
    core, expected = kernel_draft_core(), {}
    for first in range(3):
        request = GenerationRequest(prompt=[first, *PROMPT], max_new_tokens=20, temperature=float(first == 2))
        expected[core.add(request)] = alone(kernel_model(), request)
    results = drain(core).results
    for request_id, target in expected.items():
        assert same(results[request_id], target)
        counted = results[request_id].usage.by_source[DRAFT_MODEL]
        assert counted.accepted == counted.drafted > 10
    assert same(run_one(core, replace(request, seed=9)), alone(kernel_model(), replace(request, seed=9)))
