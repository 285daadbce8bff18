"""Model configs: what is not supported is refused by name, never run wrongly."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.config import Rope
from engine.errors import WeightsError
from engine.families import dump_config, parse_config
from engine.rope_config import build_rope_scaling, read_rope
from tests.engine.tiny import DEEPSEEK_V2, FAMILIES, LLAMA, MISTRAL, QWEN3, tiny_config

LONGROPE = {"rope_type": "longrope", "short_factor": [2.0] * 4, "long_factor": [2.0] * 4, "attention_factor": 1.0}


def raw_config(**changes: Any) -> dict[str, Any]:
    return dump_config(tiny_config()) | changes


DEEPSEEK = dump_config(tiny_config(**DEEPSEEK_V2))


def test_a_config_survives_the_way_through_json() -> None:
    for changes in (
        {},
        LLAMA | {"rope_theta": 5e5},
        LLAMA | {"rope_divisors": (1.0, 1.5, 8.0, 8.0)},
        LLAMA | {"rope_divisors": (1.0, 1.5, 8.0, 8.0), "rope_scale": 1.25},
        MISTRAL,
        MISTRAL | {"sliding_window": 7, "head_dim": 16},
        QWEN3 | {"head_dim": 32},
        *FAMILIES.values(),
    ):
        config = tiny_config(**changes)
        assert parse_config(dump_config(config)) == config


def test_a_latent_configs_scale_of_scores_survives_too() -> None:
    """Of YaRN, which multiplies queries and keys as a whole, not their rotated parts alone."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40, "original_max_position_embeddings": 64}
    config = parse_config(DEEPSEEK | {"rope_scaling": yarn | {"mscale": 0.707, "mscale_all_dim": 0.707}})
    assert config.attention_scale == pytest.approx(22**-0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2)
    again = parse_config(dump_config(config))
    assert again.attention_scale == pytest.approx(config.attention_scale)
    assert replace(again, attention_scale=config.attention_scale) == config


def test_what_a_config_leaves_out_is_as_transformers_has_it() -> None:
    raw = raw_config(architectures=["LlamaForCausalLM"])
    for key in ("num_key_value_heads", "head_dim", "rope_theta", "tie_word_embeddings", "attention_bias"):
        del raw[key]
    config = parse_config(raw)
    assert config.num_kv_heads == config.num_heads
    assert config.head_dim * config.num_heads == config.hidden_size
    assert (config.ropes[0].theta, config.tied_embeddings, config.qkv_bias) == (10000.0, False, False)


def test_qwen2_has_a_qkv_bias_whatever_its_config_says() -> None:
    raw = raw_config(attention_bias=False)
    assert parse_config(raw).qkv_bias
    del raw["attention_bias"]
    assert parse_config(raw).qkv_bias


def test_a_mistral_that_does_not_speak_of_its_window_has_the_one_that_transformers_takes() -> None:
    raw = dump_config(tiny_config(**MISTRAL))
    assert parse_config(raw).window is None
    del raw["sliding_window"]
    assert parse_config(raw).window == transformers.MistralConfig().sliding_window


