"""The engine on tiny models: every way of running a request gives what the plain way gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.core import EngineCore
from engine.decoder import LM_HEAD_ROWS, Batch, KVStore, LayerOps
from engine.engine import Engine
from engine.errors import EngineFault, RequestError
from engine.speculation import MergeDraft
from engine.types import Draft, GenerationRequest, GenerationResult, GenerationStep, Output, Proposer
from tests.engine.cores import PROMPT, AlwaysWrong, Oracle, RandomDraft, requests
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_decoder, tiny_engine, tiny_limits


def run_checked(
    engine: Engine, request: GenerationRequest, proposer: Proposer | None = None
) -> tuple[GenerationResult, bytes]:
    """Run a request, checked as it runs and at its end; the result and the streamed pieces joined."""
    steps, streamed, ids = engine.generate(request, proposer), b"", []
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            result: GenerationResult = end.value
            break
        assert step.token_ids or not ids, "once the prompt is read, every pass must give a token"
        streamed += step.text
        ids += step.token_ids
    engine.check_integrity()
    usage = result.usage
    assert tuple(ids) == result.token_ids
    assert usage.completion == len(result.token_ids) <= request.max_new_tokens
    assert 0 <= usage.accepted <= min(usage.drafted, usage.completion)
    assert usage.prompt == len(request.prompt)
    assert 0 <= usage.cached < usage.prompt, "the last token of the prompt is always run"
    return result, streamed


@torch.inference_mode()
def plain(engine: Engine, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Greedy decoding written out: every token from one pass over everything before it, in a cache of its own."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        caches = engine.model.new_caches(1, len(token_ids))
        hidden = engine.model.forward(torch.tensor(token_ids), caches)
        token_ids.append(int(engine.model.logits(hidden[-1:]).argmax()))
    return token_ids[len(prompt) :]


@pytest.mark.parametrize("prompt", [[7], PROMPT, list(range(VOCAB_SIZE)) * 2])
def test_greedy_decoding_equals_full_passes(prompt: list[int]) -> None:
    engine = tiny_engine()
    result, _ = run_checked(engine, GenerationRequest(prompt=prompt, max_new_tokens=40))
    assert list(result.token_ids) == plain(engine, prompt, 40)
    assert result.finish_reason == "length"


def in_chunks(num_tokens: int) -> Engine:
    """An engine whose passes are over so many tokens at most."""
    return Engine(tiny_decoder(), TOKEN_BYTES, tiny_limits(max_batched_tokens=num_tokens, max_num_seqs=1))


@pytest.mark.parametrize("chunk", [1, 2, 7, 15, 16, 17])
def test_a_prompt_in_chunks_gives_what_one_prefill_gives(chunk: int) -> None:
    expected = tiny_engine().run(GenerationRequest(prompt=PROMPT, max_new_tokens=20))
    assert expected.usage.forwards == 20
    result, _ = run_checked(in_chunks(chunk), GenerationRequest(prompt=PROMPT, max_new_tokens=20))
    assert result == expected
    assert result.usage.forwards == 20 + (len(PROMPT) - 1) // chunk


def test_logits_do_not_depend_on_how_the_sequence_was_fed() -> None:
    model = tiny_engine().model
    token_ids = torch.randint(VOCAB_SIZE, (90,), generator=torch.Generator().manual_seed(0))
    whole = model.logits(model.forward(token_ids, model.new_caches(1, 90)))
    caches = model.new_caches(1, 90)
    parts = [model.logits(model.forward(part, caches)) for part in torch.split(token_ids, [1, 40, 1, 7, 41])]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-4 * float(whole.std()))


@pytest.mark.parametrize("num_shared", [0, 1, 9, len(PROMPT)])
def test_a_cached_prefix_changes_the_cost_and_not_the_answer(num_shared: int) -> None:
    engine = tiny_engine()
    engine.run(GenerationRequest(prompt=[*PROMPT[:num_shared], 0, 0, 0], max_new_tokens=9))
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=20)
    warm, _ = run_checked(engine, request)
    cold, _ = run_checked(tiny_engine(), request)
    assert warm == cold
    assert warm.usage.cached == min(num_shared, len(PROMPT) - 1)
    assert cold.usage.cached == 0


def test_the_answer_is_cached_too_for_the_turn_after_it() -> None:
    engine = tiny_engine()
    answer = engine.run(GenerationRequest(prompt=PROMPT, max_new_tokens=10)).token_ids
    request = GenerationRequest(prompt=[*PROMPT, *answer, 1, 2], max_new_tokens=10)
    warm, _ = run_checked(engine, request)
    assert warm.usage.cached == len(PROMPT) + len(answer) - 1  # its last token was chosen, never run
    assert warm == tiny_engine().run(request)


DRAFTERS = {
    "copy of the answer": lambda target: MergeDraft(merges=[], original=target),
    "copy of the prompt": lambda target: MergeDraft(merges=[], original=PROMPT, update=target[5:20]),
    "oracle": Oracle,
    "always wrong": lambda target: AlwaysWrong(target, VOCAB_SIZE),
    "random": lambda target: RandomDraft(target, VOCAB_SIZE, seed=5),
    "silent": lambda target: Oracle([]),
}


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_draft_changes_the_passes_and_never_the_answer(drafter: str, temperature: float) -> None:
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=70, temperature=temperature, top_p=0.9, seed=4)
    expected = tiny_engine().run(request)
    target = expected.token_ids
    result, _ = run_checked(tiny_engine(), request, DRAFTERS[drafter](target))
    assert result == expected
    if drafter == "oracle":
        assert result.usage.forwards == 1  # all of it beside the prompt, and a free token
        assert result.usage.accepted == result.usage.drafted == 70 - result.usage.forwards
    if drafter in ("always wrong", "silent"):
        assert (result.usage.forwards, result.usage.accepted) == (70, 0)
        assert (result.usage.drafted > 0) == (drafter == "always wrong")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_right", [0, 63, 64, 65, 127, 128, 129, 250])
def test_a_long_draft_is_verified_block_by_block_up_to_its_first_miss(
    monkeypatch: pytest.MonkeyPatch, num_right: int, temperature: float
) -> None:
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=400, temperature=temperature)
    target = tiny_engine(512).run(request).token_ids
    wrong = [(token_id + 1) % VOCAB_SIZE for token_id in target]
    core, blocks = EngineCore(tiny_decoder(), TOKEN_BYTES, tiny_limits(512)), []

    def counted(head: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        return lambda hidden: blocks.append(len(hidden)) or head(hidden)

    monkeypatch.setattr(core.model, "logits", counted(core.model.logits))
    monkeypatch.setattr(core.model, "likeliest", counted(core.model.likeliest))
    core.add(request, Oracle([*target[:num_right], *wrong[num_right:]], hazard=1e-6))
    (output,) = core.step()
    assert output.step is not None
    assert output.step.token_ids == target[: num_right + 1]
    assert blocks == [LM_HEAD_ROWS] * (num_right // LM_HEAD_ROWS + 1)


@settings(max_examples=25)
@given(st.lists(requests(), min_size=1, max_size=4))
def test_requests_one_after_the_other_give_what_each_gives_alone(
    queue: list[tuple[GenerationRequest, int | None, int]],
) -> None:
    used = tiny_engine()
    for request, num_steps, seed in queue:
        alone, streamed_alone = run_checked(tiny_engine(), request)
        draft = RandomDraft(alone.token_ids, VOCAB_SIZE, seed)
        if num_steps is not None:
            steps = used.generate(request, draft)
            for _, _ in zip(range(num_steps), steps, strict=False):
                pass
            steps.close()
            used.check_integrity()
        result, streamed = run_checked(used, request, draft)
        assert result == alone
        assert streamed == streamed_alone == result.text


def test_a_stop_id_ends_the_output_and_is_not_in_its_text() -> None:
    free = tiny_engine().run(GenerationRequest(prompt=PROMPT, max_new_tokens=30))
    stop_id = free.token_ids[12]
    at = free.token_ids.index(stop_id)
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=30, stop_ids=frozenset({stop_id}))
    for proposer in (None, Oracle(free.token_ids)):
        result, streamed = run_checked(tiny_engine(), request, proposer)
        assert result.token_ids == free.token_ids[: at + 1]
        assert result.finish_reason == "stop"
        assert result.text == streamed == b"".join(TOKEN_BYTES[token_id] for token_id in free.token_ids[:at])


@pytest.mark.parametrize("num_bytes", [1, 4, 9])
def test_a_stop_string_over_several_tokens_ends_the_output(num_bytes: int) -> None:
    free = tiny_engine().run(GenerationRequest(prompt=PROMPT, max_new_tokens=30))
    stop = free.text[10 : 10 + num_bytes]
    end = free.text.index(stop)
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=30, stop=(stop, b"never written"))
    for proposer in (None, Oracle(free.token_ids)):
        result, streamed = run_checked(tiny_engine(), request, proposer)
        assert result.text == streamed == free.text[:end]
        assert result.finish_reason == "stop"
        assert result.token_ids == free.token_ids[: len(result.token_ids)]


def test_a_stop_on_the_last_token_allowed_is_a_stop() -> None:
    free = tiny_engine().run(GenerationRequest(prompt=PROMPT, max_new_tokens=1))
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=1, stop_ids=frozenset(free.token_ids))
    assert tiny_engine().run(request).finish_reason == "stop"


def test_one_token_is_one_pass_and_no_draft() -> None:
    result, _ = run_checked(tiny_engine(), GenerationRequest(prompt=PROMPT, max_new_tokens=1), Oracle([1] * 50))
    assert (result.usage.forwards, result.usage.drafted, result.usage.completion) == (1, 0, 1)


@pytest.mark.parametrize("proposer", [None, Oracle([1] * 99)])
def test_the_context_may_be_filled_to_the_last_token(proposer: Proposer | None) -> None:
    engine = tiny_engine(max_seq_len=30)
    result, _ = run_checked(engine, GenerationRequest(prompt=PROMPT, max_new_tokens=30 - len(PROMPT)), proposer)
    assert len(result.token_ids) == 30 - len(PROMPT)
    with pytest.raises(RequestError, match="16 tokens and up to 15 new ones exceed the context of 30"):
        engine.run(GenerationRequest(prompt=PROMPT, max_new_tokens=31 - len(PROMPT)), proposer)


def test_the_context_is_no_longer_than_the_model_knows_positions() -> None:
    assert tiny_engine(max_seq_len=9999).max_seq_len == tiny_config().max_positions


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 1 << 40])
def test_ids_that_the_model_does_not_have_are_refused(token_id: int) -> None:
    engine = tiny_engine()
    with pytest.raises(RequestError, match=r"outside \[0, 48\)"):
        engine.run(GenerationRequest(prompt=[1, token_id, 2], max_new_tokens=4))
    assert len(engine.run(GenerationRequest(prompt=[1], max_new_tokens=4)).token_ids) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": []},
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"stop": (b"",)},
    ],
)
def test_requests_without_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        GenerationRequest(**({"prompt": [1], "max_new_tokens": 1} | changes))


def test_an_id_without_a_token_has_no_bytes() -> None:
    """Models have more rows of embedding than their tokenizer has tokens, and sampling may hit one."""
    decoder = tiny_decoder()
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=30, temperature=10.0)
    whole, cut = (Engine(decoder, table, 256).run(request) for table in (TOKEN_BYTES, TOKEN_BYTES[:20]))
    assert cut.token_ids == whole.token_ids
    assert max(cut.token_ids) >= 20
    assert cut.text == b"".join(TOKEN_BYTES[token_id] for token_id in cut.token_ids if token_id < 20)


class Broken(Exception):
    """Thrown in the middle of a pass."""


@pytest.mark.parametrize("fault_at", [1, 2, 3, 8])
def test_a_fault_in_the_middle_of_a_pass_leaves_the_engine_right(
    monkeypatch: pytest.MonkeyPatch, fault_at: int
) -> None:
    engine, calls = tiny_engine(), 0
    activate = LayerOps.activate

    def faulty(self: LayerOps, gate_up: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == fault_at:
            raise Broken
        return activate(self, gate_up)

    request = GenerationRequest(prompt=PROMPT, max_new_tokens=20)
    with monkeypatch.context() as patch:
        patch.setattr(LayerOps, "activate", faulty)
        with pytest.raises(EngineFault, match="Broken") as caught:
            engine.run(request, MergeDraft(merges=[], original=PROMPT))
    assert isinstance(caught.value.__cause__, Broken)
    engine.check_integrity()
    assert run_checked(engine, request)[0] == tiny_engine().run(request)


def test_a_draft_that_fails_leaves_the_engine_right() -> None:
    class Failing:
        def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
            if len(output_ids) > 3:
                raise Broken
            return Draft.from_tokens([1, 2, 3])

    engine, request = tiny_engine(), GenerationRequest(prompt=PROMPT, max_new_tokens=20)
    with pytest.raises(EngineFault, match="Broken") as caught:
        engine.run(request, Failing())
    assert isinstance(caught.value.__cause__, Broken)
    engine.check_integrity()
    assert run_checked(engine, request)[0] == tiny_engine().run(request)


def run_in_threads(engine: Engine, queue: list[GenerationRequest]) -> dict[int, GenerationResult]:
    results: dict[int, GenerationResult] = {}

    def work(number: int) -> None:
        results[number] = engine.run(queue[number], MergeDraft(merges=[], original=PROMPT))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(queue))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a request waits for a lock that nobody gives back"
    return results


def test_threads_share_the_passes_and_each_gets_its_own_answer() -> None:
    engine = tiny_engine()
    queue = [GenerationRequest(prompt=[number, *PROMPT], max_new_tokens=25) for number in range(6)]
    results = run_in_threads(engine, queue)
    engine.check_integrity()
    assert [results[number] for number in range(6)] == [tiny_engine().run(request) for request in queue]


def test_a_request_that_is_given_up_lets_the_next_one_in() -> None:
    engine, request = tiny_engine(), GenerationRequest(prompt=PROMPT, max_new_tokens=25)
    steps = engine.generate(request)
    next(steps)
    next(steps)
    steps.close()
    engine.check_integrity()
    other = replace(request, prompt=[*PROMPT[:5], 1])
    assert run_in_threads(engine, [other])[0] == tiny_engine().run(other)


def test_a_long_prompt_can_be_given_up_between_its_chunks() -> None:
    core = EngineCore(tiny_decoder(), TOKEN_BYTES, tiny_limits(max_batched_tokens=5, max_num_seqs=1))
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=25)
    first = core.add(request)
    assert core.step() == [Output(first, step=GenerationStep((), b""))]
    core.cancel(first)
    core.check_integrity()
    core.add(request)
    outputs = []
    while core.has_pending_work():
        outputs += core.step()
    result = outputs[-1].result
    assert result == tiny_engine().run(request)
    assert result is not None
    assert result.usage.cached == 5


def test_every_pass_over_the_model_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, rows = in_chunks(5), []
    forward = engine.model.forward_batch

    def counted(batch: Batch, kv: KVStore) -> Tensor:
        rows.append(len(batch.token_ids))
        return forward(batch, kv)

    monkeypatch.setattr(engine.model, "forward_batch", counted)
    usage = engine.run(GenerationRequest(prompt=PROMPT, max_new_tokens=30), RandomDraft([1, 2], VOCAB_SIZE, 0)).usage
    assert usage.forwards == len(rows)
    # Each pass runs its draft and the token before it; the first one runs the end of the prompt instead.
    num_decoding = usage.completion - usage.accepted
    assert sum(rows) == len(PROMPT) + usage.drafted + num_decoding - 1
