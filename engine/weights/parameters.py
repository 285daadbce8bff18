"""The plain tensors of one decoder: fused projections, and the views of them that a checkpoint's tensors fill."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from hashlib import blake2b, sha256
from math import prod

import torch
from torch import Tensor

from engine.config import LatentConfig, ModelConfig
from engine.errors import WeightsError
from engine.families import list_modules


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One layer's tensors. Projections are [out_features, in_features], as for `torch.nn.functional.linear`."""

    attention_norm: Tensor | None  # [hidden_size]
    qkv: Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    qkv_bias: Tensor | None  # [(num_heads + 2 * num_kv_heads) * head_dim]
    query_norm: Tensor | None  # [head_dim], or [num_heads * head_dim]
    key_norm: Tensor | None  # [head_dim], or [num_kv_heads * head_dim]
    query_latent_norm: Tensor | None  # [query_rank]; these four are of latent attention
    query_up: Tensor | None  # [num_heads * (key_dim + rotary_dim), query_rank]
    latent_norm: Tensor | None  # [rank]
    latent_up: Tensor | None  # [num_heads * (key_dim + value_dim), rank]
    attention_out: Tensor  # [hidden_size, num_heads * head_dim]
    attention_out_bias: Tensor | None  # [hidden_size]
    attention_out_norm: Tensor | None  # [hidden_size], of the result of attention
    ffn_norm: Tensor | None  # [hidden_size]
    gate_up: Tensor | None  # [2 * ffn_size, hidden_size]
    gate_up_bias: Tensor | None  # [2 * ffn_size]
    down: Tensor | None  # [hidden_size, ffn_size]
    down_bias: Tensor | None  # [hidden_size]
    router: Tensor | None  # [num_experts, hidden_size]
    router_correction: Tensor | None  # float32 [num_experts], is added to the scores of a choice by sigmoid
    expert_gate_up: Tensor | None  # [num_experts, 2 * the experts' ffn_size, hidden_size]
    expert_down: Tensor | None  # [num_experts, hidden_size, the experts' ffn_size]
    shared_gate_up: Tensor | None  # [2 * shared_size, hidden_size]
    shared_down: Tensor | None  # [hidden_size, shared_size]
    ffn_out_norm: Tensor | None  # [hidden_size], of the result of the feed-forward part


