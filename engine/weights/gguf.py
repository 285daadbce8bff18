"""Reads GGUF files: a decoder's config and its tensors, dequantised, under Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from engine.config import ExpertsConfig, LayerSpec, ModelConfig, Rope, check_size
from engine.errors import WeightsError
from engine.rope_config import DEFAULT_THETA, compute_yarn_divisors, compute_yarn_scale

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")
"""GGUF's names of the architectures that this decoder runs; its `llama` includes Mistral."""

ROPE_DIVISORS = "rope_freqs.weight"
"""The tensor that llama.cpp's converter makes from Llama 3's RoPE scaling."""

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
EXPERT_NAMES = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
"""Tensors that hold all experts of a layer, [num_experts, out_features, in_features]."""


ARRAY = int(GGUFValueType.ARRAY)
ARRAY_HEADER = np.dtype([("kind", "<u4"), ("length", "<u8")])


class _ArrayReader(GGUFReader):  # type: ignore[misc]  # the library is not typed here
    """The library's reader with a plain array of the file's bytes: slices of a `memmap` take twice as long.

    An array that goes on beyond the file's end is an error. The library reads nothing there, so that a damaged array
    of 2**40 numbers, each of no bytes, fills the memory.
    """

    @property
    def data(self) -> np.ndarray[Any, Any]:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray[Any, Any]) -> None:
        self._data = mapped.view(np.ndarray)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if int(raw_type) == ARRAY:
            first = int(orig_offs) + ARRAY_HEADER.itemsize
            header = self._data[first - ARRAY_HEADER.itemsize : first].view(ARRAY_HEADER.newbyteorder(self.byte_order))
            if int(header["length"][0]) > len(self._data) - first:  # a value takes a byte at least
                raise ValueError(
                    f"it ends at byte {len(self._data):,}, and an array has {header['length'][0]:,} values"
                )
        return super()._get_field_parts(orig_offs, raw_type)


DEQUANTISED_AT_A_TIME = 1 << 18
"""Numbers: the temporary arrays stay in a CPU's cache, which halves the time."""
DEQUANTISED_ON_A_CARD = 1 << 26
"""The same for a card: 256 MB in float32, some five times that meanwhile."""


