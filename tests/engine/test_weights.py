"""Both kinds of weight files fill the same parameters; a damaged or incomplete file raises one clear error."""

from __future__ import annotations

import re
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import WeightsError
from engine.families import dump_config, parse_config
from engine.layers import DecoderWeights
from engine.weights import Parameters, load, save_folder
from engine.weights.gguf import (
    BLOCK_FORMATS,
    EXPERT_NAMES,
    LAYER_NAMES,
    ROPE_DIVISORS,
    TOP_NAMES,
    GGUFModel,
    _dequantize,
)
from tests.engine.tiny import LLAMA, MISTRAL, QWEN3, QWEN3_MOE, tiny_config, tiny_parameters

GGUF_NAMES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
}

TIED_LLAMA = LLAMA | {"tied_embeddings": True}
GGUF_MODELS = {
    "qwen2": {},
    "llama, tied": TIED_LLAMA,
    "llama, one KV head": LLAMA | {"num_kv_heads": 1},
    "llama, RoPE scaling": LLAMA | {"rope_divisors": (1.0, 1.5, 8.0, 8.0)},
    "mistral": MISTRAL | {"sliding_window": 7, "head_dim": 16},
    "qwen3": QWEN3 | {"head_dim": 16, "tied_embeddings": True},
    "qwen3 moe": QWEN3_MOE,
}


def same(first: Parameters, second: Parameters) -> bool:
    ours, theirs = first.slots(), second.slots()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def permuted(tensor: Tensor, num_heads: int) -> Tensor:
    """How llama.cpp stores Llama's query and key rows: the halves of each head interleaved."""
    half = tensor.shape[0] // num_heads // 2
    return tensor.reshape(num_heads, 2, half, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _stack_experts(parameters: Parameters) -> dict[str, Tensor]:
    """The tensors, those of all experts of a layer as one."""
    stacked: dict[str, list[Tensor]] = {}
    for name, tensor in parameters.slots().items():
        stacked.setdefault(re.sub(r"experts\.\d+\.", "experts.", name), []).append(tensor)
    return {name: torch.stack(parts) if ".experts." in name else parts[0] for name, parts in stacked.items()}


def write_gguf(
    path: Path,
    parameters: Parameters,
    quantised: dict[str, gguf.GGMLQuantizationType] | None = None,
    extra: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    leave_out: str = "",
    arch: str = "",
) -> Path:
    """A GGUF file as llama.cpp's converter lays it out."""
    config = parameters.config
    arch = arch or GGUF_NAMES[config.architecture]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.ropes[0].theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.window is not None:
        writer.add_sliding_window(config.window)
    if config.experts is not None:
        writer.add_expert_count(config.experts.num_experts)
        writer.add_expert_used_count(config.experts.num_used)
        writer.add_expert_feed_forward_length(config.experts.ffn_size)
    if config.ropes[0].divisors is not None:
        writer.add_tensor(ROPE_DIVISORS, np.array(config.ropes[0].divisors, np.float32))
    extra(writer)
    to_gguf = {hf: name for name, hf in TOP_NAMES.items()}
    parts = {hf: name for name, hf in LAYER_NAMES.items()}
    for hf_name, tensor in _stack_experts(parameters).items():
        if hf_name in to_gguf:
            name = to_gguf[hf_name]
        elif ".experts." in hf_name:
            _, _, layer, _, _, module, kind = hf_name.split(".")
            name = f"blk.{layer}.{ {hf: name for name, hf in EXPERT_NAMES.items()}[module] }.{kind}"
        else:
            _, _, layer, *middle, kind = hf_name.split(".")
            name = f"blk.{layer}.{parts['.'.join(middle)]}.{kind}"
        if arch == "llama" and "attn_q." in name:
            tensor = permuted(tensor, config.num_heads)
        if arch == "llama" and "attn_k." in name:
            tensor = permuted(tensor, config.num_kv_heads)
        if name == leave_out:
            continue
        kind = (quantised or {}).get(name)
        if kind is None:
            writer.add_tensor(name, tensor.numpy())
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", GGUF_MODELS)
def test_a_gguf_file_gives_the_config_and_the_tensors_that_were_written(tmp_path: Path, family: str) -> None:
    parameters = tiny_parameters(tiny_config(**GGUF_MODELS[family], rms_norm_eps=2.0**-20))
    model = GGUFModel(write_gguf(tmp_path / "m.gguf", parameters))
    assert model.config == parameters.config
    assert same(load(model, torch.float32), parameters)


def test_a_gguf_llama_with_a_qkv_bias_is_what_transformers_calls_qwen2(tmp_path: Path) -> None:
    parameters = tiny_parameters(tiny_config(rms_norm_eps=2.0**-20))
    model = GGUFModel(write_gguf(tmp_path / "m.gguf", parameters, arch="llama"))
    assert model.config == parameters.config
    assert same(load(model, torch.float32), parameters)


@pytest.mark.parametrize(
    ("extra", "divisors"),
    [
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.NONE), None),
        (lambda writer: writer.add_rope_scaling_factor(1.0), None),
        (lambda writer: writer.add_rope_scaling_factor(4.0), (4.0, 4.0, 4.0, 4.0)),
        (lambda writer: writer.add_float32("llama.rope.scale_linear", 2.0), (2.0, 2.0, 2.0, 2.0)),
        (
            lambda writer: (
                writer.add_rope_scaling_factor(2.0),
                writer.add_tensor(ROPE_DIVISORS, np.array([1, 1, 1.5, 8], np.float32)),
            ),
            (2.0, 2.0, 3.0, 16.0),
        ),
        (
            lambda writer: (
                writer.add_rope_scaling_factor(2.0),
                writer.add_rope_scaling_type(gguf.RopeScalingType.NONE),
            ),
            None,
        ),
    ],
)
def test_gguf_rope_scaling_is_read_as_llama_cpp_reads_it(
    tmp_path: Path, extra: Callable[[gguf.GGUFWriter], None], divisors: tuple[float, ...] | None
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_parameters(tiny_config(**LLAMA)), extra=extra)
    assert GGUFModel(path).config.ropes[0].divisors == divisors


