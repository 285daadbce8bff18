"""Decoders of a few thousand random parameters, which a test can run hundreds of times."""

from __future__ import annotations

from typing import Any

import torch

from engine.config import ModelConfig
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.scheduler import SchedulerConfig
from engine.weights import Parameters

VOCAB_SIZE = 48
LLAMA: dict[str, Any] = {"architecture": "LlamaForCausalLM", "qkv_bias": False}
MISTRAL: dict[str, Any] = {"architecture": "MistralForCausalLM", "qkv_bias": False}
QWEN3: dict[str, Any] = {"architecture": "Qwen3ForCausalLM", "qkv_bias": False, "qk_norm": True}

TOKEN_BYTES = [
    *(bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyz \n<>/=."),
    b"</",
    b"x>",
    b"</x>",
    b"<x",
    b"\xe2",
]
TOKEN_BYTES += [b"word%d" % number for number in range(VOCAB_SIZE - len(TOKEN_BYTES))]


def tiny_config(**changes: Any) -> ModelConfig:
    fields: dict[str, Any] = {
        "architecture": "Qwen2ForCausalLM",
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "ffn_size": 40,
        "vocab_size": VOCAB_SIZE,
        "max_positions": 512,
        "rope_theta": 10000.0,
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