class GGUFModel:
    """One open GGUF file. Opening parses the header and all metadata, which takes seconds for a
    vocabulary of 150,000.
    """

    def __init__(self, path: Path) -> None:
        with _translate_errors(path):
            self._reader = _ArrayReader(path)
            self.config = _read_config(self._reader)
            self._interleaved = _read_field(self._reader, "general.architecture") == "llama"
        self._path = path
        self._tensors: dict[str, tuple[ReaderTensor, int | None]] = {}  # with the number of the expert
        for tensor in self._reader.tensors:
            if tensor.name != ROPE_DIVISORS:
                self._tensors |= {name: (tensor, expert) for name, expert in _list_hf_names(tensor)}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the parameters' tensors by their Hugging Face names."""
        return {
            name: tuple(map(int, reversed(tensor.shape)))[0 if expert is None else 1 :]
            for name, (tensor, expert) in self._tensors.items()
        }

    def read(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """Return a tensor with its Hugging Face name, in float32 on a device, which dequantises it."""
        tensor, expert = self._tensors[name]
        shape = tuple(map(int, reversed(tensor.shape)))[0 if expert is None else 1 :]
        data = tensor.data if expert is None else tensor.data[expert]
        values = torch.empty(shape, device=device)
        at_a_time = DEQUANTISED_AT_A_TIME if values.device.type == "cpu" else DEQUANTISED_ON_A_CARD
        step = max(1, at_a_time // shape[-1]) if len(shape) > 1 else shape[0]
        with _translate_errors(self._path):
            for first in range(0, shape[0], step):
                rows = slice(first, first + step)
                part = values[rows]
                part.copy_(_dequantize(data[rows], tensor.tensor_type, values.device).view(part.shape))
        return self._unpermute(tensor, values)

    def metadata(self, key: str) -> Any:
        """Return a metadata value as Python holds it (str, int, float, list), or None."""
        return _read_field(self._reader, key)

    def _unpermute(self, tensor: ReaderTensor, values: Tensor) -> Tensor:
        """Undo llama.cpp's reordering of Llama's query and key rows, made there for interleaved RoPE."""
        kind = tensor.name.split(".")[-2]
        if not self._interleaved or kind not in ("attn_q", "attn_k"):
            return values
        heads = self.config.num_heads if kind == "attn_q" else self.config.num_kv_heads
        return values.view(heads, -1, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)


def _dequantize(data: np.ndarray[Any, Any], kind: GGMLQuantizationType, device: torch.device) -> Tensor:
    """Return numbers in float32, in the order of the file's. Formats that few files have go through the library."""
    unpack = BLOCK_FORMATS.get(kind)
    if unpack is None:
        return torch.from_numpy(np.array(dequantize(data, kind))).to(device)
    mapped = np.array(data.reshape(-1).view(np.uint8))  # a copy: torch warns of memory that cannot be written
    blocks = torch.from_numpy(mapped).view(-1, GGML_QUANT_SIZES[kind][1]).to(device)
    return unpack(blocks)


def _read_half(blocks: Tensor, at: int) -> Tensor:
    """Return the fp16 number at a byte of each block, float32 [num_blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _read_bits(packed: Tensor, num_bits: int, run: int) -> Tensor:
    """Unpack integers of so many bits from bytes, uint8 [num_blocks, num_bytes * 8 / num_bits]: each run of bytes holds
    the lowest bits of its integers first.
    """
    shifts = torch.arange(0, 8, num_bits, dtype=torch.uint8, device=packed.device)[:, None]
    runs = packed.reshape(len(packed), -1, 1, run)
    return (runs >> shifts).bitwise_and_((1 << num_bits) - 1).flatten(1)


def _unpack_q4_0(blocks: Tensor) -> Tensor:
    return (_read_bits(blocks[:, 2:], 4, 16).float() - 8) * _read_half(blocks, 0)


def _unpack_q5_0(blocks: Tensor) -> Tensor:
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    upper = (blocks[:, 2:6, None] >> shifts).bitwise_and_(1).flatten(1)
    return ((_read_bits(blocks[:, 6:], 4, 16) | upper << 4).float() - 16) * _read_half(blocks, 0)


def _unpack_q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _read_half(blocks, 0)


def _unpack_q4_k(blocks: Tensor) -> Tensor:
    return _scale_groups(blocks, _read_bits(blocks[:, 16:], 4, 32))


def _unpack_q5_k(blocks: Tensor) -> Tensor:
    upper = _read_bits(blocks[:, 16:48], 1, 32)
    return _scale_groups(blocks, _read_bits(blocks[:, 48:], 4, 32) | upper << 4)


def _scale_groups(blocks: Tensor, integers: Tensor) -> Tensor:
    """Multiply 8 groups of 32 integers by their scales and subtract their minima: integers of 6 bits in 12 bytes, times
    two fp16 numbers.
    """
    low, high, both = blocks[:, 4:16].view(-1, 3, 4).unbind(dim=1)
    scales = torch.cat([low & 63, both & 15 | low >> 2 & 48], dim=1).float() * _read_half(blocks, 0)
    minima = torch.cat([high & 63, both >> 4 | high >> 2 & 48], dim=1).float() * _read_half(blocks, 2)
    groups = integers.view(-1, 8, 32).float()
    return groups.mul_(scales[..., None]).sub_(minima[..., None]).flatten(1)


def _unpack_q6_k(blocks: Tensor) -> Tensor:
    integers = _read_bits(blocks[:, :128], 4, 64) | _read_bits(blocks[:, 128:192], 2, 32) << 4
    scales = blocks[:, 192:208].view(torch.int8).float() * _read_half(blocks, 208)
    return (integers.view(-1, 16, 16).float() - 32).mul_(scales[..., None]).flatten(1)


BLOCK_FORMATS: Mapping[GGMLQuantizationType, Callable[[Tensor], Tensor]] = {
    GGMLQuantizationType.F32: lambda numbers: numbers.view(torch.float32),
    GGMLQuantizationType.F16: lambda numbers: numbers.view(torch.float16).float(),
    GGMLQuantizationType.BF16: lambda numbers: numbers.view(torch.bfloat16).float(),
    GGMLQuantizationType.Q4_0: _unpack_q4_0,
    GGMLQuantizationType.Q5_0: _unpack_q5_0,
    GGMLQuantizationType.Q8_0: _unpack_q8_0,
    GGMLQuantizationType.Q4_K: _unpack_q4_k,
    GGMLQuantizationType.Q5_K: _unpack_q5_k,
    GGMLQuantizationType.Q6_K: _unpack_q6_k,
}
"""Blocks of a format, uint8 [num_blocks, bytes of a block], as numbers in float32 [num_blocks, numbers of a block]."""


def _read_config(reader: GGUFReader) -> ModelConfig:
    arch = _read_field(reader, "general.architecture")
    if arch not in ARCHITECTURES:
        raise WeightsError(f"GGUF architecture {arch!r} is not supported; supported are: {', '.join(ARCHITECTURES)}")
    _refuse_unsupported(reader, arch)

    def number(key: str, default: float | None = None) -> float:
        value = _read_field(reader, f"{arch}.{key}")
        if value is None:
            value = default
        if value is None:
            raise WeightsError(f"the GGUF metadata has no {arch}.{key}")
        return float(value)

    names = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in names:
        raise WeightsError("the GGUF file holds no token_embd.weight")
    heads, hidden = int(number("attention.head_count")), int(number("embedding_length"))
    head_dim = int(number("attention.key_length", hidden // heads))
    if int(number("rope.dimension_count", head_dim)) != head_dim:
        raise WeightsError("rotary embedding of a part of each head is not supported yet; take a model without it")
    window = int(number("attention.sliding_window", 0)) or None
    qkv_bias = arch == "qwen2" or (arch == "llama" and "blk.0.attn_q.bias" in names)
    yarn = _read_yarn(reader)
    rope = Rope(
        theta=number("rope.freq_base", DEFAULT_THETA),
        divisors=_rope_divisors(reader, names.get(ROPE_DIVISORS), head_dim),
        scale=1.0 if yarn is None else compute_yarn_scale(yarn[0]),
    )
    experts = None
    if arch == "qwen3moe":
        keys = "expert_count", "expert_used_count", "expert_feed_forward_length"
        num_experts, num_used, size = (int(number(key)) for key in keys)
        experts = ExpertsConfig(num_experts, num_used, size, is_normalised=True)  # llama.cpp knows no others
    num_layers = int(number("block_count"))
    check_size("num_layers", num_layers)
    return ModelConfig(
        architecture=_hf_architecture(arch, window, qkv_bias),
        layers=(LayerSpec(rope, window, has_experts=experts is not None),) * num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=head_dim,
        ffn_size=int(number("feed_forward_length")),
        vocab_size=int(names["token_embd.weight"].shape[1]),
        max_positions=_read_max_positions(reader, int(number("context_length"))),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        tied_embeddings="output.weight" not in names,
        qkv_bias=qkv_bias,
        qk_norm="head" if arch in ("qwen3", "qwen3moe") else None,
        experts=experts,
    )


def _read_yarn(reader: GGUFReader) -> tuple[float, float] | None:
    """Return YaRN's factor and the original length, None without it. llama.cpp takes its other numbers as published."""
    arch = _read_field(reader, "general.architecture")
    if _read_field(reader, f"{arch}.rope.scaling.type") != "yarn":
        return None
    factor = float(_read_field(reader, f"{arch}.rope.scaling.factor") or 1.0)
    original = _read_field(reader, f"{arch}.rope.scaling.original_context_length")
    return factor, float(original or _read_field(reader, f"{arch}.context_length"))


def _read_max_positions(reader: GGUFReader, context_length: int) -> int:
    """Return the longest sequence; with YaRN that of the scaled model."""
    yarn = _read_yarn(reader)
    return context_length if yarn is None else max(context_length, int(yarn[0] * yarn[1]))


def _refuse_unsupported(reader: GGUFReader, arch: str) -> None:
    """Raise WeightsError for settings that would silently give wrong numbers."""
    scaling = _read_field(reader, f"{arch}.rope.scaling.type")
    if scaling not in (None, "none", "linear", "yarn"):
        raise WeightsError(f"RoPE scaling {scaling!r} is not supported yet; take a model without it")
    if float(_read_field(reader, f"{arch}.rope.scaling.attn_factor") or 1.0) != 1.0:
        raise WeightsError("RoPE scaling with an attention factor is not supported yet; take a model without it")
    if arch != "llama" and any(tensor.name == ROPE_DIVISORS for tensor in reader.tensors):
        raise WeightsError(f"RoPE scaling by {ROPE_DIVISORS} is only known of llama, not of {arch}")
    if arch != "qwen3moe" and _read_field(reader, f"{arch}.expert_count"):
        raise WeightsError("a mixture of experts is not supported; take a dense model")
    partly = _read_field(reader, f"{arch}.attention.sliding_window_pattern")
    if partly or (arch != "llama" and _read_field(reader, f"{arch}.attention.sliding_window")):
        raise WeightsError(
            f"sliding-window attention in a part of the layers is not supported for {arch} yet; take a model without it"
        )


def _hf_architecture(arch: str, window: int | None, qkv_bias: bool) -> str:
    """Return the class of transformers that computes what the file describes; GGUF's `llama` covers several."""
    if arch in ("qwen3", "qwen3moe"):
        return "Qwen3ForCausalLM" if arch == "qwen3" else "Qwen3MoeForCausalLM"
    if window is not None and qkv_bias:
        raise WeightsError("a sliding window together with a QKV bias is not supported; take another model")
    if qkv_bias:
        return "Qwen2ForCausalLM"
    return "LlamaForCausalLM" if window is None else "MistralForCausalLM"


def _rope_divisors(reader: GGUFReader, stored: ReaderTensor | None, head_dim: int) -> tuple[float, ...] | None:
    """Return the stored factors times the linear one, as llama.cpp applies both; a factor without a type is a linear
    one.
    """
    arch = _read_field(reader, "general.architecture")
    yarn = _read_yarn(reader)
    if yarn is not None:
        if stored is not None:
            raise WeightsError(f"RoPE scaling by YaRN and by {ROPE_DIVISORS} is not supported; take another model")
        theta = float(_read_field(reader, f"{arch}.rope.freq_base") or DEFAULT_THETA)
        return compute_yarn_divisors(head_dim, theta, *yarn)
    linear = 1.0
    if _read_field(reader, f"{arch}.rope.scaling.type") != "none":
        old = _read_field(reader, f"{arch}.rope.scale_linear")
        linear = float(_read_field(reader, f"{arch}.rope.scaling.factor") or old or 1.0)
    if stored is None:
        return None if linear == 1.0 else (linear,) * (head_dim // 2)
    return tuple(linear * divisor for divisor in dequantize(stored.data, stored.tensor_type).ravel().tolist())


def _read_field(reader: GGUFReader, key: str) -> Any:
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def _list_hf_names(tensor: ReaderTensor) -> list[tuple[str, int | None]]:
    """Return a tensor's name in checkpoints of Hugging Face; of one that holds experts, the name of each."""
    if tensor.name in TOP_NAMES:
        return [(TOP_NAMES[tensor.name], None)]
    match tensor.name.split("."):
        case ["blk", layer, part, kind] if part in LAYER_NAMES:
            return [(f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}", None)]
        case ["blk", layer, part, "weight"] if part in EXPERT_NAMES and len(tensor.shape) == 3:
            module = f"model.layers.{layer}.mlp.experts.{{}}.{EXPERT_NAMES[part]}.weight"
            return [(module.format(expert), expert) for expert in range(int(tensor.shape[2]))]
    raise WeightsError(f"the GGUF file holds a tensor {tensor.name!r} that this decoder does not know")


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Raise one clear WeightsError for whatever the reader raises in a damaged file."""
    try:
        yield
    except (ValueError, LookupError, TypeError, ArithmeticError, NotImplementedError, RecursionError) as error:
        raise WeightsError(f"{path} is damaged or not a GGUF model: {error}") from error
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error