def test_a_window_that_a_switch_turns_off_is_none() -> None:
    raw = raw_config(sliding_window=4, use_sliding_window=False, layer_types=["full_attention"] * 2)
    assert parse_config(raw).window is None


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_the_rope_base_is_read_from_where_either_version_of_transformers_writes_it(key: str) -> None:
    raw = raw_config(rope_theta=7.0)
    assert parse_config(raw).ropes[0].theta == 7.0
    raw |= {"rope_parameters": {"rope_theta": 9.0, "rope_type": "default"}}
    assert parse_config(raw).ropes[0].theta == 9.0
    raw |= {key: None}
    assert parse_config(raw).ropes[0].theta == (7.0 if key == "rope_parameters" else 9.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "GPT2LMHeadModel is not supported; supported are: DeepseekV2ForCausalLM, .*, Llama",
        ),
        ({"architectures": None}, "none named"),
        ({"architectures": ["Qwen3NextForCausalLM"]}, "Qwen3NextForCausalLM is not supported: .* linear attention"),
        ({"architectures": ["Qwen3_5MoeForCausalLM"]}, "Qwen3_5MoeForCausalLM is not supported: .* rejected drafts"),
        (DEEPSEEK | {"norm_topk_prob": True}, "norm_topk_prob True is not supported for DeepseekV2ForCausalLM"),
        (DEEPSEEK | {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        (DEEPSEEK | {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported .*; supported: softmax"),
        (DEEPSEEK | {"num_key_value_heads": 1}, "num_key_value_heads 1 is not supported"),
        (
            DEEPSEEK | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 1},
            "6 experts cannot be 1 of 4",
        ),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "take its text model"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "RoPE scaling 'dynamic'"),
        ({"rope_scaling": {"factor": 2.0, "rope_type": None}}, "RoPE scaling None"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "no 'low_freq_factor'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "no 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "RoPE factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("inf")}}, "RoPE factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2x"}}, "damaged"),
        ({"rope_scaling": LONGROPE | {"short_factor": [1.0] * 4}}, "depends on the length"),
        ({"rope_scaling": LONGROPE | {"attention_factor": None}}, "depends on the length"),
        ({"rope_scaling": LONGROPE | {"attention_factor": -1.0}}, "rope_scale is -1"),
        ({"rope_scaling": LONGROPE, "head_dim": 16}, "4 RoPE factors for 8 frequencies"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differs between layers"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "no 'factor'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": float("inf")}}, "damaged"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": -1.0}}, "damaged"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "a part of each head"),
        (dump_config(tiny_config(**MISTRAL)) | {"use_sliding_window": True}, "sliding-window"),
        ({"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types are those of 1 of 2 layers"),
        ({"use_sliding_window": True, "layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types other than full_attention"),
        (dump_config(tiny_config(**MISTRAL)) | {"sliding_window": 0}, "sliding_window is 0"),
        (dump_config(tiny_config(**MISTRAL)) | {"sliding_window": -1}, "sliding_window is -1"),
        (
            dump_config(tiny_config(**MISTRAL)) | {"sliding_window": 4, "layer_types": ["full_attention"] * 2},
            "layer_types other than sliding_attention",
        ),
        (
            dump_config(tiny_config(**MISTRAL)) | {"attention_bias": True},
            "attention_bias. is not supported for Mistral",
        ),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"mlp_bias": True}, "feed-forward"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "awq"}}, "GGUF"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "4 query heads do not divide into 3"),
        ({"head_dim": 7}, "even"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"num_hidden_layers": 1 << 60}, "num_layers is"),
        ({"num_attention_heads": -4}, "num_heads is -4"),
        ({"vocab_size": 1 << 60}, "vocab_size"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"num_attention_heads": 0, "head_dim": None}, "damaged"),
        ({"hidden_size": "wide"}, "damaged"),
        ({"hidden_size": []}, "damaged"),
        ({"rope_scaling": "linear"}, "damaged"),
    ],
)
def test_what_would_give_wrong_numbers_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WeightsError, match=said):
        parse_config(raw_config(**changes))


@pytest.mark.parametrize(
    "key",
    ["num_hidden_layers", "vocab_size", "rms_norm_eps", "max_position_embeddings", "num_key_value_heads", "head_dim"],
)
def test_a_missing_key_is_named(key: str) -> None:
    raw = dump_config(tiny_config(**QWEN3))
    del raw[key]
    with pytest.raises(WeightsError, match=key):
        parse_config(raw)


# RoPE scaling: the divisors of a config are those by which transformers slows the frequencies.


LLAMA_3_1 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA_3_2 = LLAMA_3_1 | {"factor": 32.0}


def rope_config(scaling: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A `config.json` as Llama 3.1's own is written."""
    raw = {"max_position_embeddings": 131072, "rope_theta": 5e5, "rope_scaling": scaling}
    return raw | changes


def transformers_divisors(raw: dict[str, Any], head_dim: int) -> tuple[torch.Tensor, float]:
    """Also the factor of cosines and sines."""
    own = copy.deepcopy(raw)  # which transformers rewrites
    config = transformers.LlamaConfig(head_dim=head_dim, hidden_size=2 * head_dim, num_attention_heads=2, **own)
    scaled, attention_factor = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config)
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    return 1.0 / config.rope_parameters["rope_theta"] ** exponents / scaled, attention_factor


QWEN_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
"""As Qwen2.5's manual asks for it."""


