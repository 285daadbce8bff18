"""The engine in Triton's interpreter gives the CPU's tokens: `TRITON_INTERPRET=1 pytest -m interpreted`.

tests/kernels tests the kernels alone, and test_kernel_engine.py all kinds of steps; this file runs both together.
"""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import Any

import pytest

from engine.core import EngineCore
from engine.reuse import Reuse
from engine.runner.cuda_runner import KernelRunner
from engine.types import GenerationRequest, GenerationResult
from tests.engine.cores import PROMPT, AlwaysWrong, Oracle, alone, drain, make_core, run_one, same
from tests.engine.reuse.turns import random_ids, reusing_core, run
from tests.engine.runner.kernel_cores import as_on_a_cpu, kernel_model, with_graphs
from tests.engine.tiny import VOCAB_SIZE
from tests.kernels.devices import INTERPRETED

pytestmark = INTERPRETED


def core_of(family: str = "qwen2", **limits: Any) -> EngineCore:
    core = make_core(model=kernel_model(family), **limits)
    assert isinstance(core._runner, KernelRunner)
    return core


def on_a_cpu(request: GenerationRequest, family: str = "qwen2") -> GenerationResult:
    with as_on_a_cpu():
        return alone(kernel_model(family), request)


def test_ragged_sequences_with_right_and_wrong_drafts_share_passes() -> None:
    """QK norms; a prompt in two chunks beside decodes."""
    core, expected = core_of("qwen3", max_batched_tokens=12), {}
    for number, length in enumerate([3, 14, 1]):
        request = GenerationRequest(prompt=[number, *PROMPT[:length]], max_new_tokens=5)
        target = on_a_cpu(request, "qwen3")
        drafters = [Oracle(target.token_ids), AlwaysWrong(target.token_ids, VOCAB_SIZE), None]
        expected[core.add(request, drafters[number])] = target
    results = drain(core).results
    for request_id, target in expected.items():
        assert same(results[request_id], target)
    assert sum(each.usage.accepted for each in results.values()) > 1
    assert sum(each.usage.drafted - each.usage.accepted for each in results.values()) > 0


@pytest.mark.parametrize("family", ["qwen2", "mistral"])
def test_a_draft_that_is_right_takes_one_pass(family: str) -> None:
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=9)
    target = on_a_cpu(request, family)
    result = run_one(core_of(family, rows_are_free=True), request, Oracle(target.token_ids))
    assert same(result, target)
    assert result.usage.forwards == 1


def test_a_window_moves_over_pages_that_are_given_back() -> None:
    core = core_of("mistral", num_pages=8, max_batched_tokens=9)
    request = GenerationRequest(prompt=PROMPT * 2, max_new_tokens=5)
    assert same(run_one(core, request), on_a_cpu(request, "mistral"))


def test_a_sequence_that_loses_its_pages_runs_again() -> None:
    core, expected = core_of(num_pages=6), {}
    for number in range(2):
        request = GenerationRequest(prompt=[*PROMPT[:5], number], max_new_tokens=8)
        target = on_a_cpu(request)
        expected[core.add(request, Oracle(target.token_ids[:6]))] = target
    results = drain(core).results
    for request_id, target in expected.items():
        assert same(results[request_id], target)
    assert sum(each.usage.preempted for each in results.values()) > 0


@pytest.mark.parametrize("kv_int8", [False, True])
def test_kv_is_taken_over_and_scattered_tokens_are_recomputed(kv_int8: bool) -> None:
    random = Random(5)
    prompt = random_ids(random, 60)
    prompts = [prompt, [*prompt[:10], 1, 2, *prompt[11:40], 3, *prompt[41:]]]
    answers = []
    for cpu in (False, True):
        with as_on_a_cpu() if cpu else nullcontext():
            core = reusing_core(kernel_model(kv_int8=kv_int8))
            reuse = Reuse("fast", budget=0.1, segment_ends=tuple(range(6, 60, 6)))
            answers.append([run(core, each, reuse, max_new_tokens=3) for each in prompts])
    for ours, theirs in zip(*answers, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.usage.reused_at == theirs.usage.reused_at
    assert answers[0][1].usage.reused_approximate > 20


@pytest.mark.filterwarnings(
    "ignore:.* encountered in:RuntimeWarning"
)  # padding computes with what lies in memory, and nobody reads it
def test_padded_passes_are_replayed() -> None:
    request = GenerationRequest(prompt=PROMPT[:5], max_new_tokens=3)
    core = with_graphs(core_of())
    for _ in range(2):
        assert same(run_one(core, request), on_a_cpu(request))
        core.forget_cached()
    assert core._runner.graphs is not None
    assert len(core._runner.graphs) >= 2