def test_yarn_is_read_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    def add_yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    parameters = tiny_parameters(tiny_config(**LLAMA, max_positions=64))
    config = GGUFModel(write_gguf(tmp_path / "m.gguf", parameters, extra=add_yarn)).config
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    expected = parse_config(dump_config(parameters.config) | {"rope_scaling": yarn})
    assert config.ropes == expected.ropes
    assert config.ropes[0].scale > 1.1
    assert config.max_positions == 256

    def add_both(writer: gguf.GGUFWriter) -> None:
        add_yarn(writer)
        writer.add_tensor(ROPE_DIVISORS, np.array([1, 1, 1.5, 8], np.float32))

    with pytest.raises(WeightsError, match="by YaRN and by rope_freqs"):
        GGUFModel(write_gguf(tmp_path / "both.gguf", parameters, extra=add_both))


def test_quantised_tensors_are_dequantised_as_the_format_says(tmp_path: Path) -> None:
    parameters = tiny_parameters(tiny_config())
    kind, name = gguf.GGMLQuantizationType.Q8_0, "blk.1.attn_v.weight"
    path = write_gguf(tmp_path / "m.gguf", parameters, quantised={name: kind})
    stored = parameters.slots()["model.layers.1.self_attn.v_proj.weight"]
    loaded = load(GGUFModel(path), torch.float32).slots()["model.layers.1.self_attn.v_proj.weight"]
    steps = stored.view(-1, 32).abs().amax(dim=1, keepdim=True) / 127  # Q8_0: 32 numbers share a scale
    off_by = (loaded - stored).view(-1, 32).abs() / steps
    assert 0.4 < off_by.max() < 0.6


@pytest.mark.parametrize("kind", BLOCK_FORMATS, ids=lambda kind: str(kind.name))
def test_numbers_of_every_format_are_those_of_the_library(kind: gguf.GGMLQuantizationType) -> None:
    """All bytes are drawn, the scales, too; NaN is compared as a number."""
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng()
    data = random.integers(0, 256, (6, 2048 // block * num_bytes), dtype=np.uint8)
    plain = {"F32": np.float32, "F16": np.float16}.get(kind.name)
    data = data if plain is None else data.view(plain)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind)))
    found = _dequantize(data, kind, torch.device("cpu")).view(expected.shape)
    assert torch.equal(found.nan_to_num(3.0), expected.nan_to_num(3.0))
    assert torch.equal(found.isnan(), expected.isnan())


def test_a_format_that_few_files_have_goes_through_the_library(tmp_path: Path) -> None:
    data = np.arange(84 * 2, dtype=np.uint8).reshape(2, 84)
    kind = gguf.GGMLQuantizationType.Q2_K
    assert kind not in BLOCK_FORMATS
    assert np.array_equal(_dequantize(data, kind, torch.device("cpu")).numpy(), gguf.quants.dequantize(data, kind))


