"""Keys and values in int8: half the memory, near the model's logits, and as exact as any others in batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.errors import NumericFault
from engine.kv_pool import KVPool, page_bytes
from engine.layers.decoder_weights import LARGE_BIAS, find_key_scales
from engine.reuse import Reuse
from engine.runner.cuda_runner import KernelRunner
from engine.types import GenerationRequest
from kernels.attention import KVFormat
from kernels.attention.kv_format import split_rows
from tests.engine.cores import PROMPT, Collected, Oracle, RandomDraft, drain, run_one
from tests.engine.reuse.turns import edited, random_ids, reusing_core, run
from tests.engine.runner.kernel_cores import by_kernels, kernel_model
from tests.engine.test_parity import logits_of, random_tokens, relative_error
from tests.engine.tiny import FAMILIES, TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_parameters

INT8 = KVFormat(torch.bfloat16, is_int8=True)


def build(family: str = "qwen2", dtype: torch.dtype = torch.float32, *, kv_int8: bool = True) -> Decoder:
    return Decoder(tiny_parameters(tiny_config(**FAMILIES[family]), dtype=dtype), kv_int8=kv_int8)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_kv_takes_at_most_52_hundredths_of_bf16(head_dim: int) -> None:
    config = tiny_config(head_dim=head_dim)
    assert page_bytes(config, 32, INT8.dtype) <= 0.52 * page_bytes(config, 32, torch.bfloat16)
    pool = KVPool(config, 3, 32, torch.device("cpu"), INT8.dtype)
    assert sum(each.nbytes for each in (*pool.keys, *pool.values)) == 3 * page_bytes(config, 32, INT8.dtype)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_near_those_of_the_model(family: str, dtype: torch.dtype) -> None:
    config, token_ids = tiny_config(**FAMILIES[family]), random_tokens(60)
    if (experts := config.experts) is not None:  # none is chosen otherwise
        every = replace(experts, num_used=experts.num_experts, num_groups_used=experts.num_groups)
        config = replace(config, experts=every)
    plain, stored = (Decoder(tiny_parameters(config, dtype=dtype), kv_int8=kv_int8) for kv_int8 in (False, True))
    expected = logits_of(plain, token_ids, [40, 1, 19]).float()
    found = logits_of(stored, token_ids, [40, 1, 19]).float()
    assert 0 < relative_error(found, expected) < 0.15


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_kernel_the_same_is_read(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    token_ids = random_tokens(60)
    found = logits_of(build(dtype=dtype), token_ids, [40, 1, 19]).float()
    monkeypatch.setattr("engine.decoder.can_attend", lambda *_: False)
    assert relative_error(logits_of(build(dtype=dtype), token_ids, [40, 1, 19]).float(), found) < 0.04


def invariant_core(model: Decoder, **more: int) -> EngineCore:
    return EngineCore(model, TOKEN_BYTES, EngineConfig(200, page_size=4, batch_invariant=True, check_integrity=True))


@pytest.mark.parametrize("family", ["qwen2", "qwen2, windows in a part", "mistral", "gemma3"])
def test_a_request_has_the_same_bits_in_any_company_and_however_it_is_drafted(family: str) -> None:
    model, random = build(family, torch.bfloat16), Random(5)
    requests = [GenerationRequest(random_ids(random, 20 + at), 24, logprobs=2) for at in range(4)]
    expected = [run_one(invariant_core(model), each) for each in requests]
    core, collected = invariant_core(model), Collected()
    drafts = [None, Oracle, None, lambda target: RandomDraft(target, VOCAB_SIZE, 3)]
    ids = [
        core.add(each, draft and draft(known.token_ids))
        for each, draft, known in zip(requests, drafts, expected, strict=True)
    ]
    drain(core, collected)
    for number, known in zip(ids, expected, strict=True):
        found = collected.results[number]
        assert (found.token_ids, found.logprobs) == (known.token_ids, known.logprobs)


def test_what_is_taken_over_is_near_what_is_computed() -> None:
    random, model = Random(2), build()
    core = reusing_core(model)
    prompt = random_ids(random, 120)
    run(core, prompt)
    core.pages.forget()
    again, plain = run(core, prompt, Reuse("turbo"), logprobs=3), run(reusing_core(model), prompt, logprobs=3)
    assert again.usage.reused_approximate == len(prompt) - 1
    for one, other in zip(again.logprobs[0].top, plain.logprobs[0].top, strict=True):
        assert abs(one[1] - other[1]) < 0.3


def test_spans_come_back_from_the_disk(tmp_path: Path) -> None:
    model, prompt = build(), random_ids(Random(7), 100)
    core = reusing_core(model, span_dir=tmp_path, span_key=b"k" * 32)
    run(core, prompt)
    assert core.reuse is not None
    core.reuse.store.close()
    other = reusing_core(build(), span_dir=tmp_path, span_key=b"k" * 32)
    found = run(other, edited(Random(1), prompt), Reuse("turbo"))
    assert found.usage.reused_approximate > 40
    plain = reusing_core(build(kv_int8=False), span_dir=tmp_path, span_key=b"k" * 32)
    assert run(plain, prompt, Reuse("turbo")).usage.reused_approximate == 0


def test_its_kv_is_never_taken_for_that_of_another_format() -> None:
    assert build().fingerprint != build(kv_int8=False).fingerprint
    assert build().precision.describe() == "float32 weights, float32 activations, int8 KV"


def test_large_biases_of_keys_are_shared_out_by_powers_of_two() -> None:
    bias = torch.tensor([[0.1, 30.0, -300.0, 2.0, 0.2, -1.0, 5.0, -9.0]])
    scales = find_key_scales(bias)
    assert scales.tolist() == [[1.0, 4.0, 32.0, 1.0] * 2]
    assert (bias.abs() / scales).max() <= LARGE_BIAS * 2**0.5 + 2


def test_a_large_bias_costs_little_with_them_and_much_without() -> None:
    """As Qwen2.5's, whose largest is 354."""
    token_ids = random_tokens(60)

    def compute(kv_int8: bool, keeps_scales: bool = True) -> torch.Tensor:
        parameters = tiny_parameters(tiny_config(head_dim=16))
        for index in range(2):
            parameters.layer(index).qkv_bias[4 * 16 : 6 * 16 : 16] += 300.0
        model = Decoder(parameters, kv_int8=kv_int8)
        if not keeps_scales:
            for layer in model.weights.layers:
                layer.key_scales.fill_(1.0)
        return logits_of(model, token_ids)

    exact = compute(kv_int8=False)
    good, bad = (relative_error(compute(True, keeps), exact) for keeps in (True, False))
    assert good < 0.7 * bad


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2", "qwen2, windows in a part"])
def test_passes_of_a_card_give_what_torch_gives(family: str) -> None:
    """The bytes that both store are the same, but for a rounding here and there."""
    model, random = kernel_model(family, kv_int8=True), Random(3)
    plain = reusing_core(model) if model.config.window is None else invariant_core(model)
    with by_kernels():
        core = reusing_core(model) if model.config.window is None else EngineCore(model, TOKEN_BYTES, EngineConfig(200))
    assert isinstance(core._runner, KernelRunner)
    prompt = random_ids(random, 90)
    for _ in range(4):
        reuse = Reuse("turbo", segment_ends=tuple(range(6, len(prompt), 6)))
        ours, theirs = (run(each, prompt, reuse, max_new_tokens=5, logprobs=3) for each in (core, plain))
        assert ours.usage.reused_at == theirs.usage.reused_at
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=0.02)
        check_same_rows(core, plain)
        prompt = edited(random, prompt)
    assert core.reuse is None or core.reuse.store.stats().num_hit > 90


def check_same_rows(core: EngineCore, plain: EngineCore) -> None:
    if core.reuse is None or plain.reuse is None:
        return
    ours, theirs = core.reuse.store, plain.reuse.store
    for layer in range(core.model.config.num_layers):
        for own, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            (integers, scales), (others, other_scales) = split_rows(own[layer]), split_rows(other[layer])
            assert (integers.int() - others.int()).abs().max() <= 1
            torch.testing.assert_close(scales, other_scales, rtol=1e-2, atol=1e-4)


def test_a_key_that_is_no_number_is_told() -> None:
    model = build()
    model.weights.embedding[PROMPT[3]] = torch.nan
    core, collected = EngineCore(model, TOKEN_BYTES, EngineConfig(200)), Collected()
    number = core.add(GenerationRequest(PROMPT, 3))
    drain(core, collected)
    assert isinstance(collected.errors[number], NumericFault)
