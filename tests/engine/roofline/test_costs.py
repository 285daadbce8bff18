"""The costs of passes: they add up to the model's parameters, and follow from the machine's rates."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from engine.config import ModelConfig
from engine.families import parse_config
from engine.precision import Precision
from engine.roofline.costs import Attention, Deployment, list_products, list_variants
from engine.roofline.machine import CARDS, SHAPES, Machine, get_card, measure_machine
from engine.weights.memory import count_kv_bytes, estimate_weight_bytes
from engine.weights.parameters import count_parameters
from tests.engine.tiny import tiny_config

MEMORY = Machine("memory alone", 1e12, 1e9, {"bfloat16": 1e18, "int8": 1e18}, 1e9, "a test")
"""Reads a gigabyte a second, and computes in no time."""

COMPUTE = Machine("compute alone", 1e12, 1e18, {"bfloat16": 1e9}, 1e9, "a test")

MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def deploy(config: ModelConfig, machine: Machine = MEMORY) -> Deployment:
    return Deployment(config, machine, Attention.from_config(config))


CONFIGS = {name: parse_config(shape) for name, shape in SHAPES.items()} | {"experts": parse_config(MOE)}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_products_have_the_models_weights(name: str) -> None:
    """All parameters but the embedding, where it is no LM head, norms and biases: less than a thousandth."""
    config = CONFIGS[name]
    embedding = 0 if config.tied_embeddings else config.hidden_size * config.vocab_size
    total = sum(each.num_weights * each.count for each in list_products(config))
    in_norms = count_parameters(config) - embedding - total
    most = config.num_layers * (
        12 * config.hidden_size + config.head_dim * (config.num_heads + 4 * config.num_kv_heads)
    )
    assert 0 < in_norms <= most
    assert deploy(config).kv_token_bytes == count_kv_bytes(config, torch.bfloat16)


def test_the_sizes_of_a_public_model() -> None:
    """Qwen2.5-7B: 7.6 billion parameters, 28 layers of 4 heads of 128 (Qwen2.5 report, arXiv 2412.15115, table 1)."""
    planned = deploy(CONFIGS["qwen2.5-coder-7b"], get_card("h200"))
    assert planned.weight_bytes == pytest.approx(2 * 7.615e9, rel=0.001)
    assert planned.kv_token_bytes == 2 * 28 * 4 * 128 * 2
    assert planned.cost_pass(1, 1, 1).flops == pytest.approx(2 * 7.07e9, rel=0.001), "without the embedding"
    assert planned.cost_pass(1, 1, 1).seconds > planned.cost_pass(1, 1, 1).weight_bytes / 4.8e12


def test_a_pass_of_one_row_reads_all_weights_and_the_keys() -> None:
    planned = deploy(tiny_config())
    cost = planned.cost_pass(1, 1, 100)
    assert cost.kv_bytes == 100 * planned.kv_token_bytes
    assert cost.seconds == pytest.approx((cost.weight_bytes + cost.kv_bytes) / 1e9, rel=0.2), "and activations"
    assert cost.bound == "memory"


def test_a_prompt_attends_to_half_of_its_keys_at_the_mean() -> None:
    config = tiny_config()
    planned = deploy(config, COMPUTE)
    alone, behind = planned.cost_pass(1, 101, 101), planned.cost_pass(1, 101, 201)
    pair_flops = 4 * config.num_heads * config.head_dim * config.num_layers
    assert behind.flops - alone.flops == pytest.approx(101 * 100 * pair_flops)
    products = 101 * 2 * sum(each.num_weights * each.count for each in list_products(config))
    assert alone.flops == pytest.approx(products + 101 * 51 * pair_flops)
    assert alone.seconds == pytest.approx(alone.flops / 1e9)
    assert alone.bound == "compute"


def test_only_scored_rows_go_through_the_lm_head() -> None:
    config = tiny_config()
    planned = deploy(config, COMPUTE)
    saved = planned.cost_pass(2, 10, 10).flops - planned.cost_pass(2, 10, 10, scored=1).flops
    assert saved == pytest.approx(2 * 18 * config.hidden_size * config.vocab_size)


def test_a_row_reads_the_experts_that_it_takes_and_many_rows_read_all() -> None:
    config = CONFIGS["experts"]
    planned, expert = deploy(config), 3 * 64 * 32 * 2.0
    single, many = planned.cost_pass(1, 1, 1), planned.cost_pass(1, 500, 500)
    assert many.weight_bytes - single.weight_bytes == pytest.approx(3 * (8 - 2) * expert, rel=1e-3)
    in_rows = (many.flops - planned.attention.pair_flops * 3 * 500 * 250.5) / 500
    assert in_rows == pytest.approx(single.flops - planned.attention.pair_flops * 3)


def test_windows_bound_what_is_read_and_kept() -> None:
    planned = deploy(tiny_config())
    shorter = list_variants(planned, window=64)["windows of 64"]
    assert shorter.cost_pass(1, 1, 1000).kv_bytes == planned.cost_pass(1, 1, 64).kv_bytes
    assert shorter.count_users(1000) == planned.count_users(64)
    mixed = replace(planned.attention, windows=(None, *[64] * (tiny_config().num_layers - 1)))
    assert mixed.count_numbers(1000) == planned.attention.count_numbers(1000), "pages of all layers are kept alike"


def test_cards_share_weights_and_keys_and_wait_for_the_wire() -> None:
    planned = deploy(CONFIGS["qwen2.5-coder-7b"], get_card("h100-pcie"))
    shared = replace(planned, num_cards=4)
    assert 4 * shared.weight_bytes == pytest.approx(planned.weight_bytes)
    assert 4 * shared.kv_token_bytes == pytest.approx(planned.kv_token_bytes)
    assert replace(planned, num_cards=28).kv_token_bytes == planned.kv_token_bytes / 4, "a KV head is not split"
    cost = shared.cost_pass(1, 100, 100)
    # Two all-reduces a layer; in a ring each card sends 2 * 3 / 4 of the hidden states.
    assert cost.wire_s == pytest.approx(28 * 2 * 1.5 * 100 * 3584 * 2 / 64e9)
    assert planned.cost_pass(1, 100, 100).wire_s == 0.0


def test_variants_take_less_of_what_they_are_for() -> None:
    planned = deploy(CONFIGS["qwen2.5-coder-7b"], get_card("h200"))
    variants = list_variants(planned)
    assert {"fp8 weights", "int8 KV", "MLA, 512 + 64", "CLA, two layers a KV", "GQA, half the KV heads"} <= set(
        variants
    )
    assert variants["int8 KV"].kv_token_bytes == planned.kv_token_bytes / 2
    assert variants["CLA, two layers a KV"].kv_token_bytes == planned.kv_token_bytes / 2
    assert variants["GQA, half the KV heads"].kv_token_bytes == planned.kv_token_bytes / 2
    assert variants["MLA, 512 + 64"].kv_token_bytes == 28 * 576 * 2
    assert variants["fp8 weights"].weight_bytes < 0.6 * planned.weight_bytes
    assert "int8 weights" not in variants, "a card does not multiply them"


def test_rows_are_free_until_a_pass_takes_a_tenth_more() -> None:
    planned = deploy(CONFIGS["qwen2.5-coder-7b"], get_card("h200"))
    free = planned.count_free_rows(1000)
    single = planned.cost_pass(1, 1, 1000).seconds
    assert planned.cost_pass(1, free, 1000).seconds <= 1.1 * single < planned.cost_pass(1, free + 1, 1000).seconds


def test_measured_products_lie_on_the_lines_between() -> None:
    machine = replace(MEMORY, products={"bfloat16": {1: 1.0, 2: 2.0, 4: 3.0}})
    assert machine.multiply(1, 10, "bfloat16") == 10.0
    assert machine.multiply(3, 10, "bfloat16") == 25.0
    assert machine.multiply(8, 10, "bfloat16") == 50.0
    assert machine.multiply(0.5, 10, "bfloat16") == 10.0, "less than a row costs as much as one"


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.roofline.machine.SHAPE", (512, 256))
    monkeypatch.setattr("engine.roofline.machine.READ_BYTES", 1 << 20)
    machine = measure_machine("here", Precision(torch.bfloat16, torch.float32))
    assert set(machine.products) == set(machine.flops_s) >= {"bfloat16"}
    for weights in machine.products:
        assert 0.0 < machine.multiply(1, 1e6, weights) < machine.multiply(1000, 1e6, weights)
    planned = deploy(CONFIGS["smollm2-135m"], machine)
    assert planned.cost_pass(1, 4, 100).seconds > planned.cost_pass(1, 1, 100).seconds > 0.0


def test_more_rows_take_no_less_whatever_noise_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows take as long as one, so that noise alone would decide which is quicker."""
    monkeypatch.setattr("engine.roofline.machine.SHAPE", (512, 256))
    monkeypatch.setattr("engine.roofline.machine.READ_BYTES", 1 << 20)
    falling = (1.0 / number for number in itertools.count(1))
    monkeypatch.setattr("engine.roofline.machine._time", lambda work: next(falling))
    machine = measure_machine("here", Precision(torch.bfloat16, torch.float32))
    for seconds in (*machine.products.values(), *machine.calls.values()):
        assert list(seconds.values()) == sorted(seconds.values())
    planned = deploy(CONFIGS["smollm2-135m"], machine)
    assert planned.cost_pass(1, 4, 100).seconds > planned.cost_pass(1, 1, 100).seconds > 0.0


def test_every_card_has_a_source_and_figures_that_can_be() -> None:
    for name, card in CARDS.items():
        machine = get_card(name)
        assert card["source"].startswith("NVIDIA, ")
        assert 1e10 < machine.memory_bytes < 1e12
        assert 1e11 < machine.read_bytes_s < 1e13
        assert 100 < machine.flops_s["bfloat16"] / machine.read_bytes_s < 500, "operations for each byte"


def test_the_estimate_of_memory_agrees_with_the_loader() -> None:
    """But for int4, of which the loader keeps two forms."""
    for config in CONFIGS.values():
        planned = deploy(config)
        loaded = estimate_weight_bytes(config, torch.bfloat16)
        both = 0 if not config.tied_embeddings else config.hidden_size * config.vocab_size * 2  # kept packed, and plain
        assert planned.weight_bytes + both == pytest.approx(loaded, rel=0.01)
