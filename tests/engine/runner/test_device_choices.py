"""What a device chooses is what the host would choose, and no logits come to the host for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from engine.errors import NumericFault
from engine.runner import device_choices
from engine.sampling import Sampler
from engine.types import GenerationRequest, GenerationResult
from tests.engine.cores import PROMPT, Oracle, RandomDraft, alone, drain, run_one
from tests.engine.runner.kernel_cores import kernel_core, kernel_model
from tests.engine.tiny import VOCAB_SIZE

REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=24, seed=5)
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "bias": {"logit_bias": {3: 4.0, 7: -2.5, 40: 1.0}},
    "penalty": {"repetition_penalty": 1.4},
    "both": {"logit_bias": {3: 4.0}, "repetition_penalty": 1.3},
}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.9},
    "filtered": {"temperature": 1.2, "top_k": 9, "top_p": 0.8, "min_p": 0.02},
}


def check_same(found: GenerationResult, expected: GenerationResult) -> None:
    assert (found.token_ids, found.finish_reason) == (expected.token_ids, expected.finish_reason)
    assert len(found.logprobs) == len(expected.logprobs)
    for own, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert own.token_id == other.token_id
        assert own.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [each[0] for each in own.top] == [each[0] for each in other.top]
        assert [each[1] for each in own.top] == pytest.approx([each[1] for each in other.top], abs=1e-4)


@pytest.fixture(autouse=True)
def no_logits_on_the_host(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Only the other side of the comparison reads rows."""
    choose = Sampler.choose

    def counted(*arguments: Any) -> Any:
        assert not _is_kernel_run, "the device has chosen already"
        return choose(*arguments)

    monkeypatch.setattr(Sampler, "choose", counted)


_is_kernel_run: list[bool] = []


def run_by_kernels(wanted: list[tuple[GenerationRequest, Any]]) -> list[GenerationResult]:
    core = kernel_core(kernel_model(), rows_are_free=True)
    _is_kernel_run.append(True)
    try:
        ids = [core.add(request, drafter) for request, drafter in wanted]
        results = drain(core).results
    finally:
        _is_kernel_run.clear()
    return [results[request_id] for request_id in ids]


@pytest.mark.parametrize(("change", "sampling"), list(product(CHANGES, SAMPLING)))
def test_every_way_of_choosing_is_that_of_the_host(change: str, sampling: str) -> None:
    """Beside one another in a pass, without a draft, with one that is right, and with one that is often wrong."""
    wanted: list[tuple[GenerationRequest, Any]] = []
    expected = []
    for at, logprobs in enumerate((None, 0, 1, 5)):
        request = replace(REQUEST, seed=at, logprobs=logprobs, **CHANGES[change], **SAMPLING[sampling])
        target = alone(kernel_model(), request)
        for drafter in (None, Oracle(target.token_ids), RandomDraft(target.token_ids, VOCAB_SIZE, at)):
            wanted.append((request, drafter))
            expected.append(target)
    for found, target in zip(run_by_kernels(wanted[:6]) + run_by_kernels(wanted[6:]), expected, strict=True):
        check_same(found, target)


@pytest.mark.parametrize("rows_at_once", [3, 64])
def test_forced_tokens_are_scored_and_what_follows_is_chosen(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several pieces, whose border the penalty does not see."""
    monkeypatch.setattr(device_choices, "LM_HEAD_ROWS", rows_at_once)
    for changes in CHANGES.values():
        request = replace(REQUEST, forced_ids=(5, 9, 2, 2, 40, 11, 3), logprobs=3, temperature=0.7, **changes)
        (found,) = run_by_kernels([(request, None)])
        assert found.token_ids[:7] == request.forced_ids
        check_same(found, alone(kernel_model(), request))


def test_of_equally_likely_tokens_the_first_is_named_first() -> None:
    scores = torch.zeros(2, 9)
    scores[0, 4] = scores[0, 7] = 1.0
    own, likely, ids = device_choices._compute_logprobs(scores, torch.tensor([7, 0]), scores.argmax(dim=1), 4)
    assert ids.tolist() == [[4, 7, 0, 1], [0, 1, 2, 3]]
    assert own[0] == likely[0, 1] == pytest.approx(1.0 - torch.tensor([1.0, 1.0, *[0.0] * 7]).logsumexp(0).item())


def test_a_request_whose_logits_are_none_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    core = kernel_core(kernel_model())
    logits = core.model.logits
    fine, bad = replace(REQUEST, logprobs=2), replace(REQUEST, repetition_penalty=1.2, prompt=[4, 5])

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        found = logits(hidden)
        return found if len(hidden) > 1 or not is_bad[0] else found * torch.nan

    is_bad = [True]
    monkeypatch.setattr(core.model, "logits", broken)
    with pytest.raises(KeyError):
        run_one(core, bad)
    is_bad[0] = False
    check_same(run_one(core, fine), alone(kernel_model(), fine))
    is_bad[0] = True
    request_id = core.add(bad)
    assert isinstance(drain(core).errors[request_id], NumericFault)
