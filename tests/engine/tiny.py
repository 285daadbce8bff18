"""Decoders of a few thousand random parameters, which a test can run hundreds of times."""

from __future__ import annotations

from typing import Any

import torch

from engine.config import ExpertsConfig, LatentConfig, LayerSpec, ModelConfig, Rope
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.scheduler import SchedulerConfig
from engine.weights import Parameters

VOCAB_SIZE = 48
LLAMA: dict[str, Any] = {"architecture": "LlamaForCausalLM", "qkv_bias": False}
MISTRAL: dict[str, Any] = {"architecture": "MistralForCausalLM", "qkv_bias": False}
QWEN3: dict[str, Any] = {"architecture": "Qwen3ForCausalLM", "qkv_bias": False, "qk_norm": "head"}
QWEN3_MOE: dict[str, Any] = {
    "architecture": "Qwen3MoeForCausalLM",
    "qkv_bias": False,
    "qk_norm": "head",
    "experts": ExpertsConfig(num_experts=6, num_used=2, ffn_size=24, is_normalised=True),
    "layers": (LayerSpec(Rope(1e4), has_experts=True),) * 2,
}
_GEMMA: dict[str, Any] = {
    "qkv_bias": False,
    "tied_embeddings": True,
    "norms_after": True,
    "norm_offset": 1.0,
    "activation": "gelu_tanh",
    "embedding_scale": 32**0.5,
    "attention_scale": 0.25,
}
GEMMA2: dict[str, Any] = _GEMMA | {
    "architecture": "Gemma2ForCausalLM",
    "attention_cap": 4.0,
    "logit_cap": 6.0,
    "layers": (LayerSpec(Rope(1e4), window=9), LayerSpec(Rope(1e4))),
}
GEMMA3: dict[str, Any] = _GEMMA | {
    "architecture": "Gemma3ForCausalLM",
    "qk_norm": "head",
    "layers": (LayerSpec(Rope(1e4), window=9), LayerSpec(Rope(1e6))),
}
OLMO2: dict[str, Any] = {
    "architecture": "Olmo2ForCausalLM",
    "qkv_bias": False,
    "qk_norm": "all",
    "norms_before": False,
    "norms_after": True,
}
PHI3: dict[str, Any] = {"architecture": "Phi3ForCausalLM", "qkv_bias": False, "rotary_dim": 4}
DEEPSEEK_V2: dict[str, Any] = {
    "architecture": "DeepseekV2ForCausalLM",
    "qkv_bias": False,
    "num_kv_heads": 1,
    "head_dim": 48,
    "rotary_dim": 16,
    "attention_scale": 22**-0.5,
    "latent": LatentConfig(rank=32, key_dim=6, value_dim=10),
    "experts": ExpertsConfig(num_experts=6, num_used=2, ffn_size=24, is_normalised=False, scale=1.5, shared_size=48),
    "layers": (LayerSpec(Rope(1e4)), LayerSpec(Rope(1e4), has_experts=True)),
}
DEEPSEEK_V3: dict[str, Any] = DEEPSEEK_V2 | {
    "architecture": "DeepseekV3ForCausalLM",
    "latent": LatentConfig(rank=32, key_dim=6, value_dim=10, query_rank=20),
    "experts": ExpertsConfig(8, 2, 24, True, "sigmoid", num_groups=4, num_groups_used=2, scale=2.5, shared_size=24),
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA | {"attention_out_bias": True, "qkv_bias": True, "ffn_bias": True},
    "mistral": MISTRAL | {"sliding_window": 9},
    "qwen2": {},
    "qwen2, windows in a part": {"layers": (LayerSpec(Rope(1e4)), LayerSpec(Rope(1e4), window=9))},
    "qwen3": QWEN3,
    "qwen3 moe": QWEN3_MOE,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "olmo2": OLMO2,
    "phi3": PHI3,
    "deepseek v2": DEEPSEEK_V2,
    "deepseek v3": DEEPSEEK_V3,
}
"""A small config of each family, with what its `config.json` may say."""

TOKEN_BYTES = [
    *(bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyz \n<>/=."),
    b"</",
    b"x>",
    b"</x>",
    b"<x",
    b"\xe2",
]
TOKEN_BYTES += [b"word%d" % number for number in range(VOCAB_SIZE - len(TOKEN_BYTES))]


def tiny_config(
    num_layers: int = 2,
    sliding_window: int | None = None,
    rope_theta: float = 1e4,
    rope_divisors: tuple[float, ...] | None = None,
    rope_scale: float = 1.0,
    **changes: Any,
) -> ModelConfig:
    fields: dict[str, Any] = {
        "architecture": "Qwen2ForCausalLM",
        "layers": (LayerSpec(Rope(rope_theta, rope_divisors, rope_scale), sliding_window),) * num_layers,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "ffn_size": 40,
        "vocab_size": VOCAB_SIZE,
        "max_positions": 512,
        "rms_norm_eps": 1e-6,
        "tied_embeddings": False,
        "qkv_bias": True,
    }
    return ModelConfig(**(fields | changes))


def tiny_parameters(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> Parameters:
    """Random everywhere, biases and norms too: a part that is left out or mixed up must show."""
    parameters = Parameters(config, dtype)
    random = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(parameters.slots().items()):
        wide = torch.empty(tensor.shape).normal_(0.0, 1.0, generator=random)
        tensor.copy_(1.0 + 0.3 * wide if "norm" in name else 0.4 * wide)
    return parameters


def tiny_decoder(seed: int = 0, **changes: Any) -> Decoder:
    return Decoder(tiny_parameters(tiny_config(**changes), seed))


def tiny_limits(max_seq_len: int = 256, **scheduler: int) -> EngineConfig:
    """Small pages, and books that are checked in every step."""
    return EngineConfig(max_seq_len, page_size=4, scheduler=SchedulerConfig(**scheduler), check_integrity=True)


def tiny_engine(max_seq_len: int = 256, seed: int = 0, **changes: Any) -> Engine:
    return Engine(tiny_decoder(seed, **changes), TOKEN_BYTES, tiny_limits(max_seq_len))
