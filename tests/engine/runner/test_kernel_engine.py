"""An engine that runs a card's steps gives the answers of a CPU, whatever shares a batch, a pool or a step.

The kernels' references are run in place of the kernels; tests/engine/runner/test_interpreted.py runs the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.errors import NumericFault
from engine.reuse import Reuse
from engine.runner import cuda_graphs as graphing
from engine.runner import torch_runner as measuring
from engine.runner.cuda_runner import can_run_kernels
from engine.speculation.step_times import StepTimes
from engine.types import GenerationRequest
from kernels.accept import AcceptOutput
from tests.engine.cores import PROMPT, Collected, Oracle, RandomDraft, alone, drain, make_core, run_one, same
from tests.engine.reuse.test_kv_reuse import check_kept
from tests.engine.reuse.turns import edited, random_ids, reusing_core, run
from tests.engine.runner.kernel_cores import HEAD_DIM, by_kernels, kernel_core, kernel_model, with_graphs
from tests.engine.test_core import workloads
from tests.engine.test_lora import write_adapter
from tests.engine.tiny import FAMILIES, VOCAB_SIZE, tiny_config, tiny_decoder, tiny_parameters

REQUEST = GenerationRequest(prompt=PROMPT, max_new_tokens=40)


@settings(max_examples=60)
@given(
    workload=workloads,
    num_pages=st.sampled_from([20, 30, 64]),
    max_batched_tokens=st.sampled_from([4, 9, 64]),
    max_num_seqs=st.integers(1, 4),
    family=st.sampled_from(sorted(FAMILIES)),
    graphs=st.booleans(),
)
def test_passes_of_a_card_give_what_torch_gives_under_any_load(
    workload: list[Any], num_pages: int, max_batched_tokens: int, max_num_seqs: int, family: str, graphs: bool
) -> None:
    """Ragged batches, drafts of all kinds, chunks, preemption, sampling; passes as they come, and padded ones."""
    model = kernel_model(family)
    core = kernel_core(
        model, num_pages=num_pages, max_batched_tokens=max_batched_tokens, max_num_seqs=max_num_seqs, graphs=graphs
    )
    collected, expected = Collected(), {}
    for request, drafter, num_steps, _ in workload:
        target = alone(model, request)
        expected[core.add(request, drafter(target.token_ids))] = target
        for _ in range(num_steps):
            collected.take(core.step())
    drain(core, collected)
    assert not collected.errors
    for request_id, target in expected.items():
        assert same(collected.results[request_id], target)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("mode", "family"), [("fast", "qwen2"), *(("turbo", name) for name in FAMILIES if name != "mistral")]
)
def test_what_is_taken_over_and_recomputed_is_what_torch_makes_of_it(mode: Any, family: str, graphs: bool) -> None:
    """Rows that are no neighbours, and KV that is kept for later, padding's not."""
    model, random = kernel_model(family), Random(3)
    plain = reusing_core(model)
    with by_kernels():
        core = reusing_core(model)
    core = with_graphs(core) if graphs else core
    prompt = random_ids(random, 90)
    num_reused = 0
    for _ in range(8):
        reuse = Reuse(mode, budget=0.1, segment_ends=tuple(range(6, len(prompt), 6)))
        ours, theirs = (run(each, prompt, reuse, max_new_tokens=5) for each in (core, plain))
        assert (ours.token_ids, ours.usage.reused_at) == (theirs.token_ids, theirs.usage.reused_at)
        num_reused += ours.usage.reused_approximate
        _check_same_spans(core, plain)
        prompt = edited(random, prompt)
    assert num_reused > 100


