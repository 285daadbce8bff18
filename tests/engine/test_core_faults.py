"""What goes wrong with one request fails that one alone, with an error that says why, and frees what it held."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core import EngineCore
from engine.engine_config import EngineConfig
from engine.errors import DeadlineExceeded, DoesNotFit, EngineFault, NumericFault, QueueFull, RequestError
from engine.model import Decoder
from engine.types import Draft, GenerationRequest
from tests.engine.cores import PROMPT, Collected, alone, drain, make_core, run_one, same, tiny_model
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_parameters


def test_numbers_that_are_none_fail_their_own_request_only() -> None:
    parameters = tiny_parameters(tiny_config())
    parameters.embedding[VOCAB_SIZE - 1] = torch.nan
    core = make_core(model=Decoder(parameters))
    good = GenerationRequest(prompt=PROMPT, max_new_tokens=12, logit_bias={VOCAB_SIZE - 1: -1e4})
    bad = [
        GenerationRequest(prompt=[*PROMPT, VOCAB_SIZE - 1], max_new_tokens=12, temperature=temperature)
        for temperature in (0.0, 1.0)
    ]
    ids = [core.add(bad[0]), core.add(good), core.add(bad[1])]
    collected = drain(core)
    assert same(collected.results[ids[1]], alone(tiny_model(), good))
    assert {type(collected.errors[each]) for each in (ids[0], ids[2])} == {NumericFault}


def test_numbers_that_are_none_behind_a_wrong_draft_are_nobodys_business() -> None:
    """A draft that leads the model into an overflow must not change the answer."""
    parameters = tiny_parameters(tiny_config())
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=12)
    target = alone(tiny_model(), request).token_ids
    poison = next(each for each in range(VOCAB_SIZE) if each not in {*PROMPT, *target})
    parameters.embedding[poison] = torch.nan
    core = make_core(model=Decoder(parameters))

    class Poisoned:
        def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
            return Draft.of([*target[len(output_ids) : len(output_ids) + 2], poison, poison][:max_tokens])

    assert run_one(core, request, Poisoned()).token_ids == target
    assert run_one(core, request).token_ids == target


def test_a_pass_that_raises_fails_whose_tokens_raise_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()
    real = core.model.forward_batch

    def fail_on_41(batch: Any, kv: Any) -> Tensor:
        if 41 in batch.token_ids.tolist():
            raise RuntimeError("not enough memory")
        return real(batch, kv)

    monkeypatch.setattr(core.model, "forward_batch", fail_on_41)
    wanted = [GenerationRequest(prompt=[*PROMPT[: 3 + at], 2], max_new_tokens=3 + at) for at in range(3)]
    ids = [core.add(request) for request in wanted]
    bad = core.add(GenerationRequest(prompt=[5, 41], max_new_tokens=6))
    collected = drain(core)
    for request_id, request in zip(ids, wanted, strict=True):
        assert same(collected.results[request_id], alone(tiny_model(), request))
    assert isinstance(collected.errors[bad], EngineFault)
    assert "not enough memory" in str(collected.errors[bad])
    assert isinstance(collected.errors[bad].__cause__, RuntimeError)


def test_a_drafter_that_raises_fails_its_own_request() -> None:
    class Broken:
        def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
            if output_ids:
                raise ZeroDivisionError("drafter")
            return Draft.of([1])

    core = make_core()
    good = GenerationRequest(prompt=PROMPT, max_new_tokens=5)
    ids = core.add(good), core.add(GenerationRequest(prompt=[1, 2], max_new_tokens=5), Broken())
    collected = drain(core)
    assert same(collected.results[ids[0]], alone(core.model, good))
    assert isinstance(collected.errors[ids[1]].__cause__, ZeroDivisionError)


def test_a_drafter_is_asked_once_for_what_follows_an_output() -> None:
    """However many chunks its prompt takes, and whether it knows anything or not."""
    asked: list[int] = []

    class Counting:
        def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
            asked.append(len(output_ids))
            return Draft.of([1, 2] if len(output_ids) % 2 else [])

    core = make_core(max_batched_tokens=3, max_num_seqs=2)
    ids = core.add(GenerationRequest(prompt=PROMPT, max_new_tokens=8), Counting())
    core.add(GenerationRequest(prompt=PROMPT[::-1], max_new_tokens=30))
    result = drain(core).results[ids]
    assert asked == sorted(set(asked))
    assert result.usage.drafted > 0


def test_a_request_whose_time_is_over_fails_and_frees_its_pages() -> None:
    now = [0.0]
    core = make_core(clock=lambda: now[0])
    late = core.add(GenerationRequest(prompt=PROMPT, max_new_tokens=50, deadline_s=5.0))
    good = core.add(GenerationRequest(prompt=PROMPT, max_new_tokens=50, deadline_s=50.0))
    collected = Collected()
    for _ in range(3):
        collected.take(core.step())
    now[0] = 5.0
    drain(core, collected)
    assert isinstance(collected.errors[late], DeadlineExceeded)
    assert list(collected.results) == [good]


@pytest.mark.parametrize("checks", [True, False])
def test_books_that_do_not_add_up_are_found_where_that_is_asked_for(checks: bool) -> None:
    core = make_core()
    core.config = replace(core.config, check_integrity=checks)
    request_id = core.add(GenerationRequest(prompt=PROMPT, max_new_tokens=5))
    core.step()
    del core._live[request_id]
    core.scheduler._running.clear()
    with pytest.raises(AssertionError, match="lost") if checks else nullcontext():
        core.step()


def test_cancelling_what_has_ended_or_never_was_does_nothing() -> None:
    core = make_core()
    request_id = core.add(GenerationRequest(prompt=PROMPT, max_new_tokens=2))
    drain(core)
    core.cancel(request_id)
    core.cancel(12345)
    core.check_integrity()


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (GenerationRequest(prompt=[1] * 190, max_new_tokens=11), DoesNotFit, "190 tokens and up to 11 new"),
        (GenerationRequest(prompt=[1] * 100, max_new_tokens=50), DoesNotFit, "pages"),
        (GenerationRequest(prompt=[1, VOCAB_SIZE], max_new_tokens=1), RequestError, "outside"),
        (GenerationRequest(prompt=[1, -1], max_new_tokens=1), RequestError, "outside"),
        (GenerationRequest(prompt=[1], max_new_tokens=1, logit_bias={VOCAB_SIZE: 1.0}), RequestError, "logit_bias"),
        (GenerationRequest(prompt=[1], max_new_tokens=1, adapter="none"), RequestError, "adapter"),
        (GenerationRequest(prompt="text", max_new_tokens=1), RequestError, "token ids"),
    ],
)
def test_what_cannot_be_served_is_refused_when_it_comes(
    request_: GenerationRequest, error: type[Exception], message: str
) -> None:
    core = make_core(num_pages=30)
    with pytest.raises(error, match=message):
        core.add(request_)
    assert not core.has_pending_work()
    core.check_integrity()


def test_no_more_wait_than_may() -> None:
    core = make_core(max_waiting=2)
    for _ in range(2):
        core.add(GenerationRequest(prompt=PROMPT, max_new_tokens=2))
    with pytest.raises(QueueFull, match="2"):
        core.add(GenerationRequest(prompt=PROMPT, max_new_tokens=2))
    assert len(drain(core).results) == 2


def test_reset_forgets_requests_and_cache() -> None:
    core = make_core()
    core.add(GenerationRequest(prompt=PROMPT, max_new_tokens=9))
    core.step()
    core.reset()
    assert not core.has_pending_work()
    assert run_one(core, GenerationRequest(prompt=PROMPT, max_new_tokens=2)).usage.cached == 0


def test_a_pool_that_holds_nothing_or_more_than_there_is_says_so() -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match="one page of 4 tokens takes"):
        EngineCore(model, TOKEN_BYTES, EngineConfig(kv_bytes=10, page_size=4))
    with pytest.raises(Exception, match=r"no memory for .* GB of KV"):
        EngineCore(model, TOKEN_BYTES, EngineConfig(kv_bytes=1 << 55))
