"""The plain tensors of one decoder: fused projections, and the views of them that a checkpoint's tensors fill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import WeightsError


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One layer's tensors. Projections are [out_features, in_features], as for `torch.nn.functional.linear`."""

    attention_norm: Tensor  # [hidden_size]
    qkv: Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    qkv_bias: Tensor | None  # [(num_heads + 2 * num_kv_heads) * head_dim]
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    attention_out: Tensor  # [hidden_size, num_heads * head_dim]
    ffn_norm: Tensor  # [hidden_size]
    gate_up: Tensor  # [2 * ffn_size, hidden_size]
    down: Tensor  # [hidden_size, ffn_size]


class Parameters:
    """All plain tensors of a decoder, each with memory of its own, so that a layer can be taken out and freed."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.config = config
        self.dtype = dtype
        shapes = dict(_list_shapes(config))
        self.num_bytes = sum(prod(shape) for shape in shapes.values()) * dtype.itemsize
        tensors = _allocate(shapes, self.num_bytes, dtype, device)
        self.embedding = tensors["embedding"]
        self.final_norm = tensors["final_norm"]
        self.lm_head = self.embedding if config.tied_embeddings else tensors["lm_head"]
        self.layers = [
            LayerParameters(
                **{name: tensors.get(f"{layer}.{name}") for name in LayerParameters.__dataclass_fields__}  # type: ignore[arg-type]
            )
            for layer in range(config.num_layers)
        ]

    def take_layers(self) -> Iterator[LayerParameters]:
        """Yield the layers, first to last, and forget each one, so that the caller can free it."""
        while self.layers:
            yield self.layers.pop(0)

    def slots(self) -> dict[str, Tensor]:
        """Return the view into which each tensor of a Hugging Face checkpoint is copied, by its name."""
        config = self.config
        assert len(self.layers) == config.num_layers, "the layers have been handed over"
        slots = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.final_norm}
        if not config.tied_embeddings:
            slots["lm_head.weight"] = self.lm_head
        for index, layer in enumerate(self.layers):
            at = f"model.layers.{index}"
            slots[f"{at}.input_layernorm.weight"] = layer.attention_norm
            slots[f"{at}.post_attention_layernorm.weight"] = layer.ffn_norm
            slots[f"{at}.self_attn.o_proj.weight"] = layer.attention_out
            slots[f"{at}.mlp.down_proj.weight"] = layer.down
            slots[f"{at}.mlp.gate_proj.weight"], slots[f"{at}.mlp.up_proj.weight"] = layer.gate_up.chunk(2)
            for name, part in zip("qkv", torch.split(layer.qkv, list(config.qkv_sizes)), strict=True):
                slots[f"{at}.self_attn.{name}_proj.weight"] = part
            if layer.query_norm is not None and layer.key_norm is not None:
                slots[f"{at}.self_attn.q_norm.weight"] = layer.query_norm
                slots[f"{at}.self_attn.k_norm.weight"] = layer.key_norm
            if layer.qkv_bias is not None:
                for name, part in zip("qkv", torch.split(layer.qkv_bias, list(config.qkv_sizes)), strict=True):
                    slots[f"{at}.self_attn.{name}_proj.bias"] = part
        return slots

    def fill(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy every tensor into its slot; raises WeightsError for an unknown, missing or misshapen one."""
        slots = self.slots()
        for name, tensor in tensors:
            slot = slots.pop(name, None)
            if slot is None:
                if name == "lm_head.weight" and self.config.tied_embeddings:
                    continue  # some checkpoints of tied models carry the embedding twice
                raise WeightsError(f"the model has a tensor {name!r} that its architecture does not use (or has twice)")
            if slot.shape != tensor.shape:
                raise WeightsError(f"tensor {name!r} is {tuple(tensor.shape)}; expected {tuple(slot.shape)}")
            slot.copy_(tensor)
        if slots:
            raise WeightsError(f"the model lacks {len(slots)} tensors, {min(slots)!r} among them")


def _list_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, ffn = config.hidden_size, config.ffn_size
    rows = sum(config.qkv_sizes)
    yield "embedding", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        yield f"{layer}.attention_norm", (hidden,)
        yield f"{layer}.qkv", (rows, hidden)
        if config.qkv_bias:
            yield f"{layer}.qkv_bias", (rows,)
        if config.qk_norm:
            yield f"{layer}.query_norm", (config.head_dim,)
            yield f"{layer}.key_norm", (config.head_dim,)
        yield f"{layer}.attention_out", (hidden, config.num_heads * config.head_dim)
        yield f"{layer}.ffn_norm", (hidden,)
        yield f"{layer}.gate_up", (2 * ffn, hidden)
        yield f"{layer}.down", (hidden, ffn)
    yield "final_norm", (hidden,)
    if not config.tied_embeddings:
        yield "lm_head", (config.vocab_size, hidden)


def _allocate(
    shapes: dict[str, tuple[int, ...]], num_bytes: int, dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    try:
        torch.empty(num_bytes, dtype=torch.uint8, device=device)  # all at once: the system may refuse only the whole
        return {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    except (RuntimeError, OverflowError) as error:  # torch.OutOfMemoryError is a RuntimeError
        raise WeightsError(
            f"there is no memory for {num_bytes / 1e9:.1f} GB of parameters; take a smaller model"
        ) from error
