"""Configs: what is not supported is refused by name, never run wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import ModelConfig
from engine.errors import WeightsError
from tests.engine.tiny import tiny_config


def raw_config(**changes: Any) -> dict[str, Any]:
    return tiny_config().to_hf() | changes


def test_a_config_survives_the_way_through_json() -> None:
    for config in (tiny_config(), tiny_config(architecture="LlamaForCausalLM", qkv_bias=False, rope_theta=5e5)):
        assert ModelConfig.from_hf(config.to_hf()) == config


def test_what_a_config_leaves_out_is_as_transformers_has_it() -> None:
    raw = raw_config(architectures=["LlamaForCausalLM"])
    for key in ("num_key_value_heads", "head_dim", "rope_theta", "tie_word_embeddings", "attention_bias"):
        del raw[key]
    config = ModelConfig.from_hf(raw)
    assert config.num_kv_heads == config.num_heads
    assert config.head_dim * config.num_heads == config.hidden_size
    assert (config.rope_theta, config.tied_embeddings, config.qkv_bias) == (10000.0, False, False)


def test_qwen2_has_a_qkv_bias_without_saying_so() -> None:
    raw = raw_config()
    del raw["attention_bias"]
    assert ModelConfig.from_hf(raw).qkv_bias


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_the_rope_base_is_read_from_where_either_version_of_transformers_writes_it(key: str) -> None:
    raw = raw_config(rope_theta=7.0)
    assert ModelConfig.from_hf(raw).rope_theta == 7.0
    raw |= {"rope_parameters": {"rope_theta": 9.0, "rope_type": "default"}}
    assert ModelConfig.from_hf(raw).rope_theta == 9.0
    raw |= {key: None}
    assert ModelConfig.from_hf(raw).rope_theta == (7.0 if key == "rope_parameters" else 9.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; supported are: Llama"),
        ({"architectures": None}, "none named"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "RoPE scaling 'linear'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "RoPE scaling 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "RoPE scaling 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "a part of each head"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"mlp_bias": True}, "feed-forward"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "awq"}}, "GGUF"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "4 query heads do not divide into 3"),
        ({"head_dim": 7}, "even"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
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
        ModelConfig.from_hf(raw_config(**changes))


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "rms_norm_eps", "max_position_embeddings"])
def test_a_missing_key_is_named(key: str) -> None:
    raw = raw_config()
    del raw[key]
    with pytest.raises(WeightsError, match=key):
        ModelConfig.from_hf(raw)
