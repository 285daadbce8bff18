"""Adapters beside the model give what the model gives that they were merged into, whatever shares the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import ModelConfig
from engine.decoder import Decoder
from engine.errors import RequestError, WeightsError
from engine.layers import Adapter, AdapterRows, AdapterSet, ProjectionKind
from engine.weights import LoraAdapter, Parameters, load, save_folder
from tests.engine.layers.test_projections import random_tensor
from tests.engine.test_lora import write_adapter
from tests.engine.test_parity import logits_of, random_tokens, relative_error
from tests.engine.tiny import QWEN3, tiny_config, tiny_parameters

CPU = torch.device("cpu")
KINDS: tuple[ProjectionKind, ...] = ("qkv", "attention_out", "gate_up", "down")


class Fitted:
    """Three adapters to one tiny model: beside it, and each merged into a copy of it."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self.base = tiny_parameters(config)
        save_folder(self.base, folder)
        settings: dict[str, dict[str, Any]] = {
            "a": {},
            "b": {"lora_alpha": 3.0, "use_rslora": True},
            "c": {"ranks": {"model.layers.0.self_attn.k_proj": 5}, "rank_pattern": {"layers.0.self_attn.k_proj": 5}},
        }
        self.set = AdapterSet(config, torch.float32, CPU)
        self.folders = {name: write_adapter(folder / name, self.base, **more) for name, more in settings.items()}
        _without(self.folders["b"], "q_proj", "gate_proj")
        _without(self.folders["c"], "v_proj", "up_proj", "down_proj")
        self.adapters = {name: self.set.load(name, path) for name, path in self.folders.items()}
        self.merged = {name: load(folder, torch.float32, LoraAdapter(path)) for name, path in self.folders.items()}


def _without(folder: Path, *modules: str) -> None:
    """Of an adapter, leave out what it changes in these."""
    path = folder / "adapter_model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if not any(part in name for part in modules)}
    save_file(kept, path)


@pytest.fixture(scope="module", params=[{}, QWEN3 | {"head_dim": 16, "num_kv_heads": 1}], ids=["qwen2", "qwen3"])
def fitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return Fitted(tmp_path_factory.mktemp("fitted"), tiny_config(**request.param))


@given(
    batch=st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 4)), max_size=7),
    kind=st.sampled_from(KINDS),
    layer=st.integers(0, 1),
    seed=st.integers(0, 1000),
)
def test_every_row_of_a_mixed_batch_gets_its_own_adapter(
    fitted: Fitted, batch: list[tuple[str | None, int]], kind: ProjectionKind, layer: int, seed: int
) -> None:
    plain: Tensor = getattr(fitted.base.layers[layer], kind)
    x = random_tensor(sum(num_rows for _, num_rows in batch), plain.shape[1], seed=seed)
    out = F.linear(x, plain)
    adapters = [(fitted.adapters[name] if name else None, num_rows) for name, num_rows in batch]
    AdapterRows.from_sequences(adapters).apply(kind, layer, x, out)
    start = 0
    for name, num_rows in batch:
        weight = getattr((fitted.merged[name] if name else fitted.base).layers[layer], kind)
        end = start + num_rows
        torch.testing.assert_close(out[start:end], F.linear(x[start:end], weight), rtol=1e-4, atol=1e-4)
        start = end


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_decoder_with_the_adapter_beside_it_is_the_merged_decoder(fitted: Fitted, name: str) -> None:
    token_ids = random_tokens(20)
    merged = logits_of(Decoder(_copy(fitted.merged[name])), token_ids)
    beside = Decoder(_copy(fitted.base))
    plain = logits_of(beside, token_ids)
    rows = AdapterRows.from_sequences([(fitted.adapters[name], len(token_ids))])
    layers = tuple(
        dataclasses.replace(weights, **{kind: _adapted(getattr(weights, kind), kind, layer, rows) for kind in KINDS})
        for layer, weights in enumerate(beside.weights.layers)
    )
    beside.weights = dataclasses.replace(beside.weights, layers=layers)
    assert relative_error(logits_of(beside, token_ids), merged) < 1e-4
    assert relative_error(plain, merged) > 0.1


def _adapted(projection: Any, kind: ProjectionKind, layer: int, rows: AdapterRows) -> Any:
    def call(x: Tensor) -> Tensor:
        out: Tensor = projection(x)
        rows.apply(kind, layer, x, out)
        return out

    return call


