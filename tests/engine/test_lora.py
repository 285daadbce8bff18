"""LoRA adapters, merged into the weights at load or kept beside the model."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.classic import merge_lora
from engine.config import ModelConfig
from engine.decoder import Decoder
from engine.errors import RequestError, WeightsError
from engine.layers import Adapter, AdapterRows, AdapterSet, LayerWeights, ProjectionKind
from engine.weights import LoraAdapter, Parameters, load, save_folder
from engine.weights.gguf import GGUFModel
from tests.engine.test_linear import random_tensor
from tests.engine.test_parity import logits_of, random_tokens, reference_logits, relative_error
from tests.engine.test_weights import write_gguf
from tests.engine.tiny import LLAMA, MISTRAL, QWEN3, tiny_config, tiny_parameters

# Merged at load by the formula W + scale * B @ A, in float32; what is not plain LoRA is refused.


RANK, ALPHA = 3, 8.0
ALL_PROJECTIONS = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
CONFIG = {  # as PEFT 0.21 writes it, but for what is null
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "tiny",
    "r": RANK,
    "lora_alpha": ALPHA,
    "lora_dropout": 0.05,
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "loftq_config": {},
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "qalora_group_size": 16,
    "rank_pattern": {},
    "alpha_pattern": {},
    "target_modules": ["q_proj", "v_proj"],
    "use_dora": False,
    "use_rslora": False,
}


def write_adapter(
    folder: Path,
    parameters: Parameters,
    *,
    ranks: dict[str, int] | None = None,
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> Path:
    """A PEFT folder that adapts every projection of layer 0 and one of layer 1; `ranks` where it is not RANK."""
    modules = [f"model.layers.0.{name}" for name in ALL_PROJECTIONS] + ["model.layers.1.self_attn.v_proj"]
    random = torch.Generator().manual_seed(3)
    tensors = {}
    for module in modules:
        rank = (ranks or {}).get(module, RANK)
        rows, columns = parameters.slots()[f"{module}.weight"].shape
        for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            matrix = 0.3 * torch.randn(shape, generator=random)
            tensors[f"base_model.model.{module}.lora_{part}.weight"] = matrix.to(dtype)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | settings))
    return folder


def expected_slots(parameters: Parameters, adapter: Path, scale: Callable[[str], float]) -> dict[str, Tensor]:
    """The formula, in float64."""
    matrices = load_file(adapter / "adapter_model.safetensors")
    slots = {name: tensor.double() for name, tensor in parameters.slots().items()}
    for name in matrices:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if module + ".weight" in slots:
            up = matrices[name.replace("lora_A", "lora_B")]
            slots[module + ".weight"] += scale(module) * up.double() @ matrices[name].double()
    return slots


@pytest.fixture
def base() -> Parameters:
    return tiny_parameters(tiny_config())


@pytest.fixture
def folder(tmp_path: Path, base: Parameters) -> Path:
    (tmp_path / "base").mkdir()
    save_folder(base, tmp_path / "base")
    return tmp_path / "base"


PATTERNS = {
    "rank_pattern": {"v_proj": 5, "mlp.down_proj": 2},
    "alpha_pattern": {r"layers\.1\.self_attn\.v_proj": 2.0, "v_proj": 6.0},
}


def pattern_rank(module: str) -> int:
    return 5 if "v_proj" in module else 2 if "down_proj" in module else RANK


def pattern_alpha(module: str) -> float:
    return ALPHA if "v_proj" not in module else 2.0 if "layers.1" in module else 6.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, lambda module: ALPHA / RANK),
        ({"use_rslora": True}, lambda module: ALPHA / math.sqrt(RANK)),
        ({"lora_alpha": 0}, lambda module: 0.0),
        (PATTERNS, lambda module: pattern_alpha(module) / pattern_rank(module)),
        (PATTERNS | {"use_rslora": True}, lambda module: pattern_alpha(module) / math.sqrt(pattern_rank(module))),
    ],
)
def test_the_update_is_added_as_the_formula_says(
    tmp_path: Path,
    base: Parameters,
    folder: Path,
    settings: dict[str, Any],
    scale: Callable[[str], float],
    dtype: torch.dtype,
) -> None:
    names = [name.removesuffix(".weight") for name in base.slots()]
    ranks = {name: pattern_rank(name) for name in names} if "rank_pattern" in settings else {}
    path = write_adapter(tmp_path / "adapter", base, ranks=ranks, dtype=dtype, **settings)
    merged = load(folder, torch.float32, LoraAdapter(path)).slots()
    expected = expected_slots(base, path, scale)
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-6, atol=1e-6)
    if scale("model.layers.0.mlp.down_proj"):
        changed = [name for name, tensor in merged.items() if not torch.equal(tensor, base.slots()[name])]
        assert len(changed) == len(ALL_PROJECTIONS) + 1


@pytest.mark.parametrize("family", [{}, LLAMA | {"num_kv_heads": 1}, MISTRAL, QWEN3 | {"head_dim": 16}])
def test_bf16_is_the_merged_float32_rounded_once_from_either_kind_of_file(
    tmp_path: Path, family: dict[str, Any]
) -> None:
    base = tiny_parameters(tiny_config(**family))
    save_folder(base, tmp_path)
    adapter = LoraAdapter(write_adapter(tmp_path / "adapter", base))
    expected = load(tmp_path, torch.float32, adapter).slots()
    gguf = GGUFModel(write_gguf(tmp_path / "m.gguf", base))
    for source in (tmp_path, gguf):
        rounded = load(source, torch.bfloat16, adapter).slots()
        assert all(torch.equal(rounded[name], tensor.bfloat16()) for name, tensor in expected.items())


def test_a_merged_model_gives_the_logits_of_transformers_with_the_adapter_beside_it(
    tmp_path: Path, base: Parameters, folder: Path
) -> None:
    path = write_adapter(tmp_path / "adapter", base)
    matrices = load_file(path / "adapter_model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    token_ids = random_tokens(30)
    plain = reference_logits(model, token_ids)

    def beside(module: str) -> Callable[[Any, tuple[Tensor], Tensor], Tensor]:
        down, up = (matrices[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
        return lambda _, inputs, output: output + ALPHA / RANK * (inputs[0] @ down.T) @ up.T

    for name in matrices:
        if name.endswith("lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            model.get_submodule(module).register_forward_hook(beside(module))
    ours = logits_of(Decoder(load(folder, torch.float32, LoraAdapter(path))), token_ids)
    assert relative_error(ours, reference_logits(model, token_ids)) < 1e-4
    assert relative_error(ours, plain) > 0.1


def test_an_adapter_merged_into_loaded_parameters_is_the_one_merged_at_load(
    tmp_path: Path, folder: Path, base: Parameters
) -> None:
    adapter = write_adapter(tmp_path / "adapter", base)
    at_load = load(folder, torch.float32, LoraAdapter(adapter)).slots()
    merged = merge_lora(load(folder, torch.float32), adapter)
    for name, tensor in merged.slots().items():
        assert torch.equal(tensor, at_load[name]), name
    assert Decoder(merged).fingerprint != Decoder(load(folder, torch.float32)).fingerprint


def test_what_cannot_be_merged_changes_nothing(tmp_path: Path, folder: Path, base: Parameters) -> None:
    adapter, other = write_adapter(tmp_path / "adapter", base), load(folder, torch.float32)
    tensors = load_file(adapter / "adapter_model.safetensors")
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    save_file(tensors | {first: torch.ones(2, RANK)}, adapter / "adapter_model.safetensors")
    with pytest.raises(WeightsError, match="was it trained on another model"):
        merge_lora(other, adapter)
    assert all(torch.equal(tensor, base.slots()[name]) for name, tensor in other.slots().items())
    Decoder(other)
    with pytest.raises(WeightsError, match="load them anew, and merge before"):
        merge_lora(other, write_adapter(tmp_path / "adapter", base))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "of type 'IA3'; only LORA"),
        ({"use_dora": True}, "use_dora is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is not supported"),
        ({"lora_bias": True}, "lora_bias is not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is not supported"),
        ({"of_a_later_version": 1}, "of_a_later_version is not supported"),
        ({"bias": "all"}, "bias 'all' is not supported"),
        ({"init_lora_weights": "pissa"}, "begun by 'pissa' belongs to a changed model"),
        ({"r": 4}, r"rank for 'model\.layers\.0.* is 4; its matrices are \(\d+, 3\) and \(3, \d+\)"),
        ({"r": 0}, "rank for .* is 0"),
        ({"r": "three"}, "adapter_config.json is damaged"),
        ({"lora_alpha": None}, "adapter_config.json is damaged"),
        ({"lora_alpha": float("nan")}, "lora_alpha for .* is nan"),
        ({"rank_pattern": {"(": 3}}, "adapter_config.json is damaged"),
        ({"rank_pattern": [1]}, "adapter_config.json is damaged"),
    ],
)
def test_adapters_that_are_not_plain_lora_are_refused_by_name(
    tmp_path: Path, base: Parameters, settings: dict[str, Any], said: str
) -> None:
    path = write_adapter(tmp_path / "adapter", base, **settings)
    with pytest.raises(WeightsError, match=said):
        LoraAdapter(path)


def test_a_missing_setting_is_named(tmp_path: Path, base: Parameters) -> None:
    path = write_adapter(tmp_path / "adapter", base)
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK}))
    with pytest.raises(WeightsError, match="has no 'lora_alpha'"):
        LoraAdapter(path)


A, B = (f"base_model.model.model.layers.0.mlp.up_proj.lora_{part}.weight" for part in "AB")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.clear(), "holds no tensors"),
        (lambda tensors: tensors.pop(A), r"only lora_B for 'model\.layers\.0\.mlp\.up_proj'"),
        (lambda tensors: tensors.pop(B), "only lora_A for"),
        (lambda tensors: tensors.update({A: torch.zeros(3)}), "up_proj.lora_A.*no matrix of a plain LoRA adapter"),
        (lambda tensors: tensors.update({"base_model.model.lm_head.weight": torch.zeros(2, 2)}), "lm_head.weight"),
        (lambda tensors: tensors.update({A.replace("lora_A", "lora_embedding_A"): torch.zeros(2, 2)}), "embedding_A"),
        (lambda tensors: tensors.update({A: torch.zeros(3, 9)}), r"\(40, 9\); the model has \(40, 32\).*another model"),
        (
            lambda tensors: tensors.update(
                {A.replace("up_proj", "gated"): tensors[A], B.replace("up_proj", "gated"): tensors[B]}
            ),
            "'model.layers.0.mlp.gated.weight', which is no projection of this model",
        ),
        (
            lambda tensors: tensors.update(
                {name.replace("layers.0.mlp.up_proj", "norm"): tensors[name] for name in (A, B)}
            ),
            "'model.norm.weight', which is no projection",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named_before_the_model_is_read(
    tmp_path: Path, base: Parameters, folder: Path, change: Callable[[dict[str, Tensor]], None], said: str
) -> None:
    path = write_adapter(tmp_path / "adapter", base)
    tensors = load_file(path / "adapter_model.safetensors")
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path / "adapter_model.safetensors")
    (folder / "model.safetensors").write_bytes(b"not read")
    with pytest.raises(WeightsError, match=said):
        load(folder, torch.float32, LoraAdapter(path))


def test_an_adapted_output_head_needs_one_of_its_own(tmp_path: Path) -> None:
    for tied in (False, True):
        base = tiny_parameters(tiny_config(tied_embeddings=tied))
        save_folder(base, tmp_path)
        matrices = {"A": torch.ones(RANK, 32), "B": torch.ones(base.config.vocab_size, RANK)}
        path = write_adapter(tmp_path / "adapter", base)
        save_file(
            {f"base_model.model.lm_head.lora_{part}.weight": matrix for part, matrix in matrices.items()},
            path / "adapter_model.safetensors",
        )
        if tied:
            with pytest.raises(WeightsError, match=r"'lm_head\.weight', which is no projection"):
                load(tmp_path, torch.float32, LoraAdapter(path))
        else:
            merged = load(tmp_path, torch.float32, LoraAdapter(path))
            torch.testing.assert_close(merged.lm_head, base.lm_head + ALPHA)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_missing_and_damaged_files_are_named(tmp_path: Path, base: Parameters, name: str) -> None:
    path = write_adapter(tmp_path / "adapter", base)
    (path / name).write_bytes(b"{")
    with pytest.raises(WeightsError, match=f"{name} is (damaged|not valid JSON)"):
        LoraAdapter(path)
    (path / name).unlink()
    with pytest.raises(WeightsError, match=rf"cannot read .*{name}: No such file"):
        LoraAdapter(path)


# Beside the model: the same logits as merged, whatever shares the batch.


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
    plain: Tensor = getattr(fitted.base.layer(layer), kind)
    x = random_tensor(sum(num_rows for _, num_rows in batch), plain.shape[1], seed=seed)
    out = F.linear(x, plain)
    adapters = [(fitted.adapters[name] if name else None, num_rows) for name, num_rows in batch]
    AdapterRows.from_sequences(adapters).apply(kind, layer, x, out)
    start = 0
    for name, num_rows in batch:
        weight = getattr((fitted.merged[name] if name else fitted.base).layer(layer), kind)
        end = start + num_rows
        torch.testing.assert_close(out[start:end], F.linear(x[start:end], weight), rtol=1e-4, atol=1e-4)
        start = end


def _adapt_layer(weights: LayerWeights, layer: int, rows: AdapterRows) -> LayerWeights:
    def adapt(part: Any, kinds: tuple[ProjectionKind, ...]) -> Any:
        changed = {kind: _adapted(getattr(part, kind), kind, layer, rows) for kind in kinds}
        return dataclasses.replace(part, **changed)

    with_attention = adapt(weights, ("qkv", "attention_out"))
    return dataclasses.replace(with_attention, feed_forward=adapt(weights.feed_forward, ("gate_up", "down")))


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_decoder_with_the_adapter_beside_it_is_the_merged_decoder(fitted: Fitted, name: str) -> None:
    token_ids = random_tokens(20)
    merged = logits_of(Decoder(_copy(fitted.merged[name])), token_ids)
    beside = Decoder(_copy(fitted.base))
    plain = logits_of(beside, token_ids)
    rows = AdapterRows.from_sequences([(fitted.adapters[name], len(token_ids))])
    layers = tuple(_adapt_layer(weights, layer, rows) for layer, weights in enumerate(beside.weights.layers))
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
    return Parameters(parameters.config, parameters.dtype, read=parameters.slots().__getitem__)


def test_in_bf16_the_update_is_rounded_and_the_rest_is_not_touched(fitted: Fitted) -> None:
    config = fitted.base.config
    adapter = Adapter(LoraAdapter(fitted.folders["a"]), config, torch.bfloat16, CPU)
    x, out = random_tensor(6, 32, dtype=torch.bfloat16), torch.zeros(6, 2 * config.ffn_size, dtype=torch.bfloat16)
    AdapterRows.from_sequences([(None, 2), (adapter, 3), (None, 1)]).apply("gate_up", 0, x, out)
    update = fitted.merged["a"].layer(0).gate_up - fitted.base.layer(0).gate_up
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
