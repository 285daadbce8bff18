"""A decoder's weights as its forward pass uses them: norms as tensors, linear maps as projections."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.projections.choice import fastest
from engine.projections.types import Projection
from engine.weights.parameters import LayerParameters, Parameters


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
    def from_parameters(cls, layer: LayerParameters) -> LayerWeights:
        """The layer with its projections stored as is fastest."""
        return cls(
            attention_norm=layer.attention_norm,
            qkv=fastest(layer.qkv, layer.qkv_bias),
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
            attention_out=fastest(layer.attention_out),
            ffn_norm=layer.ffn_norm,
            gate_up=fastest(layer.gate_up),
            down=fastest(layer.down),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the projections: what a pass over one row reads of this layer, norms aside."""
        return sum(part.num_bytes for part in (self.qkv, self.attention_out, self.gate_up, self.down))


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder. The LM head is packed also where it is tied: the embedding stays plain beside it for
    the lookup (0.27 GB more for Qwen2.5-0.5B), and logits of one row take a third less time.
    """

    config: ModelConfig
    embedding: Tensor  # [vocab_size, hidden_size]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden_size]
    lm_head: Projection  # hidden_size -> vocab_size

    @classmethod
    def from_parameters(cls, parameters: Parameters) -> DecoderWeights:
        """Takes the layers out of `parameters`: each is freed when it is packed, so that no two models are held.

        Raises WeightsError where memory runs out.
        """
        return cls(
            config=parameters.config,
            embedding=parameters.embedding,
            layers=tuple(LayerWeights.from_parameters(layer) for layer in parameters.take_layers()),
            final_norm=parameters.final_norm,
            lm_head=fastest(parameters.lm_head),
        )

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
