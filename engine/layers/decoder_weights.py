"""The weights of a decoder as its forward pass uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import WeightsError
from engine.layers.linear import (
    Dense,
    Int4,
    Int8,
    Packed,
    Projection,
    Quantization,
    UnpackingBuffer,
    fits_int4,
    fits_int8,
    packs,
)
from engine.weights.parameters import LayerParameters, Parameters
from kernels.accept import TILE

Store = Callable[[Tensor, Tensor | None], Projection]
"""Makes a projection of a weight [out_features, in_features] and a bias [out_features]."""


def fastest(weight: Tensor, bias: Tensor | None = None) -> Projection:
    """Packed where the device can, else plain; raises WeightsError where there is no memory for the packed copy."""
    if not packs(weight.device.type, weight.dtype):
        return Dense(weight, bias)
    try:
        return Packed(weight, bias)
    except RuntimeError as error:
        raise WeightsError(f"there is no memory to pack {weight.nbytes / 1e9:.1f} GB; take a smaller model") from error


def quantised(scheme: Quantization, buffer: UnpackingBuffer) -> Store:
    """Stores quantised what torch's CPU kernel for the scheme takes, the rest as `fastest` has it."""

    def store(weight: Tensor, bias: Tensor | None = None) -> Projection:
        if scheme == "int4" and fits_int4(weight):
            return Int4(weight, bias, buffer)
        if scheme == "int8" and fits_int8(weight):
            return Int8(weight, bias, buffer)
        return fastest(weight, bias)

    return store


class Tiled:
    """Several projections of the same rows whose results stand side by side."""

    def __init__(self, tiles: Sequence[Projection]) -> None:
        self.tiles = tuple(tiles)
        self.out_features = sum(tile.out_features for tile in tiles)
        self.num_bytes = sum(tile.num_bytes for tile in tiles)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        return torch.cat([tile(x) for tile in self.tiles], dim=1)


def in_tiles(weight: Tensor, store: Store, num_features: int) -> Projection:
    """[out_features, in_features] stored in tiles of `num_features` rows, the last one shorter; a single one as it is.

    Elsewhere than on a CPU it is one tile: there, memory for logits costs nothing and a call more does.
    """
    if weight.device.type != "cpu" or len(weight) <= num_features:
        return store(weight, None)
    return Tiled([store(weight[start : start + num_features], None) for start in range(0, len(weight), num_features)])


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; the shapes of the projections are [in_features -> out_features]."""

    attention_norm: Tensor  # [hidden_size]
    qkv: Projection  # hidden_size -> (num_heads + 2 * num_kv_heads) * head_dim
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    attention_out: Projection  # num_heads * head_dim -> hidden_size
    ffn_norm: Tensor  # [hidden_size]
    gate_up: Projection  # hidden_size -> 2 * ffn_size
    down: Projection  # ffn_size -> hidden_size

    @classmethod
    def from_parameters(cls, layer: LayerParameters, store: Store) -> LayerWeights:
        """The layer with its projections as `store` makes them."""
        return cls(
            attention_norm=layer.attention_norm,
            qkv=store(layer.qkv, layer.qkv_bias),
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
            attention_out=store(layer.attention_out, None),
            ffn_norm=layer.ffn_norm,
            gate_up=store(layer.gate_up, None),
            down=store(layer.down, None),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the projections: what a pass over one row reads of this layer, norms aside."""
        return sum(part.num_bytes for part in (self.qkv, self.attention_out, self.gate_up, self.down))


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder. A tied LM head is stored apart from the embedding, which stays plain for the lookup:
    57 MB more for SmolLM2-135M, and logits of one row in two thirds of the time or less.
    """

    config: ModelConfig
    embedding: Tensor  # [vocab_size, hidden_size]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden_size]
    lm_head: Projection  # hidden_size -> vocab_size

    @classmethod
    def from_parameters(cls, parameters: Parameters, quantize: Quantization | None = None) -> DecoderWeights:
        """Takes the layers out of `parameters`: each is freed when it is packed, so that no two models are held.

        `quantize` is for CPUs: all projections are quantised, in int4 the LM head in int8. Raises WeightsError where
        memory runs out, and where they lie elsewhere.
        """
        store, store_head = _stores(parameters, quantize)
        return cls(
            config=parameters.config,
            embedding=parameters.embedding,
            layers=tuple(LayerWeights.from_parameters(layer, store) for layer in parameters.take_layers()),
            final_norm=parameters.final_norm,
            lm_head=in_tiles(parameters.lm_head, store_head, TILE),
        )

    @property
    def lm_head_tiles(self) -> tuple[Projection, ...]:
        """The LM head a part of the vocabulary at a time, in the order of the token ids."""
        return self.lm_head.tiles if isinstance(self.lm_head, Tiled) else (self.lm_head,)

    @property
    def device(self) -> torch.device:
        """Where the weights, and so the activations, lie."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        return self.embedding.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the projections and the LM head: what a pass over one row reads, norms and its KV aside."""
        return sum(layer.num_bytes for layer in self.layers) + self.lm_head.num_bytes


def _stores(parameters: Parameters, quantize: Quantization | None) -> tuple[Store, Store]:
    """How to store the layers' projections and the LM head."""
    if quantize is None:
        return fastest, fastest
    device = parameters.embedding.device
    if device.type != "cpu":
        raise WeightsError(f"{quantize} weights are for CPUs; load the model unquantised on {device.type}")
    buffer = UnpackingBuffer(parameters.dtype)
    return quantised(quantize, buffer), quantised("int8", buffer)