def test_a_gguf_file_is_dequantised_on_the_device_that_holds_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_parameters(tiny_config()))
    asked: list[torch.device] = []

    def on_device(data: np.ndarray, kind: gguf.GGMLQuantizationType, device: torch.device) -> Tensor:
        asked.append(device)
        return _dequantize(data, kind, torch.device("cpu")).to(device)

    monkeypatch.setattr("engine.weights.gguf._dequantize", on_device)
    loaded = load(GGUFModel(path), torch.float32, device="meta")
    assert loaded.layer(0).gate_up.is_meta
    assert {device.type for device in asked} == {"meta"}


def test_bf16_is_the_rounded_float32(tmp_path: Path) -> None:
    parameters = tiny_parameters(tiny_config())
    path = write_gguf(tmp_path / "m.gguf", parameters)
    rounded = load(GGUFModel(path), torch.bfloat16).slots()
    assert all(torch.equal(rounded[name], tensor.bfloat16()) for name, tensor in parameters.slots().items())


def test_a_checkpoints_tensors_fill_all_of_the_parameters_and_parts_of_fused_projections() -> None:
    parameters = Parameters(tiny_config(), torch.float32)
    slots = parameters.slots()
    assert sum(tensor.nbytes for tensor in slots.values()) == parameters.num_bytes
    slots["model.layers.0.self_attn.k_proj.weight"].fill_(3.0)
    query_rows, key_rows, _ = parameters.config.get_qkv_sizes(0)
    assert (parameters.layer(0).qkv[query_rows : query_rows + key_rows] == 3.0).all()


def test_a_layer_handed_over_is_forgotten_so_that_its_taker_can_free_it() -> None:
    parameters = Parameters(tiny_config(num_layers=3), torch.float32)
    watched = [weakref.ref(parameters.layer(index).gate_up) for index in range(3)]
    for index, layer in enumerate(parameters.take_layers()):
        assert layer.gate_up is watched[index]()
        assert [tensor() is None for tensor in watched] == [number < index for number in range(3)]
    with pytest.raises(AssertionError, match="handed over"):
        parameters.slots()


def test_a_layer_is_read_when_it_is_asked_for_and_once(tmp_path: Path) -> None:
    config = tiny_config(num_layers=3)
    slots, names = tiny_parameters(config).slots(), list[str]()

    def read(name: str) -> Tensor:
        names.append(name)
        return slots[name]

    parameters = Parameters(config, torch.float32, read=read)
    assert not [name for name in names if ".layers." in name]
    for index, layer in enumerate(parameters.take_layers()):
        assert {name.split(".")[2] for name in names if ".layers." in name} == set(map(str, range(index + 1)))
        assert torch.equal(layer.down, slots[f"model.layers.{index}.mlp.down_proj.weight"])
    assert sorted(names) == sorted(slots)


@pytest.mark.parametrize("num_taken", [0, 1, 3])
def test_the_fingerprint_is_the_same_however_many_layers_were_taken(num_taken: int) -> None:
    whole, parameters = (tiny_parameters(tiny_config(num_layers=3)) for _ in range(2))
    for _ in zip(range(num_taken), parameters.take_layers(), strict=False):
        pass
    assert parameters.fingerprint("int8") == whole.fingerprint("int8")
    assert parameters.fingerprint("int8") == whole.fingerprint("int8")


