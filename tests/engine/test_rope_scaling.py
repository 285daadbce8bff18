"""RoPE scaling: the divisors of a config are those by which transformers slows the frequencies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.config import build_rope_scaling, rope_divisors, rope_theta
from engine.errors import WeightsError

LLAMA_3_1 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA_3_2 = LLAMA_3_1 | {"factor": 32.0}


def raw_config(scaling: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A `config.json` as Llama 3.1's own is written."""
    raw = {"max_position_embeddings": 131072, "rope_theta": 5e5, "rope_scaling": scaling}
    return raw | changes


def transformers_divisors(raw: dict[str, Any], head_dim: int) -> torch.Tensor:
    config = transformers.LlamaConfig(head_dim=head_dim, hidden_size=2 * head_dim, num_attention_heads=2, **raw)
    scaled, attention_factor = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config)
    assert attention_factor == 1.0
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    return 1.0 / rope_theta(raw) ** exponents / scaled


@pytest.mark.parametrize(
    ("raw", "head_dim"),
    [
        (raw_config(LLAMA_3_1), 128),
        (raw_config(LLAMA_3_2), 64),
        (raw_config(LLAMA_3_1, rope_theta=1e4, original_max_position_embeddings=64), 16),
        (raw_config({"type": "linear", "factor": 2.5}), 64),
        (raw_config(build_rope_scaling((1.0, 1.25, 3.0, 8.0), 512)), 8),
        ({"max_position_embeddings": 4096, "rope_parameters": LLAMA_3_1 | {"rope_theta": 1e6}}, 64),
        ({"max_position_embeddings": 64, "rope_parameters": {"rope_theta": 1e4} | LLAMA_3_1 | {"factor": 3}}, 32),
    ],
)
def test_the_divisors_are_those_of_transformers(raw: dict[str, Any], head_dim: int) -> None:
    divisors = rope_divisors(raw, head_dim)
    assert divisors is not None
    torch.testing.assert_close(torch.tensor(divisors), transformers_divisors(raw, head_dim), rtol=1e-5, atol=0)


def test_llama_3_1_leaves_quick_waves_alone_and_slows_slow_ones_by_its_factor() -> None:
    divisors = rope_divisors(raw_config(LLAMA_3_1), 128)
    assert divisors is not None
    assert divisors[0] == 1.0
    assert divisors[-1] == 8.0
    assert list(divisors) == sorted(divisors)
    assert any(1.0 < divisor < 8.0 for divisor in divisors)


def test_the_original_length_is_the_models_own_where_none_is_given() -> None:
    scaling = {key: value for key, value in LLAMA_3_1.items() if not key.startswith("original")}
    raw = raw_config(scaling, max_position_embeddings=64)
    assert rope_divisors(raw, 32) == rope_divisors(raw_config(LLAMA_3_1, original_max_position_embeddings=64), 32)


def test_a_config_without_scaling_has_no_divisors() -> None:
    for scaling in ({}, {"rope_type": "default"}, {"rope_theta": 1e4, "rope_type": "default"}):
        assert rope_divisors(raw_config(scaling), 64) is None


def test_an_unknown_scheme_is_named_with_those_that_are_known() -> None:
    with pytest.raises(WeightsError, match="'yarn' is not supported yet; supported are: default, linear, llama3"):
        rope_divisors(raw_config({"rope_type": "yarn", "factor": 4.0}), 64)
