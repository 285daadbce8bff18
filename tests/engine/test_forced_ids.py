"""Forced ids begin the output and are scored as if the model had been asked for each of them alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.decoder import Decoder
from engine.engine import Engine
from engine.errors import NumericFault, RequestError
from engine.types import Draft, GenerationRequest
from repo_cache.tokenizer import BPETokenizer
from tests.engine.cores import PROMPT, Collected, RandomDraft, alone, drain, make_core, run_one, same, tiny_model
from tests.engine.test_core import requests
from tests.engine.tiny import VOCAB_SIZE, tiny_config, tiny_parameters
from tests.models import RealModel

SOME_IDS = [random.Random(7).randrange(VOCAB_SIZE) for _ in range(150)]


def forcing(forced_ids: Sequence[int], **changes: Any) -> GenerationRequest:
    fields: dict[str, Any] = {"prompt": PROMPT, "max_new_tokens": len(forced_ids), "logprobs": 0}
    return GenerationRequest(forced_ids=forced_ids, **(fields | changes))


@torch.inference_mode()
def scored_slowly(model: Decoder, prompt: Sequence[int], forced_ids: Sequence[int]) -> list[float]:
    """Log-probabilities of the forced ids from one plain pass over everything and torch's own softmax."""
    ids = torch.tensor([*prompt, *forced_ids])
    rows = model.logits(model.forward(ids, model.new_caches(1, len(ids)))[len(prompt) - 1 : -1])
    scores = torch.log_softmax(rows.double(), dim=-1)
    return scores[torch.arange(len(forced_ids)), torch.tensor(forced_ids)].tolist()


@settings(max_examples=40)
@given(
    workload=st.lists(
        st.tuples(
            requests,
            st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30),
            st.integers(0, 4),
            st.none() | st.integers(0, 9),
        ),
        min_size=1,
        max_size=5,
    ),
    num_pages=st.sampled_from([20, 30, 64]),
    max_batched_tokens=st.sampled_from([4, 9, 64, 512]),
    max_num_seqs=st.integers(1, 4),
    windowed=st.booleans(),
)
def test_forced_among_others_equals_forced_alone(
    workload: list[Any], num_pages: int, max_batched_tokens: int, max_num_seqs: int, windowed: bool
) -> None:
    """Whatever else is asked of it: batched, chunked, cached, preempted, drafted behind the forced ids, cancelled."""
    model = tiny_model(windowed=windowed)
    core = make_core(num_pages=num_pages, model=model, max_batched_tokens=max_batched_tokens, max_num_seqs=max_num_seqs)
    collected, expected = Collected(), {}
    for plain, forced_ids, num_steps, num_until_cancelled in workload:
        request = replace(plain, forced_ids=forced_ids, max_new_tokens=max(len(forced_ids), plain.max_new_tokens))
        target = alone(model, request)
        assert list(target.token_ids[: len(forced_ids)]) == forced_ids[: len(target.token_ids)]
        request_id = core.add(request, RandomDraft(target.token_ids, VOCAB_SIZE, seed=len(forced_ids)))
        expected[request_id] = target
        for _ in range(num_steps):
            collected.take(core.step())
        if num_until_cancelled is not None and num_until_cancelled < num_steps and request_id not in collected.results:
            core.cancel(request_id)
            del expected[request_id]
    drain(core, collected)
    assert not collected.errors
    for request_id, target in expected.items():
        assert same(collected.results[request_id], target)


@pytest.mark.parametrize("max_batched_tokens", [9, 64, 512])
def test_log_probabilities_are_those_of_one_plain_pass(max_batched_tokens: int) -> None:
    core = make_core(max_batched_tokens=max_batched_tokens)
    result = run_one(core, forcing(SOME_IDS))
    assert list(result.token_ids) == SOME_IDS
    assert result.finish_reason == "length"
    scores = scored_slowly(core.model, PROMPT, SOME_IDS)
    assert [each.logprob for each in result.logprobs] == pytest.approx(scores, abs=1e-4)


def test_they_ride_on_the_prompts_last_chunk_and_are_no_draft() -> None:
    usage = run_one(make_core(), forcing(SOME_IDS)).usage
    assert usage.forwards == 1
    assert (usage.drafted, usage.accepted, usage.completion) == (0, 0, len(SOME_IDS))