def test_two_files_with_the_same_tensor_are_refused(folder: Path) -> None:
    save_file({"model.norm.weight": torch.ones(32)}, folder / "other.safetensors")
    with pytest.raises(WeightsError, match=r"both hold 'model\.norm\.weight'"):
        load(folder, torch.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_folder(tiny_parameters(tiny_config()), tmp_path)
    return tmp_path


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_several_files_make_one_model(folder: Path) -> None:
    expected = load(folder, torch.float32)
    expected.slots()  # reads all
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, part in enumerate((names[:7], names[7:]), start=1):
        save_file({name: tensors[name] for name in part}, folder / f"model-0000{number}-of-00002.safetensors")
    assert same(load(folder, torch.float32), expected)


def test_a_tied_model_may_carry_its_embedding_twice(tmp_path: Path) -> None:
    parameters = tiny_parameters(tiny_config(**TIED_LLAMA))
    save_folder(parameters, tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    assert same(load(tmp_path, torch.float32), parameters)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"), "lacks 1 tensors.*layers.1.mlp.up_proj"),
        (lambda tensors: tensors.update({"model.extra": torch.zeros(1)}), "model.extra"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.zeros(31)}), r"\(31,\); expected \(32,\)"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_named(
    folder: Path, change: Callable[[dict[str, Tensor]], None], said: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(WeightsError, match=said):
        load(folder, torch.float32)


@pytest.mark.parametrize("content", [b"", b"\xff", b"{", b"[]", b"null", b"{}"])
def test_a_damaged_config_is_one_error(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(WeightsError):
        load(folder, torch.float32)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"holds no \.safetensors"):
        load(folder, torch.float32)
    with pytest.raises(WeightsError, match=r"cannot read .*config\.json: No such file"):
        load(tmp_path / "nowhere", torch.float32)
    with pytest.raises(WeightsError, match="cannot read"):
        GGUFModel(tmp_path / "nowhere.gguf")


@pytest.mark.parametrize("keep", [0, 1, 8, 100, 0.5, 0.99])
def test_a_cut_safetensors_file_is_one_error(folder: Path, keep: float) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(WeightsError, match="damaged"):
        load(folder, torch.float32)


def test_parameters_without_memory_for_them_are_one_error() -> None:
    with pytest.raises(WeightsError, match=r"no memory for .* GB of parameters"):
        Parameters(tiny_config(vocab_size=1 << 24, hidden_size=1 << 20), torch.float32)
    small_top = Parameters(tiny_config(hidden_size=4096, ffn_size=1 << 24), torch.float32)
    with pytest.raises(WeightsError, match=r"no memory for 1649.* GB of weights"):
        DecoderWeights.from_parameters(small_top)
    with pytest.raises(WeightsError, match=r"no memory for 1649.* GB of parameters"):
        small_top.layer(0)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "RoPE scaling"),
        (lambda writer: writer.add_float32("qwen2.rope.scaling.attn_factor", 1.5), "attention factor"),
        (lambda writer: writer.add_tensor(ROPE_DIVISORS, np.ones(4, np.float32)), "only known of llama, not of qwen2"),
        (lambda writer: writer.add_sliding_window(64), "sliding-window"),
        (lambda writer: writer.add_sliding_window_pattern(2), "sliding-window"),
        (lambda writer: writer.add_expert_count(8), "mixture of experts"),
        (lambda writer: writer.add_tensor("blk.0.attn_output.bias", np.ones(32, np.float32)), "o_proj.bias"),
        (lambda writer: writer.add_rope_dimension_count(4), "a part of each head"),
        (lambda writer: writer.add_tensor("blk.0.ffn_gate_inp.weight", np.ones(4, np.float32)), "mlp.gate.weight"),
    ],
)
def test_gguf_models_of_another_kind_are_refused_by_name(
    tmp_path: Path, extra: Callable[[gguf.GGUFWriter], None], said: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_parameters(tiny_config()), extra=extra)
    with pytest.raises(WeightsError, match=said):
        load(GGUFModel(path), torch.float32)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (lambda writer: writer.add_tensor(ROPE_DIVISORS, np.ones(3, np.float32)), "3 RoPE factors for 4 frequencies"),
        (lambda writer: writer.add_tensor(ROPE_DIVISORS, np.zeros(4, np.float32)), "a RoPE factor is outside"),
        (lambda writer: writer.add_tensor(ROPE_DIVISORS, np.full(4, np.nan, np.float32)), "a RoPE factor is outside"),
        (lambda writer: writer.add_tensor("blk.0.attn_q.bias", np.ones(32, np.float32)), "lacks .*bias"),
        (lambda writer: writer.add_tensor("blk.0.attn_q_norm.weight", np.ones(8, np.float32)), "q_norm"),
    ],
)
def test_a_gguf_llama_of_another_kind_is_refused_by_name(
    tmp_path: Path, extra: Callable[[gguf.GGUFWriter], None], said: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_parameters(tiny_config(**LLAMA)), extra=extra)
    with pytest.raises(WeightsError, match=said):
        load(GGUFModel(path), torch.float32)


def test_a_gguf_window_with_a_qkv_bias_is_refused(tmp_path: Path) -> None:
    parameters = tiny_parameters(tiny_config())
    path = write_gguf(tmp_path / "m.gguf", parameters, arch="llama", extra=lambda writer: writer.add_sliding_window(8))
    with pytest.raises(WeightsError, match="window together with a QKV bias"):
        GGUFModel(path)


