"""A fault of one request fails that request alone, with an error that says why, and frees its memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core import EngineCore
from engine.decoder import Decoder, StoreOps
from engine.engine_config import EngineConfig
from engine.errors import DeadlineExceeded, DeviceLost, DoesNotFit, EngineFault, NumericFault, QueueFull, RequestError
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
            return Draft.from_tokens([*target[len(output_ids) : len(output_ids) + 2], poison, poison][:max_tokens])

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


def test_a_pass_that_raises_on_a_lost_card_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(device: torch.device) -> None:
        raise DeviceLost(f"the card {device} is lost to this process")

    core = make_core()
    for number in range(3):
        core.add(GenerationRequest(prompt=[*PROMPT, number], max_new_tokens=4))
    monkeypatch.setattr(core._runner, "launch", lambda *_: 1 // 0)
    monkeypatch.setattr("engine.core.check_device", lost)
    with pytest.raises(DeviceLost):
        core.step()
    assert core.num_passes == 1


def test_a_drafter_that_raises_fails_its_own_request() -> None:
    class Broken:
        def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
            if output_ids:
                raise ZeroDivisionError("drafter")
            return Draft.from_tokens([1])

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
            return Draft.from_tokens([1, 2] if len(output_ids) % 2 else [])

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


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> tuple[EngineCore, list[bool]]:
    """A core that takes a prompt in several passes, and whose values are no numbers while the list holds a True."""
    core = make_core(max_batched_tokens=16, prefill_beside_decodes=16)
    split_heads, is_faulty = StoreOps.split_heads, [False]

    def damaged(*arguments: Any) -> Any:
        query, key, value, key_before_rope = split_heads(*arguments)
        if is_faulty[0]:
            value = value.clone()
            value[3] = torch.nan
        return query, key, value, key_before_rope

    monkeypatch.setattr(StoreOps, "split_heads", damaged)
    return core, is_faulty


LONG = [at % 30 for at in range(60)]


def test_nobody_finds_the_kv_of_a_request_whose_numbers_were_none(faulty: tuple[EngineCore, list[bool]]) -> None:
    """One pass goes wrong; it shows chunks later, when pages of it have long been in the prefix cache."""
    core, is_faulty = faulty
    request = GenerationRequest(prompt=LONG, max_new_tokens=4, retain_s=100.0)
    request_id = core.add(request)
    is_faulty[0] = True
    core.step()
    is_faulty[0] = False
    assert core.pages.stats().num_in_use > 0
    assert isinstance(drain(core).errors[request_id], NumericFault)
    assert core.pages.stats().num_cached == 0
    again = run_one(core, request)
    assert again.usage.cached == 0
    assert same(again, alone(tiny_model(), request))


def test_nobody_finds_what_another_request_went_on_to_compute_behind_it(faulty: tuple[EngineCore, list[bool]]) -> None:
    """It shares the bad pages, and is cancelled before its own fault shows."""
    core, is_faulty = faulty
    bad = core.add(GenerationRequest(prompt=LONG, max_new_tokens=4))
    is_faulty[0] = True
    core.step()
    is_faulty[0] = False
    longer = GenerationRequest(prompt=[*LONG[:40], *range(30)], max_new_tokens=4)
    sharing = core.add(longer)
    collected = Collected()
    while bad not in collected.errors:
        collected.take(core.step())
    core.cancel(sharing)
    assert same(run_one(core, longer), alone(tiny_model(), longer))


def test_what_others_have_cached_under_another_beginning_stays(faulty: tuple[EngineCore, list[bool]]) -> None:
    core, is_faulty = faulty
    other = [5 + at % 7 for at in range(60)]
    run_one(core, GenerationRequest(prompt=other, max_new_tokens=4))
    is_faulty[0] = True
    request_id = core.add(GenerationRequest(prompt=LONG, max_new_tokens=4))
    assert isinstance(drain(core).errors[request_id], NumericFault)
    is_faulty[0] = False
    assert run_one(core, GenerationRequest(prompt=other, max_new_tokens=4)).usage.cached == len(other) - 1


@pytest.mark.parametrize("beyond", [VOCAB_SIZE, -1, 1 << 40])
def test_a_draft_ends_before_a_token_that_the_model_does_not_have(beyond: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tokenizer with more tokens than the model: on a card it would end the context of all."""
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=12)
    target = alone(tiny_model(), request).token_ids
    core = make_core()
    seen: list[int] = []
    forward = core.model.forward_batch

    def look(batch: Any, kv: Any) -> Tensor:
        seen.extend(batch.token_ids.tolist())
        return forward(batch, kv)

    monkeypatch.setattr(core.model, "forward_batch", look)

    class Beyond:
        def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
            right = target[len(output_ids) : len(output_ids) + 3]
            return Draft.from_tokens([*right, beyond, *target][:max_tokens])

    assert run_one(core, request, Beyond()).token_ids == target
    assert all(0 <= token_id < VOCAB_SIZE for token_id in seen)
