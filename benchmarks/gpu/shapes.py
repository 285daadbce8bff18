"""Models by their shape alone: a config that is known, and weights that are drawn. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.config import ModelConfig
from engine.weights import Parameters

MOST_POSITIONS = 136 * 1024
"""Room for 128k tokens of context: where only speed is measured, positions may be such as no model was trained for."""

STD = 0.02
"""Of the drawn weights, as models are initialised: the sums of all layers stay numbers."""


def _qwen25(hidden_size: int, num_heads: int, num_kv_heads: int, ffn_size: int, vocab_size: int) -> ModelConfig:
    return ModelConfig(
        architecture="Qwen2ForCausalLM",
        num_layers=28,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        ffn_size=ffn_size,
        vocab_size=vocab_size,
        max_positions=MOST_POSITIONS,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tied_embeddings=hidden_size < 2048,
        qkv_bias=True,
    )


SHAPES: Mapping[str, ModelConfig] = {
    "1.5b": _qwen25(1536, 12, 2, 8960, 151936),
    "7b": _qwen25(3584, 28, 4, 18944, 152064),
}
"""Qwen2.5 and Qwen2.5-Coder of these sizes."""


def random_parameters(config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Parameters:
    """Weights of this shape, with which a model writes nonsense."""
    parameters = Parameters(config, dtype, device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, tensor in sorted(parameters.slots().items()):
        tensor.normal_(0.0, STD, generator=generator)
        if "norm" in name:
            tensor.add_(1.0)
    return parameters
