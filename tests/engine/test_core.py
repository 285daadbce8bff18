"""The engine's loop on tiny models: whatever shares a batch, a pool or a step, each gets what it gets alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import kv_pool
from engine.decoder import LM_HEAD_ROWS, Decoder
from engine.errors import RequestError
from engine.kv_pool import PoolView
from engine.sampling import NOISE, is_near_tie
from engine.types import GenerationRequest, Proposer
from engine.weights import LoraAdapter, load, save_folder
from kernels.accept import TopTokens, find_top_tokens
from tests.engine.cores import (
    PROMPT,
    AlwaysWrong,
    Collected,
    Oracle,
    RandomDraft,
    alone,
    drain,
    make_core,
    run_one,
    same,
    tiny_model,
)
from tests.engine.test_lora import write_adapter
from tests.engine.tiny import VOCAB_SIZE, tiny_config, tiny_parameters

DRAFTERS: list[Callable[[Sequence[int]], Proposer | None]] = [
    lambda _: None,
    Oracle,
    lambda target: AlwaysWrong(target, VOCAB_SIZE),
    lambda target: RandomDraft(target, VOCAB_SIZE, seed=len(target)),
]

requests = st.builds(
    GenerationRequest,
    prompt=st.tuples(st.integers(0, 30), st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20)).map(
        lambda parts: (PROMPT * 2)[: parts[0]] + parts[1]
    ),
    max_new_tokens=st.integers(1, 24),
    temperature=st.sampled_from([0.0, 0.0, 0.8, 2.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {7: 2.0}]),
    logprobs=st.sampled_from([None, 2]),
    seed=st.integers(0, 3),
    stop_ids=st.sampled_from([frozenset(), frozenset({11, 40})]),
    stop=st.sampled_from([(), (b"</x>",), (b"a", b"</")]),
    priority=st.integers(0, 2),
    retain_s=st.sampled_from([0.0, 100.0]),
    salt=st.sampled_from(["", "other"]),
)
"""A third of each prompt is shared with others; half of all are greedy."""

workloads = st.lists(
    st.tuples(requests, st.sampled_from(DRAFTERS), st.integers(0, 6), st.none() | st.integers(0, 20)),
    min_size=1,
    max_size=7,
)
"""Each request with its drafter, the steps that pass before it comes, and those after which it is cancelled."""


@settings(max_examples=120)
@given(
    workload=workloads,
    num_pages=st.sampled_from([20, 30, 64]),
    max_batched_tokens=st.sampled_from([4, 9, 64, 512]),
    max_num_seqs=st.integers(1, 4),
    prefill_beside_decodes=st.sampled_from([1, 5, 256]),
    windowed=st.booleans(),
)
def test_batched_equals_alone_under_any_load(
    workload: list[Any],
    num_pages: int,
    max_batched_tokens: int,
    max_num_seqs: int,
    prefill_beside_decodes: int,
    windowed: bool,
) -> None:
    """Batched == alone, cached == uncached, chunked == one prefill, speculative == plain, preempted == not."""
    model = tiny_model(windowed=windowed)
    core = make_core(
        num_pages=num_pages,
        model=model,
        max_batched_tokens=max_batched_tokens,
        max_num_seqs=max_num_seqs,
        prefill_beside_decodes=prefill_beside_decodes,
    )
    collected, expected = Collected(), {}
    to_cancel: dict[int, int] = {}
    for request, drafter, num_steps, num_until_cancelled in workload:
        target = alone(model, request)
        request_id = core.add(request, drafter(target.token_ids))
        expected[request_id] = target
        if num_until_cancelled is not None:
            to_cancel[request_id] = num_until_cancelled
        for _ in range(num_steps):
            collected.take(core.step())
            to_cancel = {each: left - 1 for each, left in to_cancel.items()}
            for cancelled in [each for each, left in to_cancel.items() if left < 0 and each not in collected.results]:
                core.cancel(cancelled)
                del expected[cancelled], to_cancel[cancelled]
    drain(core, collected)
    assert not collected.errors
    for request_id, target in expected.items():
        assert same(collected.results[request_id], target)


@pytest.mark.parametrize("max_batched_tokens", [1, 2, 7, 15, 16, 17])
def test_a_prompt_in_chunks_gives_what_one_prefill_gives(max_batched_tokens: int) -> None:
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=20)
    core = make_core(max_batched_tokens=max_batched_tokens, max_num_seqs=1)
    result = run_one(core, request)
    assert same(result, alone(core.model, request))
    assert result.usage.forwards == 20 + (len(PROMPT) - 1) // max_batched_tokens


@pytest.mark.parametrize("num_shared", [0, 1, 3, 4, 9, len(PROMPT)])
def test_a_cached_prefix_is_reused_to_the_token_and_changes_nothing_else(num_shared: int) -> None:
    core = make_core()
    run_one(core, GenerationRequest(prompt=[*PROMPT[:num_shared], 0, 0, 0], max_new_tokens=9))
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=20)
    result = run_one(core, request)
    assert same(result, alone(core.model, request))
    assert result.usage.cached == min(num_shared, len(PROMPT) - 1)
    assert result.usage.prefix_hit_rate == result.usage.cached / len(PROMPT)


def test_the_answer_is_cached_too_for_the_turn_after_it() -> None:
    core = make_core()
    answer = run_one(core, GenerationRequest(prompt=PROMPT, max_new_tokens=10)).token_ids
    request = GenerationRequest(prompt=[*PROMPT, *answer, 1, 2], max_new_tokens=10)
    result = run_one(core, request)
    assert result.usage.cached == len(PROMPT) + len(answer) - 1  # its last token was chosen, never run
    assert same(result, alone(core.model, request))


def test_tenants_share_no_kv() -> None:
    core = make_core()
    run_one(core, GenerationRequest(prompt=PROMPT, max_new_tokens=2, salt="one"))
    assert run_one(core, GenerationRequest(prompt=PROMPT, max_new_tokens=2, salt="two")).usage.cached == 0
    assert run_one(core, GenerationRequest(prompt=PROMPT, max_new_tokens=2, salt="one")).usage.cached == 15


def test_models_share_no_kv() -> None:
    first, second = (Decoder(tiny_parameters(tiny_config(), seed)) for seed in (0, 1))
    again = Decoder(tiny_parameters(tiny_config(), seed=0))
    scaled = Decoder(tiny_parameters(tiny_config(rope_theta=20000.0), seed=0))
    assert first.fingerprint == again.fingerprint
    assert len({first.fingerprint, second.fingerprint, scaled.fingerprint}) == 3


def test_requests_with_adapters_share_a_batch_and_no_kv(tmp_path: Path) -> None:
    """Each gets what the model gives that its adapter was merged into, alone."""
    config = tiny_config()
    base = tiny_parameters(config)
    (tmp_path / "base").mkdir()
    save_folder(base, tmp_path / "base")
    folders = {name: write_adapter(tmp_path / name, base, lora_alpha=alpha) for name, alpha in [("a", 8), ("b", 30)]}
    merged = {
        name: Decoder(load(tmp_path / "base", torch.float32, LoraAdapter(folder))) for name, folder in folders.items()
    }
    core = make_core(model=Decoder(base))
    for name, folder in folders.items():
        core.load_adapter(name, folder)
    names = ["a", None, "b", "a", "b", None] * 2
    wanted = [
        GenerationRequest(prompt=[*PROMPT, at % 5], max_new_tokens=12, adapter=name) for at, name in enumerate(names)
    ]
    ids = [core.add(request) for request in wanted]
    collected = drain(core)
    answers = {}
    for request_id, request in zip(ids, wanted, strict=True):
        model = tiny_model() if request.adapter is None else merged[request.adapter]
        assert same(collected.results[request_id], alone(model, request))
        answers[request.adapter] = collected.results[request_id].token_ids
    assert len(set(answers.values())) == 3, "the adapters must show"
    core.load_adapter("a", folders["b"])
    replaced = run_one(core, GenerationRequest(prompt=wanted[0].prompt, max_new_tokens=12, adapter="a"))
    assert same(replaced, alone(merged["b"], wanted[0]))
    assert replaced.usage.cached == len(PROMPT), "the same adapter under another name"


def test_an_adapter_can_be_unloaded_and_who_runs_with_it_keeps_it(tmp_path: Path) -> None:
    base = tiny_parameters(tiny_config())
    folder = write_adapter(tmp_path / "a", base, lora_alpha=30)
    core = make_core(model=Decoder(base))
    core.load_adapter("a", folder)
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=12, adapter="a")
    before = run_one(core, request)
    request_id = core.add(request)
    core.unload_adapter("a")
    assert drain(core).results[request_id].token_ids == before.token_ids
    for unknown in (lambda: core.add(request), lambda: core.unload_adapter("a")):
        with pytest.raises(RequestError, match="no adapter 'a'"):
            unknown()


def test_running_requests_lose_their_pages_and_finish_all_the_same() -> None:
    core = make_core(num_pages=14)
    wanted = [GenerationRequest(prompt=[*PROMPT[:8], number], max_new_tokens=40) for number in range(3)]
    ids = [core.add(request) for request in wanted]
    collected = drain(core)
    assert sum(collected.results[each].usage.preempted for each in ids) > 0
    for request_id, request in zip(ids, wanted, strict=True):
        assert same(collected.results[request_id], alone(core.model, request))


def test_a_windowed_sequence_holds_no_more_pages_than_its_window_needs() -> None:
    model = tiny_model(windowed=True)
    core = make_core(num_pages=10, model=model, max_batched_tokens=8)
    request = GenerationRequest(prompt=PROMPT * 4, max_new_tokens=60)
    request_id = core.add(request)
    most, collected = 0, Collected()
    while core.has_pending_work():
        collected.take(core.step())
        most = max(most, core.pages.stats().num_in_use)
    assert same(collected.results[request_id], alone(model, request))
    assert most <= core.pages.max_pages(124, 8) <= 6


def test_a_draft_is_verified_through_several_blocks_of_the_lm_head(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core()
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=170)
    target = alone(core.model, request)
    rows: list[int] = []
    real = core.model.likeliest

    def counted(hidden: Tensor) -> TopTokens:
        rows.append(len(hidden))
        return real(hidden)

    monkeypatch.setattr(core.model, "likeliest", counted)
    result = run_one(core, request, Oracle(target.token_ids))
    assert same(result, target)
    assert max(rows) == LM_HEAD_ROWS
    assert sum(rows) == 170


def test_the_drafts_of_many_share_the_lm_head_within_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    core, rows = make_core(), []
    real = core.model.likeliest
    monkeypatch.setattr(core.model, "likeliest", lambda hidden: rows.append(len(hidden)) or real(hidden))
    for number in range(4):
        request = GenerationRequest(prompt=[number, 2], max_new_tokens=30)
        core.add(request, Oracle(alone(tiny_model(), request).token_ids))
    rows.clear()
    drain(core)
    assert rows == [60, 60]


def test_decodes_share_one_pass_of_the_lm_head(monkeypatch: pytest.MonkeyPatch) -> None:
    core, calls = make_core(), []
    real = core.model.likeliest
    monkeypatch.setattr(core.model, "likeliest", lambda hidden: calls.append(len(hidden)) or real(hidden))
    for number in range(5):
        core.add(GenerationRequest(prompt=[number, 2], max_new_tokens=4))
    drain(core)
    assert calls == [5, 5, 5, 5]


@pytest.mark.parametrize("most_gathered", [0, 20, 1024])
def test_decodes_are_attended_to_together_or_apart(monkeypatch: pytest.MonkeyPatch, most_gathered: int) -> None:
    """Slots that hold nothing are full of NaN: what is too much of a shorter sequence must be its own."""
    monkeypatch.setattr(kv_pool, "MOST_GATHERED", most_gathered)
    seen: list[int] = []
    real = PoolView.gather

    def counted(view: PoolView, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        seen.append(len(view.singles))
        return real(view, layer)

    monkeypatch.setattr(PoolView, "gather", counted)
    core = make_core()
    for tensor in (*core._pool.keys, *core._pool.values):
        tensor.fill_(torch.nan)
    wanted = [GenerationRequest(prompt=(PROMPT * 2)[: 2 + 7 * at], max_new_tokens=9) for at in range(5)]
    ids = [core.add(request) for request in wanted]
    collected = drain(core)
    for request_id, request in zip(ids, wanted, strict=True):
        assert same(collected.results[request_id], alone(tiny_model(), request))
    assert max(seen, default=0) == {0: 0, 20: 3, 1024: 5}[most_gathered]


# Near ties: greedy choices that the last bits may have decided are counted, each once, and no others.


REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=40)


def test_ties_are_counted_where_they_are_chosen() -> None:
    plain = run_one(make_core(), REQUEST)
    assert plain.usage.near_ties == 0
    twice, count = Counter(plain.token_ids).most_common(1)[0]
    twin = next(each for each in range(twice + 1, VOCAB_SIZE) if each not in plain.token_ids)
    parameters = tiny_parameters(tiny_config())
    parameters.lm_head[twin] = parameters.lm_head[twice]
    tied = Decoder(parameters)
    for drafter in (None, Oracle(plain.token_ids), AlwaysWrong(plain.token_ids, VOCAB_SIZE)):
        result = run_one(make_core(model=tied), REQUEST, drafter)
        assert result.token_ids == plain.token_ids
        assert result.usage.near_ties == count > 1


def test_choices_behind_the_end_are_not_counted() -> None:
    plain = run_one(make_core(), REQUEST)
    parameters = tiny_parameters(tiny_config())
    stop_id = plain.token_ids[5]
    end = plain.token_ids.index(stop_id) + 1
    later = next(each for each in plain.token_ids[end:] if each not in plain.token_ids[:end])
    twin = next(each for each in range(VOCAB_SIZE) if each not in plain.token_ids)
    parameters.lm_head[twin] = parameters.lm_head[later]
    stopped = GenerationRequest(prompt=PROMPT, max_new_tokens=40, stop_ids=frozenset({stop_id}))
    core = make_core(model=Decoder(parameters))
    assert run_one(core, stopped, Oracle(plain.token_ids)).usage.near_ties == 0


@pytest.mark.parametrize("dtype", NOISE)
def test_the_bound_is_relative_to_the_largest_logit(dtype: torch.dtype) -> None:
    noise = NOISE[dtype]
    logits = torch.tensor([[-1.0, 20.0, 20.0 * (1 - part * noise)] for part in (0.0, 0.5, 2.0)] + [[-3.0, -2.0, -1.0]])
    assert is_near_tie(find_top_tokens(logits), dtype).tolist() == [True, True, False, False]
    assert not np.any(is_near_tie(find_top_tokens(torch.zeros(1, 1) + 1.0), dtype))


def test_models_of_every_dtype_have_a_bound() -> None:
    assert set(NOISE) == {torch.float32, torch.bfloat16, torch.float16}
    assert tiny_model().weights.dtype in NOISE