def test_an_unknown_gguf_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(WeightsError, match="'mamba' is not supported; supported are: llama, qwen2, qwen3"):
        GGUFModel(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_up.weight", "output_norm.weight"])
def test_a_missing_gguf_tensor_is_one_error(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_parameters(tiny_config()), leave_out=name)
    with pytest.raises(WeightsError, match=r"token_embd|lacks 1 tensors"):
        load(GGUFModel(path), torch.float32)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", tiny_parameters(tiny_config())).read_bytes()


def load_bytes(path: Path, content: bytes) -> ModelConfig:
    path.write_bytes(content)
    return load(GGUFModel(path), torch.float32).config


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_cut_gguf_file_is_one_error(tmp_path: Path, gguf_bytes: bytes, share: float) -> None:
    with pytest.raises(WeightsError):
        load_bytes(tmp_path / "m.gguf", gguf_bytes[: int(share * len(gguf_bytes))])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2500), byte=st.integers(1, 255))
def test_a_changed_byte_in_a_gguf_header_gives_a_model_or_one_error(
    tmp_path: Path, gguf_bytes: bytes, at: int, byte: int
) -> None:
    damaged = bytearray(gguf_bytes)
    damaged[at] ^= byte
    with suppress(WeightsError):
        load_bytes(tmp_path / "m.gguf", bytes(damaged))


@pytest.mark.parametrize("kind", [gguf.GGUFValueType.UINT8, gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY])
def test_an_array_that_goes_on_behind_the_end_of_the_file_is_one_error(
    tmp_path: Path, kind: gguf.GGUFValueType
) -> None:
    """The library went on without end, and without memory in the end."""
    name, array = b"general.tags", gguf.GGUFValueType.ARRAY
    header = struct.pack("<IIQQ", gguf.GGUF_MAGIC, 3, 0, 1)
    field = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", array, kind, 1 << 40)
    with pytest.raises(WeightsError, match="it ends at byte"):
        load_bytes(tmp_path / "m.gguf", header + field)


def test_arrays_within_arrays_without_end_are_one_error(tmp_path: Path) -> None:
    array = gguf.GGUFValueType.ARRAY
    header = struct.pack("<IIQQ", gguf.GGUF_MAGIC, 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", array)
    with pytest.raises(WeightsError, match="is damaged or not a GGUF model"):
        load_bytes(tmp_path / "m.gguf", header + struct.pack("<IQ", array, 1) * 20_000)


def test_weights_that_cannot_be_written_are_an_oserror(tmp_path: Path) -> None:
    """The library has an error of its own for a full disk; whoever keeps copies looks for OSError."""
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(OSError, match="cannot write"):
        save_folder(Parameters(tiny_config(), torch.float32), tmp_path)


def test_every_byte_of_the_weights_is_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of single columns, a sparse one, or a swap of two chunks makes another model."""
    config = tiny_config()
    before = tiny_parameters(config).fingerprint()
    assert tiny_parameters(config).fingerprint() == before
    for name, tensor in tiny_parameters(config).slots().items():
        for place in (0, 1, tensor.numel() // 2, tensor.numel() - 1):
            changed = tiny_parameters(config)
            changed.slots()[name].view(-1)[place] += 1
            assert changed.fingerprint() != before, (name, place)
    monkeypatch.setattr("engine.weights.parameters.CHUNK_BYTES", 256)
    in_chunks, swapped = tiny_parameters(config), tiny_parameters(config)
    rows = swapped.embedding.view(torch.uint8).view(-1)
    rows[:512] = torch.cat([rows[256:512], rows[:256]])
    assert in_chunks.fingerprint() != swapped.fingerprint()


def test_the_fingerprint_tells_configs_dtypes_and_quantisation_apart() -> None:
    config = tiny_config()
    names = {
        tiny_parameters(config).fingerprint(),
        tiny_parameters(config).fingerprint("int8"),
        tiny_parameters(tiny_config(rope_theta=5.0)).fingerprint(),
    }
    assert len(names) == 3


def test_a_config_that_is_nested_too_deep_is_one_clear_error(tmp_path: Path) -> None:
    save_folder(tiny_parameters(tiny_config()), tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(WeightsError, match="not valid JSON"):
        load(tmp_path, torch.float32)