def test_the_model_goes_on_behind_them() -> None:
    core = make_core()
    forced = forcing(SOME_IDS[:20], max_new_tokens=30)
    extended = GenerationRequest(prompt=[*PROMPT, *SOME_IDS[:20]], max_new_tokens=10)
    result = run_one(core, forced)
    assert result.token_ids[20:] == alone(core.model, extended).token_ids
    assert result.usage.forwards == 1 + 9


def test_without_log_probabilities_they_cost_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    core, rows = make_core(), []
    real = core.model.likeliest
    monkeypatch.setattr(core.model, "likeliest", lambda hidden: rows.append(len(hidden)) or real(hidden))
    run_one(core, forcing(SOME_IDS, logprobs=None))
    assert rows == []
    result = run_one(core, forcing(SOME_IDS[:20], logprobs=None, max_new_tokens=23))
    assert rows == [1, 1, 1]
    assert result.token_ids[20:] == alone(core.model, forcing(SOME_IDS[:20], max_new_tokens=23)).token_ids[20:]


def test_a_stop_among_them_ends_the_output() -> None:
    result = run_one(make_core(), forcing([5, 6, 7, 8], stop_ids=frozenset({7})))
    assert (result.token_ids, result.finish_reason) == ((5, 6, 7), "stop")
    assert len(result.logprobs) == 3


def test_sequences_that_share_a_trunk_run_it_once() -> None:
    core = make_core(least_shared=4)
    trunk = [*PROMPT, *SOME_IDS[:40]]
    ids = [core.add(forcing(SOME_IDS[at : at + 9], prompt=trunk)) for at in (50, 60, 70)]
    collected = drain(core)
    assert [collected.results[each].usage.cached for each in ids] == [0, len(trunk) - 1, len(trunk) - 1]
    for at, request_id in zip((50, 60, 70), ids, strict=True):
        scores = scored_slowly(core.model, trunk, SOME_IDS[at : at + 9])
        assert [each.logprob for each in collected.results[request_id].logprobs] == pytest.approx(scores, abs=1e-4)


def test_a_drafter_is_asked_behind_them_only() -> None:
    asked: list[int] = []

    class Listening:
        def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
            asked.append(len(output_ids))
            return Draft.from_tokens([])

    run_one(make_core(max_batched_tokens=9), forcing(SOME_IDS[:20], max_new_tokens=24), Listening())
    assert asked
    assert min(asked) > 20, "the pass that ends them gives a token more"


def test_numbers_that_are_none_fail_the_request() -> None:
    parameters = tiny_parameters(tiny_config())
    parameters.embedding[41] = torch.nan
    core = make_core(model=Decoder(parameters))
    bad = core.add(forcing([5, 41, 6, 7]))
    good = core.add(forcing([5, 6, 7]))
    collected = drain(core)
    assert isinstance(collected.errors[bad], NumericFault)
    assert collected.results[good].token_ids == (5, 6, 7)


def test_more_forced_ids_than_new_tokens_or_unknown_ones_are_refused() -> None:
    with pytest.raises(RequestError, match="3 forced ids are more than max_new_tokens, 2"):
        forcing([1, 2, 3], max_new_tokens=2)
    with pytest.raises(RequestError, match="forced_ids holds a token id outside"):
        make_core().add(forcing([1, VOCAB_SIZE]))


def test_a_real_models_scores_are_those_of_one_plain_pass(
    smollm2: RealModel, smollm2_decoder: Decoder, smollm2_engine: Engine
) -> None:
    tokenizer: BPETokenizer = smollm2.tokenizer
    prompt = tokenizer.encode("def area(radius):\n    return math.pi * ")
    forced = tokenizer.encode("radius**2\n\n\ndef length(radius):\n    return 2 * math.pi * radius\n")
    result = smollm2_engine.run(forcing(forced, prompt=prompt))
    scores = scored_slowly(smollm2_decoder, prompt, forced)
    assert [each.logprob for each in result.logprobs] == pytest.approx(scores, abs=2e-3)
    assert result.usage.forwards == 1


def test_log_probabilities_cost_the_logits_of_their_own_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are made of the rows before each scored id, and of no other."""
    core, rows = make_core(), []
    real = core.model.logits

    def counted(hidden: Tensor) -> Tensor:
        rows.append(len(hidden))
        return real(hidden)

    monkeypatch.setattr(core.model, "logits", counted)
    run_one(core, forcing(SOME_IDS))
    assert sum(rows) == len(SOME_IDS)