@pytest.mark.parametrize(
    ("raw", "head_dim"),
    [
        (rope_config(LLAMA_3_1), 128),
        (rope_config(LLAMA_3_2), 64),
        (rope_config(LLAMA_3_1, rope_theta=1e4, original_max_position_embeddings=64), 16),
        (rope_config({"type": "linear", "factor": 2.5}), 64),
        (rope_config(build_rope_scaling(Rope(1e4, (1.0, 1.25, 3.0, 8.0)), 512)), 8),
        ({"max_position_embeddings": 4096, "rope_parameters": LLAMA_3_1 | {"rope_theta": 1e6}}, 64),
        ({"max_position_embeddings": 64, "rope_parameters": {"rope_theta": 1e4} | LLAMA_3_1 | {"factor": 3}}, 32),
        (rope_config(QWEN_YARN, max_position_embeddings=32768, rope_theta=1e6), 128),
        (rope_config({"type": "yarn", "factor": 4.0}, max_position_embeddings=32768), 64),
        (rope_config(QWEN_YARN | {"factor": 1.0}), 64),
        (rope_config(QWEN_YARN | {"beta_fast": 8.0, "beta_slow": 4.0, "truncate": False}), 32),
        (rope_config(QWEN_YARN | {"beta_fast": 1e3, "beta_slow": 1e3}), 32),
        (rope_config(QWEN_YARN | {"attention_factor": 0.8}), 64),
        (rope_config(QWEN_YARN | {"mscale": 1.3, "mscale_all_dim": 0.7}), 64),
        (rope_config(QWEN_YARN | {"mscale": 1.3}), 64),
        (rope_config(LONGROPE | {"factor": 2.0, "attention_factor": 1.2}), 8),
    ],
)
def test_the_divisors_are_those_of_transformers(raw: dict[str, Any], head_dim: int) -> None:
    rope = read_rope(raw, head_dim)
    assert rope.divisors is not None
    expected, scale = transformers_divisors(raw, head_dim)
    torch.testing.assert_close(torch.tensor(rope.divisors), expected, rtol=1e-5, atol=0)
    assert rope.scale == pytest.approx(scale)


@pytest.mark.parametrize(
    "change",
    [
        {"factor": 3.0},
        {"original_max_position_embeddings": 4096},
        {"beta_fast": 8.0},
        {"beta_slow": 4.0},
        {"attention_factor": 1.0},
        {"mscale": 1.3, "mscale_all_dim": 0.7},
        {"truncate": False},
        {"type": "linear"},
    ],
)
def test_every_number_of_yarn_shows(change: dict[str, Any]) -> None:
    one, other = (rope_config(QWEN_YARN | each, max_position_embeddings=32768) for each in ({}, change))
    assert read_rope(one, 128) != read_rope(other, 128)


@pytest.mark.parametrize(
    ("scaling", "positions", "expected"),
    [
        (QWEN_YARN, 32768, 131072),
        (QWEN_YARN, 200000, 200000),
        ({"type": "yarn", "factor": 2.5}, 4096, 10240),
        ({"type": "linear", "factor": 4.0}, 32768, 32768),
        (None, 32768, 32768),
    ],
)
def test_yarn_makes_sequences_longer(scaling: dict[str, Any] | None, positions: int, expected: int) -> None:
    raw = raw_config(max_position_embeddings=positions, rope_scaling=scaling)
    config = parse_config(raw)
    assert config.max_positions == expected
    assert parse_config(dump_config(config)) == config


def test_llama_3_1_leaves_quick_waves_alone_and_slows_slow_ones_by_its_factor() -> None:
    divisors = read_rope(rope_config(LLAMA_3_1), 128).divisors
    assert divisors is not None
    assert divisors[0] == 1.0
    assert divisors[-1] == 8.0
    assert list(divisors) == sorted(divisors)
    assert any(1.0 < divisor < 8.0 for divisor in divisors)


def test_the_original_length_is_the_models_own_where_none_is_given() -> None:
    scaling = {key: value for key, value in LLAMA_3_1.items() if not key.startswith("original")}
    raw = rope_config(scaling, max_position_embeddings=64)
    assert (
        read_rope(raw, 32).divisors
        == read_rope(rope_config(LLAMA_3_1, original_max_position_embeddings=64), 32).divisors
    )


def test_a_config_without_scaling_has_no_divisors() -> None:
    for scaling in ({}, {"rope_type": "default"}, {"rope_theta": 1e4, "rope_type": "default"}):
        assert read_rope(rope_config(scaling), 64).divisors is None


def test_an_unknown_scheme_is_named_with_those_that_are_known() -> None:
    with pytest.raises(WeightsError, match="'ntk' is not supported yet; supported are: default, linear, llama3, yarn"):
        read_rope(rope_config({"rope_type": "ntk", "factor": 4.0}), 64)
