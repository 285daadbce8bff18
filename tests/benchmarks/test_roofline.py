"""Operations and bytes of a pass, against counts made by hand and against the tensors of a model."""

from __future__ import annotations

import pytest

from benchmarks.engine.roofline import (
    Machine,
    Rows,
    Work,
    count_kv_token_bytes,
    count_layer_weights,
    count_work,
    list_layer_shapes,
)
from engine.config import ModelConfig
from tests.engine.tiny import MISTRAL, tiny_config, tiny_parameters

SIZES = {"num_layers": 3, "hidden_size": 8, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "ffn_size": 16}
CONFIG = tiny_config(**SIZES, vocab_size=10)
# A layer: qkv (2 + 1 + 1) * 4 x 8 = 128, attention_out 8 x 8 = 64, gate_up 32 x 8 = 256, down 8 x 16 = 128.
LAYERS = 3 * (128 + 64 + 256 + 128)
TOKEN_KV = 3 * 2 * 1 * 4 * 2  # layers, keys and values, heads, head_dim, bytes


def test_two_tokens_behind_five_counted_by_hand() -> None:
    assert count_work(CONFIG, [Rows(5, 2)]) == Work(
        linear_flops=2 * 2 * LAYERS,
        attention_flops=3 * 2 * 4 * 4 * (6 + 7),  # layers, heads, head_dim, 2 products of 2, keys that they see
        lm_head_flops=2 * 10 * 8,
        weight_bytes=2 * (LAYERS + 10 * 8),
        kv_bytes=(7 + 2) * TOKEN_KV,
    )


def test_a_batch_reads_the_weights_once_and_every_sequence_its_own_kv() -> None:
    one, many = count_work(CONFIG, [Rows(5, 2)]), count_work(CONFIG, [Rows(5, 2)] * 3)
    assert many.weight_bytes == one.weight_bytes
    for name in ("linear_flops", "attention_flops", "lm_head_flops", "kv_bytes", "flops"):
        assert getattr(many, name) == 3 * getattr(one, name)
    assert many.num_bytes == one.weight_bytes + 3 * one.kv_bytes


def test_a_verify_pass_has_logits_for_each_row() -> None:
    assert (
        count_work(CONFIG, [Rows(5, 4, num_logits=4)]).lm_head_flops
        == 4 * count_work(CONFIG, [Rows(5, 4)]).lm_head_flops
    )


def test_float32_moves_twice_the_bytes() -> None:
    assert count_work(CONFIG, [Rows(5, 2)], itemsize=4).num_bytes == 2 * count_work(CONFIG, [Rows(5, 2)]).num_bytes


def test_a_window_bounds_what_is_seen() -> None:
    config = tiny_config(**SIZES, **MISTRAL, sliding_window=4)
    windowed = count_work(config, [Rows(5, 2)])
    assert windowed.attention_flops == 3 * 2 * 4 * 4 * (4 + 4)
    assert windowed.kv_bytes == (5 + 2) * TOKEN_KV  # positions 2 to 6 are read, two are written
    assert count_work(config, [Rows(0, 3)]) == count_work(tiny_config(**SIZES, **MISTRAL), [Rows(0, 3)])


@pytest.mark.parametrize("changes", [{}, SIZES, {"num_kv_heads": 4}])
def test_the_shapes_are_those_of_a_models_tensors(changes: dict[str, int]) -> None:
    config: ModelConfig = tiny_config(**changes)
    layers = tiny_parameters(config).layers
    for name, shape in list_layer_shapes(config).items():
        assert getattr(layers[0], name).shape == shape
    assert count_layer_weights(config) == sum(
        getattr(each, name).numel() for each in layers for name in list_layer_shapes(config)
    )


def test_bytes_of_a_token() -> None:
    assert count_kv_token_bytes(CONFIG, 2) == TOKEN_KV == 48


def test_the_roofline_is_the_slower_of_the_two() -> None:
    done = Work(linear_flops=600, attention_flops=300, lm_head_flops=100, weight_bytes=40, kv_bytes=10)
    assert Machine(flops_s=100.0, read_bytes_s=50.0).least_seconds(done) == 10.0
    assert Machine(flops_s=1000.0, read_bytes_s=5.0).least_seconds(done) == 10.0
