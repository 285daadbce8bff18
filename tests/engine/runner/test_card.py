"""The engine on a card: captured graphs, bfloat16, one wait a step. `pytest -m gpu`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_pool import KVPool
from engine.runner.cuda_runner import KernelRunner
from engine.runner.step_rows import PagedRows
from engine.types import GenerationRequest, GenerationResult, Reuse
from engine.weights import Parameters
from kernels.accept import AcceptOutput
from kernels.attention.kv_format import split_rows
from tests.engine.cores import PROMPT, Oracle, RandomDraft, drain, run_one
from tests.engine.runner.kernel_cores import HEAD_DIM
from tests.engine.tiny import FAMILIES, TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_parameters
from tests.kernels.devices import ON_CARD, set_sync_mode

pytestmark = ON_CARD

CARD = torch.device("cuda")


def decoders(family: str, dtype: torch.dtype, *, kv_int8: bool = False, **changes: Any) -> tuple[Decoder, Decoder]:
    """The same weights on the CPU and on the card."""
    config = tiny_config(**({"head_dim": HEAD_DIM} | FAMILIES[family] | changes))
    read = tiny_parameters(config).slots().__getitem__
    on_cpu, on_card = (Parameters(config, dtype, device, read) for device in (torch.device("cpu"), CARD))
    return Decoder(on_cpu, kv_int8=kv_int8), Decoder(on_card, kv_int8=kv_int8)


def answers(core: EngineCore, targets: list[GenerationResult] | None) -> list[GenerationResult]:
    ids = []
    for number in range(6):
        request = GenerationRequest(prompt=[*PROMPT, number] * 3, max_new_tokens=24, seed=number)
        drafter: Any = None
        if targets is not None:
            target = targets[number].token_ids
            drafters = [Oracle(target), RandomDraft(target, VOCAB_SIZE, number)]
            drafter = drafters[number % 2]
        ids.append(core.add(request, drafter))
    results = drain(core).results
    return [results[request_id] for request_id in ids]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("most_graphs", [0, 48])
def test_greedy_output_in_float32_is_that_of_the_cpu(family: str, most_graphs: int) -> None:
    on_cpu, on_card = decoders(family, torch.float32)
    config = EngineConfig(max_seq_len=200, page_size=16, most_graphs=most_graphs, check_integrity=True)
    expected = answers(EngineCore(on_cpu, TOKEN_BYTES, config), None)
    core = EngineCore(on_card, TOKEN_BYTES, config)
    assert isinstance(core._runner, KernelRunner)
    for _ in range(3):  # as they come, then by the graphs that were captured in between
        for targets in (None, expected):
            found = answers(core, targets)
            assert [each.token_ids for each in found] == [each.token_ids for each in expected]
        core.forget_cached()
    assert (core._runner.graphs is None) == (most_graphs == 0)
    if core._runner.graphs is not None:
        assert 3 <= len(core._runner.graphs) <= most_graphs


@pytest.mark.parametrize("kv_int8", [False, True])
@pytest.mark.parametrize("most_graphs", [0, 48])
def test_kv_is_recorded_in_host_memory_in_place_and_placed_from_there(most_graphs: int, kv_int8: bool) -> None:
    config = EngineConfig(
        max_seq_len=400, page_size=16, span_bytes=8 << 20, most_graphs=most_graphs, check_integrity=True
    )
    text = [index * 7 % (VOCAB_SIZE - 1) for index in range(200)]
    found = []
    for model in decoders("qwen2", torch.float32, kv_int8=kv_int8):
        core = EngineCore(model, TOKEN_BYTES, config)
        assert core.reuse is not None
        steps = []
        for first in (1, 2, 3):
            request = GenerationRequest([first] * first + text, max_new_tokens=24, reuse=Reuse("turbo"))
            result = run_one(core, request)
            steps.append((() if kv_int8 else result.token_ids, result.usage.reused_approximate))
        torch.cuda.synchronize()
        found.append((steps, [each.clone() for each in core.reuse.store.keys]))
    (expected, expected_keys), (steps, keys) = found
    assert steps == expected
    assert expected[1][1] > 100
    for ours, theirs in zip(keys, expected_keys, strict=True):
        assert ours.device.type == "cpu"
        if kv_int8:  # a rounding may go the other way
            assert (split_rows(ours)[0].int() - split_rows(theirs)[0].int()).abs().max() <= 1
            continue
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_replayed_graph_gives_the_bits_of_the_launches_that_it_was_made_of(dtype: torch.dtype, head_dim: int) -> None:
    """Of the same padded shape, with pages in any order; and near what the CPU computes."""
    on_cpu, on_card = decoders("qwen3", dtype, head_dim=head_dim, num_heads=7, num_kv_heads=1)
    random = torch.Generator().manual_seed(0)
    hidden = []
    for model, most_graphs in ((on_card, 0), (on_card, 9), (on_cpu, 0)):
        device = model.weights.device
        pool = KVPool(model.config, 40, 16, device, dtype, 1)
        random.manual_seed(0)
        for tensor in (*pool.keys, *pool.values):
            tensor[: pool.num_slots] = torch.randn(pool.num_slots, *tensor.shape[1:], generator=random).to(dtype)
        table = torch.randperm(40, generator=random).tolist()
        rows = PagedRows(list(range(16)), range(300, 316), table)
        passes = KernelRunner(model, pool, None, most_graphs)
        assert (passes.graphs is not None) == (most_graphs > 0)
        with torch.inference_mode():
            hidden.append([passes.compute_hidden([rows], at_once=True).float().cpu().clone() for _ in range(2)])
    (eager, again), (first, replayed), (expected, _) = hidden
    assert torch.equal(eager, again)
    assert torch.equal(first, replayed)
    bound = 4 * torch.finfo(dtype).eps
    for found in (eager, first):
        assert float((found - expected).norm() / expected.norm()) < bound


def test_a_pass_waits_for_the_card_once() -> None:
    """torch raises where anything but the copy of what was accepted would wait."""
    _, on_card = decoders("qwen2", torch.float32)
    core = EngineCore(on_card, TOKEN_BYTES, EngineConfig(max_seq_len=200, page_size=16, most_graphs=0))
    expected = answers(core, None)
    core.forget_cached()
    real = AcceptOutput.to_host

    def allowed(each: AcceptOutput) -> AcceptOutput:
        set_sync_mode("default")
        try:
            return real(each)
        finally:
            set_sync_mode("error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AcceptOutput, "to_host", allowed)
        set_sync_mode("error")
        try:
            found = answers(core, expected)
        finally:
            set_sync_mode("default")
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_card_gives_what_the_cpu_gives(family: str) -> None:
    config = tiny_config(**FAMILIES[family])
    on_cpu = tiny_parameters(config)
    on_card = Parameters(config, torch.float32, "cuda", on_cpu.slots().__getitem__)
    texts = []
    for parameters in (on_cpu, on_card):
        core = EngineCore(Decoder(parameters), TOKEN_BYTES, EngineConfig(max_seq_len=200, check_integrity=True))
        for number in range(5):
            more: dict[str, Any] = {"temperature": 0.7 if number % 2 else 0.0}
            if number > 2:
                more |= {"logprobs": 3, "repetition_penalty": 1.3, "logit_bias": {7: 2.0}}
            core.add(GenerationRequest(prompt=[3, 4, number] * 5, max_new_tokens=20, **more))
        results = drain(core).results
        texts.append([results[each].token_ids for each in sorted(results)])
    assert texts[0] == texts[1]


def test_kv_gets_what_the_largest_pass_leaves() -> None:
    _, on_card = decoders("qwen2", torch.bfloat16)
    free_bytes, _ = torch.cuda.mem_get_info()
    core = EngineCore(on_card, TOKEN_BYTES, EngineConfig(max_seq_len=200, page_size=16, kv_share=0.01))
    taken = sum(each.nbytes for each in (*core._pool.keys, *core._pool.values))
    assert 0.004 * free_bytes < taken < 0.01 * free_bytes
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=8)
    assert len(run_one(core, request).token_ids) == 8


LOSES_THE_CARD = """
import pytest, torch
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.errors import DeviceLost, EngineClosed, EngineFault
from engine.types import GenerationRequest
from tests.engine.cores import PROMPT
from tests.engine.runner.test_card import decoders
from tests.engine.tiny import TOKEN_BYTES

_, on_card = decoders("qwen2", torch.bfloat16)
engine = Engine(on_card, TOKEN_BYTES, EngineConfig(max_seq_len=200, page_size=16, most_graphs=0))
request = GenerationRequest(prompt=PROMPT, max_new_tokens=8)
assert len(engine.run(request).token_ids) == 8
engine._worker._loop._core._check_request = lambda request: None  # an id that no model has gets through
with pytest.raises(EngineFault):
    engine.run(GenerationRequest(prompt=[*PROMPT, 10**6], max_new_tokens=8))
engine._worker._thread.join(20)
assert isinstance(engine.fault, DeviceLost), engine.fault
with pytest.raises(EngineClosed):
    engine.run(request)
"""


def test_an_engine_whose_card_is_lost_is_closed() -> None:
    """In a process of its own: an assert on the card makes every later call of the process fail."""
    done = subprocess.run([sys.executable, "-c", LOSES_THE_CARD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