def _copy(parameters: Parameters) -> Parameters:
    copy = Parameters(parameters.config, parameters.dtype)
    copy.fill(iter(parameters.slots().items()))
    return copy


def test_in_bf16_the_update_is_rounded_and_the_rest_is_not_touched(fitted: Fitted) -> None:
    config = fitted.base.config
    adapter = Adapter(LoraAdapter(fitted.folders["a"]), config, torch.bfloat16, CPU)
    x, out = random_tensor(6, 32, dtype=torch.bfloat16), torch.zeros(6, 2 * config.ffn_size, dtype=torch.bfloat16)
    AdapterRows.from_sequences([(None, 2), (adapter, 3), (None, 1)]).apply("gate_up", 0, x, out)
    update = fitted.merged["a"].layers[0].gate_up - fitted.base.layers[0].gate_up
    expected = F.linear(x.float(), update)
    expected[[0, 1, 5]] = 0.0
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    assert not out[[0, 1, 5]].any()


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ([("a", 3), ("a", 2), (None, 4), ("b", 1)], [("a", 0, 5), ("b", 9, 10)]),
        ([("a", 1), (None, 2), ("a", 1)], [("a", 0, 1), ("a", 3, 4)]),
        ([("a", 1), ("b", 1), ("a", 1)], [("a", 0, 1), ("b", 1, 2), ("a", 2, 3)]),
        ([(None, 9)], []),
    ],
)
def test_neighbours_of_one_adapter_share_a_range(
    fitted: Fitted, sequences: Sequence[tuple[str | None, int]], expected: list[tuple[str, int, int]]
) -> None:
    rows = AdapterRows.from_sequences([(fitted.adapters[name] if name else None, size) for name, size in sequences])
    assert rows.ranges == tuple((fitted.adapters[name], start, end) for name, start, end in expected)


def test_a_fingerprint_tells_adapters_apart_and_not_their_folders(fitted: Fitted, tmp_path: Path) -> None:
    def fingerprint(folder: Path) -> bytes:
        return fitted.set.load("tried", folder).fingerprint

    original = fingerprint(write_adapter(tmp_path / "a", fitted.base))
    assert fingerprint(write_adapter(tmp_path / "copy", fitted.base)) == original
    others = {adapter.fingerprint for name, adapter in fitted.adapters.items() if name != "a"}
    others.add(fingerprint(write_adapter(tmp_path / "scale", fitted.base, lora_alpha=8.5)))
    changed = write_adapter(tmp_path / "changed", fitted.base)
    for part in "AB":
        path, name = changed / "adapter_model.safetensors", f"mlp.up_proj.lora_{part}"
        tensors = load_file(path)
        next(tensor for key, tensor in tensors.items() if name in key)[-1, -1] += 1e-6
        save_file(tensors, path)
        others.add(fingerprint(changed))
    assert len(others | {original}) == 6


def test_an_adapter_is_had_by_the_name_that_it_was_loaded_under(fitted: Fitted, tmp_path: Path) -> None:
    adapters = AdapterSet(fitted.base.config, torch.float32, CPU)
    with pytest.raises(RequestError, match="no adapter 'mine'; loaded are: none"):
        adapters.get("mine")
    first = adapters.load("mine", fitted.folders["a"])
    assert adapters.get("mine") is first
    with pytest.raises(WeightsError, match="cannot read"):
        adapters.load("mine", tmp_path)
    assert adapters.get("mine") is first, "a failed load changes nothing"
    second = adapters.load("mine", fitted.folders["b"])
    assert adapters.get("mine") is second
    with pytest.raises(RequestError, match="no adapter 'other'; loaded are: mine"):
        adapters.get("other")


def test_an_adapter_of_another_model_or_of_the_lm_head_is_refused(fitted: Fitted, tmp_path: Path) -> None:
    wider = AdapterSet(tiny_config(ffn_size=41), torch.float32, CPU)
    with pytest.raises(WeightsError, match="was it trained on another model"):
        wider.load("a", fitted.folders["a"])
    path = write_adapter(tmp_path / "head", fitted.base)
    matrices = {"A": torch.ones(3, 32), "B": torch.ones(fitted.base.config.vocab_size, 3)}
    save_file(
        {f"base_model.model.lm_head.lora_{part}.weight": matrix for part, matrix in matrices.items()},
        path / "adapter_model.safetensors",
    )
    with pytest.raises(WeightsError, match="changes the LM head: merge it when the model is loaded"):
        fitted.set.load("head", path)
