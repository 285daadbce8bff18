"""A decoder's weights as its forward pass uses them: norms as tensors, linear maps as projections."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import WeightsError
from engine.projections.choice import Store, fastest, quantised
from engine.projections.tiled import Tiled, in_tiles
from engine.projections.types import Projection, Quantization
from engine.projections.unpacking import UnpackingBuffer
from engine.weights.parameters import LayerParameters, Parameters
from kernels.accept import TILE


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