def _check_same_spans(core: EngineCore, plain: EngineCore) -> None:
    """What both have kept is the same, up to its last bits."""
    assert core.reuse is not None
    assert plain.reuse is not None
    ours, theirs = core.reuse.store, plain.reuse.store
    for own, other in zip([*ours.keys, *ours.values], [*theirs.keys, *theirs.values], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_kv_of_drafts_is_kept_where_it_is_final(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runner.torch_runner.StepTimes", lambda: StepTimes({1: 1.0, 1024: 1.0}))
    model, random = kernel_model(), Random(seed)
    with by_kernels():
        core = reusing_core(model)
    prompts = [random_ids(random, 30) for _ in range(4)]
    targets = [list(alone(model, GenerationRequest(prompt, 30)).token_ids) for prompt in prompts]
    ids = [
        core.add(GenerationRequest(prompt, 30), RandomDraft(target, VOCAB_SIZE, seed) if number % 2 else Oracle(target))
        for number, (prompt, target) in enumerate(zip(prompts, targets, strict=True))
    ]
    results = drain(core).results
    for request_id, prompt, target in zip(ids, prompts, targets, strict=True):
        assert list(results[request_id].token_ids) == target
        check_kept(core, [*prompt, *target], but=2)


@pytest.mark.parametrize("graphs", [False, True])
def test_what_is_forced_is_not_chosen_and_what_follows_is(graphs: bool) -> None:
    model = kernel_model()
    request = replace(REQUEST, forced_ids=(5, 9, 2, 2, 40), max_new_tokens=12)
    assert same(run_one(kernel_core(model, graphs=graphs), request), run_one(make_core(model=model), request))


def test_requests_with_adapters_share_passes_with_others(tmp_path: Path) -> None:
    """Their passes have graphs of their own, which serve whatever rows have an adapter."""
    model = kernel_model()
    plain, core = make_core(model=model), kernel_core(model, graphs=True)
    for each in (plain, core):
        run_one(each, replace(REQUEST, prompt=[*PROMPT, 9]))
    folder = write_adapter(tmp_path / "a", tiny_parameters(model.config))
    wanted = [replace(REQUEST, adapter=name, prompt=[*PROMPT, at]) for at, name in enumerate(["a", None, "a", None])]
    assert core._runner.graphs is not None
    for _ in range(2):  # as they come, then by the graphs that were captured in between
        answers = []
        for each in (plain, core):
            each.load_adapter("a", folder)
            for _ in range(2):
                ids = [each.add(request) for request in wanted]
                collected = drain(each)
                while each.has_pending_work():
                    each.step()
                answers.append([collected.results[request_id].token_ids for request_id in ids])
        assert all(each == answers[0] for each in answers)
    with_adapter = [shape for shape, adapters in core._runner.graphs._graphs if adapters]
    assert any(shape.num_seqs > 1 for shape in with_adapter), "they share passes"
    core.unload_adapter("a")
    assert not any(adapters for _, adapters in core._runner.graphs._graphs), "their weights are freed"


def test_where_pages_behind_a_window_were_nothing_of_others_is_read() -> None:
    """What no page of the sequence holds is NaN in every pass, but for the page that stands for those given back."""
    model = kernel_model("mistral")
    core = kernel_core(model, num_pages=12, max_batched_tokens=8)
    request = GenerationRequest(prompt=PROMPT * 4, max_new_tokens=60)
    target, collected = alone(model, request), Collected()
    request_id, num_slots = core.add(request), core._pool.num_slots
    while core.has_pending_work():
        collected.take(core.step())
        table = core.pages.page_table(request_id) if request_id not in collected.results else []
        others = sorted({*range(core.pages.num_pages)} - {*table})
        for tensor in (*core._pool.keys, *core._pool.values):
            tensor[:num_slots].view(core.pages.num_pages, -1)[others] = torch.nan
    assert same(collected.results[request_id], target)
    assert not any(tensor[num_slots:].any() for tensor in (*core._pool.keys, *core._pool.values))


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.7}, {"temperature": 0.7, "top_p": 0.8, "top_k": 9}])
def test_a_pass_waits_for_the_device_once(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    """All rows of a pass are chosen from one copy, whoever they belong to and however far their drafts hold."""
    model = kernel_model()
    requests = [GenerationRequest(prompt=[number, 2], max_new_tokens=30, seed=number, **changes) for number in range(4)]
    targets = [alone(model, request).token_ids for request in requests]
    monkeypatch.setattr("engine.sampling.read_row", lambda *_: pytest.fail("a row of logits was copied to the host"))
    copies: list[int] = []
    real = AcceptOutput.to_host
    monkeypatch.setattr(AcceptOutput, "to_host", lambda each: copies.append(each.num_rows) or real(each))
    core = kernel_core(model, rows_are_free=True)
    for number, (request, target) in enumerate(zip(requests, targets, strict=True)):
        core.add(request, Oracle(target) if number % 2 else RandomDraft(target, VOCAB_SIZE, number))
    drain(core)
    assert len(copies) == core.num_passes
    assert max(copies) > 60


def test_numbers_that_are_none_in_a_draft_do_not_reach_the_rows_before_it() -> None:
    parameters = tiny_parameters(tiny_config(head_dim=HEAD_DIM))
    target = alone(kernel_model(), REQUEST).token_ids
    poison = next(each for each in range(VOCAB_SIZE) if each not in {*PROMPT, *target})
    parameters.embedding[poison] = torch.nan
    core = kernel_core(Decoder(parameters), rows_are_free=True)
    assert run_one(core, REQUEST, Oracle([*target[:4], poison, *target[5:]])).token_ids == target
    assert run_one(core, REQUEST).token_ids == target


def test_a_model_whose_scores_are_no_numbers_fails_its_requests() -> None:
    parameters = tiny_parameters(tiny_config(head_dim=HEAD_DIM))
    parameters.final_norm[3] = torch.inf
    core = kernel_core(Decoder(parameters))
    request_id = core.add(REQUEST)
    assert isinstance(drain(core).errors[request_id], NumericFault)


def test_what_the_kernels_do_not_take_runs_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runner.cuda_runner.runs_triton", lambda tensor: True)
    config = EngineConfig(64)
    assert can_run_kernels(kernel_model(), config)
    assert not can_run_kernels(kernel_model(), replace(config, batch_invariant=True))
    for head_dim in (8, 24):
        assert not can_run_kernels(tiny_decoder(head_dim=head_dim), config)


def test_times_are_measured_of_the_passes_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    core = kernel_core(kernel_model(), graphs=True)
    assert core._runner.graphs is not None
    for num_rows in (1, 16, 64):
        core._runner.measure(num_rows)
    assert len(core._runner.graphs) == 3
    assert measuring.count_measurable_rows(core.model, core._pool) == 256
    monkeypatch.setattr(graphing, "pack_arrays", None)
    with pytest.raises(TypeError):
        core._runner.measure(1)  # through the graph