class Parameters:
    """All plain tensors of a decoder. A layer's tensors are allocated, and filled by `read` if there is one, when they
    are first asked for, so that a layer at a time can be taken out, stored in another form, and freed.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        read: Callable[[str], Tensor] | None = None,
    ) -> None:
        """`read` returns the tensor of a Hugging Face checkpoint with this name, in the right shape and any dtype.

        Raises WeightsError if there is no memory for the embedding, as the methods do for a layer; they pass on what
        `read` raises.
        """
        self.config = config
        self.dtype = dtype
        self.device = device
        self._read = read
        self.num_bytes = count_parameters(config) * dtype.itemsize
        top = self._allocate(_list_top_shapes(config))
        self.embedding = top["embedding"]
        self.final_norm = top["final_norm"]
        self.lm_head = self.embedding if config.tied_embeddings else top["lm_head"]
        self._fill(self._list_top_slots())
        self._layers: dict[int, LayerParameters] = {}
        self._layer_hashes: list[bytes] = []

    def layer(self, index: int) -> LayerParameters:
        """Return a layer that has not been taken."""
        assert index >= len(self._layer_hashes), f"layer {index} has been handed over"
        if index not in self._layers:
            tensors = self._allocate(_list_layer_shapes(self.config, index))
            layer = LayerParameters(**{name: tensors.get(name) for name in _LAYER_FIELDS})  # type: ignore[arg-type]
            self._fill(self._list_layer_slots(index, layer))
            self._layers[index] = layer
        return self._layers[index]

    @property
    def is_taken(self) -> bool:
        """Whether layers were taken out, which are no longer held."""
        return bool(self._layer_hashes)

    def take_layers(self) -> Iterator[LayerParameters]:
        """Yield the layers that are left, first to last, and forget each one, so that the caller can free it."""
        while (index := len(self._layer_hashes)) < self.config.num_layers:
            layer = self.layer(index)
            del self._layers[index]
            self._layer_hashes.append(_hash_tensors({name: getattr(layer, name) for name in _LAYER_FIELDS}))
            yield layer

    def fingerprint(self, computed: object = None) -> bytes:
        """Take the layers that are left, and return blake2b-128 over the config (including RoPE), the dtype, the text
        of `computed`, which says how the weights are quantised and in what precision a pass computes, and SHA-256 of
        all bytes of every tensor; this takes a second for 2 GB and one core.
        """
        for _ in self.take_layers():
            pass
        digest = blake2b(f"{self.config} {self.dtype} {computed}".encode(), digest_size=16)
        lm_head = None if self.config.tied_embeddings else self.lm_head
        digest.update(_hash_tensors({"embedding": self.embedding, "final_norm": self.final_norm, "lm_head": lm_head}))
        for hashed in self._layer_hashes:
            digest.update(hashed)
        return digest.digest()

    def slots(self) -> dict[str, Tensor]:
        """Return the view into which each tensor of a Hugging Face checkpoint is copied, by its name."""
        slots = self._list_top_slots()
        for index in range(self.config.num_layers):
            slots |= self._list_layer_slots(index, self.layer(index))
        return slots

    def _list_top_slots(self) -> dict[str, Tensor]:
        slots = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.final_norm}
        return slots if self.config.tied_embeddings else slots | {"lm_head.weight": self.lm_head}

    def _list_layer_slots(self, index: int, layer: LayerParameters) -> dict[str, Tensor]:
        at, slots = f"model.layers.{index}", {}
        for field, modules in list_modules(self.config).items():
            weights, biases = getattr(layer, field), getattr(layer, f"{field}_bias", None)
            if weights is None:
                continue
            sizes = list_part_sizes(self.config, index, field)
            if weights.dim() == 3:
                for expert, own in enumerate(weights):
                    for module, part in _split(own, modules, sizes):
                        slots[f"{at}.{module.format(expert)}.weight"] = part
                continue
            for module, part in _split(weights, modules, sizes):
                slots[f"{at}.{module}.weight"] = part
            if biases is not None:
                for module, part in _split(biases, modules, sizes):
                    slots[f"{at}.{module}.bias"] = part
        if layer.router_correction is not None:
            slots[f"{at}.mlp.gate.e_score_correction_bias"] = layer.router_correction
        return slots

    def _fill(self, slots: dict[str, Tensor]) -> None:
        if self._read is not None:
            for name, slot in slots.items():
                slot.copy_(self._read(name))

    def _allocate(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        try:
            return {
                name: torch.empty(shape, dtype=_IN_FLOAT32.get(name, self.dtype), device=self.device)
                for name, shape in shapes.items()
            }
        except (RuntimeError, OverflowError) as error:  # torch.OutOfMemoryError is a RuntimeError
            raise WeightsError(
                f"there is no memory for {self.num_bytes / 1e9:.1f} GB of parameters; take a smaller model"
            ) from error


_LAYER_FIELDS = tuple(field.name for field in fields(LayerParameters))
_IN_FLOAT32 = {"router_correction": torch.float32}  # rounded, it would choose other experts


def _list_top_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    matrix = config.vocab_size, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embedding": matrix, "final_norm": (config.hidden_size,)}
    return shapes if config.tied_embeddings else shapes | {"lm_head": matrix}


def _list_layer_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    hidden, ffn, attended = config.hidden_size, config.ffn_size, config.num_heads * config.head_dim
    query_rows, key_rows, _ = sizes = config.get_qkv_sizes(index)
    shapes: dict[str, tuple[int, ...]] = {"qkv": (sum(sizes), hidden), "attention_out": (hidden, attended)}
    if config.latent is not None:
        shapes |= _list_latent_shapes(config, config.latent)
    if config.qkv_bias:
        shapes["qkv_bias"] = (sum(sizes),)
    if config.attention_out_bias:
        shapes["attention_out_bias"] = (hidden,)
    if config.qk_norm is not None:
        shapes["query_norm"] = (config.head_dim if config.qk_norm == "head" else query_rows,)
    if config.qk_norm is not None and key_rows:
        shapes["key_norm"] = (config.head_dim if config.qk_norm == "head" else key_rows,)
    if config.norms_before:
        shapes |= {"attention_norm": (hidden,), "ffn_norm": (hidden,)}
    if config.norms_after:
        shapes |= {"attention_out_norm": (hidden,), "ffn_out_norm": (hidden,)}
    if config.layers[index].has_experts:
        assert config.experts is not None, "the config was checked"
        count, size = config.experts.num_experts, config.experts.ffn_size
        shapes |= {"expert_gate_up": (count, 2 * size, hidden), "expert_down": (count, hidden, size)}
        if config.experts.scoring == "sigmoid":
            shapes["router_correction"] = (count,)
        if (shared := config.experts.shared_size) > 0:
            shapes |= {"shared_gate_up": (2 * shared, hidden), "shared_down": (hidden, shared)}
        return shapes | {"router": (count, hidden)}
    shapes |= {"gate_up": (2 * ffn, hidden), "down": (hidden, ffn)}
    return shapes | ({"gate_up_bias": (2 * ffn,), "down_bias": (hidden,)} if config.ffn_bias else {})


def _list_latent_shapes(config: ModelConfig, latent: LatentConfig) -> dict[str, tuple[int, ...]]:
    heads, rank = config.num_heads, latent.rank
    shapes: dict[str, tuple[int, ...]] = {
        "attention_out": (config.hidden_size, heads * latent.value_dim),
        "latent_norm": (rank,),
        "latent_up": (heads * (latent.key_dim + latent.value_dim), rank),
    }
    if latent.query_rank is None:
        return shapes
    query_up = heads * (latent.key_dim + config.head_dim - rank), latent.query_rank
    return shapes | {"query_latent_norm": (latent.query_rank,), "query_up": query_up}


def list_part_sizes(config: ModelConfig, index: int, field: str) -> list[int]:
    """Return the rows of the parts of a projection of layer `index`; the rows of others are not split."""
    if field == "qkv":
        return [size for size in config.get_qkv_sizes(index) if size]
    if field == "gate_up":
        return [config.ffn_size] * 2
    if field == "expert_gate_up" and config.experts is not None:
        return [config.experts.ffn_size] * 2
    if field == "shared_gate_up" and config.experts is not None:
        return [config.experts.shared_size] * 2
    return []


def _split(rows: Tensor, modules: Sequence[str], sizes: list[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the part of each module; a single module has all rows. Modules behind the last part have none."""
    if len(modules) == 1:
        yield modules[0], rows
    else:
        yield from zip(modules, torch.split(rows, sizes), strict=False)


def _list_all_shapes(config: ModelConfig) -> Iterator[tuple[int, ...]]:
    yield from _list_top_shapes(config).values()
    for index in range(config.num_layers):
        yield from _list_layer_shapes(config, index).values()


def count_parameters(config: ModelConfig) -> int:
    """Return the number of parameters."""
    return sum(map(prod, _list_all_shapes(config)))


CHUNK_BYTES = 16 << 20
"""Bytes that one thread hashes at a time; hashlib lets other threads run meanwhile."""

MAX_THREADS = 16


def _hash_tensors(tensors: Mapping[str, Tensor | None]) -> bytes:
    """Return a hash of the tensors' names, shapes and bytes."""
    digest = blake2b(digest_size=32)
    chunks: list[Tensor] = []
    for name, tensor in tensors.items():
        if tensor is not None:
            digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
            chunks += torch.split(tensor.reshape(-1).view(torch.uint8), CHUNK_BYTES)
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "fingerprint") as threads:
        for hashed in threads.map(_hash, chunks):
            digest.update(hashed)
    return digest.digest()


def _hash(chunk: Tensor) -> bytes:
    return sha256(chunk.cpu().numpy().data).digest()
