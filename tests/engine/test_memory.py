"""What a model will take in memory is known before it is loaded, and a model that does not fit is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import device
from engine.decoder import Decoder
from engine.errors import NotEnoughMemory
from engine.layers import DecoderWeights, Quantization
from engine.layers.linear import find_int8_step
from engine.weights import memory
from engine.weights.memory import check_memory, count_kv_bytes, estimate_weight_bytes
from tests.engine.tiny import FAMILIES, tiny_config, tiny_parameters

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"hidden_size": 256, "ffn_size": 1024, "vocab_size": 2048, "head_dim": 64}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_estimate_is_what_the_weights_take(family: str) -> None:
    changes = SIZES | ({"head_dim": FAMILIES[family]["head_dim"]} if "latent" in FAMILIES[family] else {})
    config = tiny_config(**FAMILIES[family] | changes)
    if config.experts is not None:
        every = {"num_used": config.experts.num_experts, "num_groups_used": config.experts.num_groups}
        config = replace(config, experts=replace(config.experts, **every))  # all are counted
    weights = DecoderWeights.from_parameters(tiny_parameters(config))
    taken = weights.num_bytes + weights.embedding.nbytes
    assert estimate_weight_bytes(config, torch.float32) == pytest.approx(taken, rel=0.02)


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_quantised_weights_take_what_is_estimated(scheme: Quantization) -> None:
    if scheme == "int8" and find_int8_step() is None:
        pytest.skip("this torch has no exact products of bytes")
    config = tiny_config(**SIZES)
    weights = DecoderWeights.from_parameters(tiny_parameters(config), scheme, torch.float32)
    taken = weights.num_bytes + weights.embedding.nbytes
    assert estimate_weight_bytes(config, torch.float32, scheme) == pytest.approx(taken, rel=0.02)


def test_experts_in_fp8_stay_as_they_are() -> None:
    config = tiny_config(**FAMILIES["qwen3 moe"] | SIZES)
    plain, quantised = (estimate_weight_bytes(config, torch.bfloat16, scheme) for scheme in (None, "fp8"))
    experts = 2 * 6 * 3 * 24 * 256 * 2
    assert quantised > experts
    assert plain - quantised < plain - experts


def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(**SIZES)
    need = estimate_weight_bytes(config, torch.float32)
    monkeypatch.setattr(memory, "get_free_bytes", lambda _: need)
    check_memory(config, torch.float32, None, CPU)
    monkeypatch.setattr(memory, "get_free_bytes", lambda _: need - 1)
    with pytest.raises(
        NotEnoughMemory, match=r"0\.0 GB of weights in float32: 0\.0 GB are free on cpu; --quantize int8"
    ):
        check_memory(config, torch.float32, None, CPU)
    check_memory(config, torch.float32, None, CPU, held_bytes=1)
    monkeypatch.setattr(memory, "get_free_bytes", lambda _: 10)
    with pytest.raises(NotEnoughMemory, match=r"free on cpu; take a smaller model"):
        Decoder(tiny_parameters(config))
    monkeypatch.setattr(memory, "get_free_bytes", lambda _: None)
    check_memory(config, torch.float32, None, CPU)


def test_the_memory_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "CGROUP", tmp_path)
    whole = device.get_free_bytes(CPU)
    assert whole is not None
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    assert device.get_free_bytes(CPU) == 3_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert device.get_free_bytes(CPU) == pytest.approx(whole, rel=0.5)
    assert device.get_free_bytes(torch.device("meta")) is None


def test_layers_that_share_keys_need_memory_once() -> None:
    shared = tiny_config(num_layers=4, kv_of_layer=(0, 0, 1, 1))
    assert 2 * count_kv_bytes(shared, torch.bfloat16) == count_kv_bytes(tiny_config(num_layers=4), torch.bfloat16)
