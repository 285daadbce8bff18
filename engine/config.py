"""The shape of a decoder: one frozen config drives every supported family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import WeightsError

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
"""Hugging Face's architecture names that this decoder runs, and GGUF's name for each."""

LARGEST = {
    "num_layers": 1 << 10,
    "hidden_size": 1 << 20,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "ffn_size": 1 << 24,
    "vocab_size": 1 << 24,
    "max_positions": 1 << 24,
    "rope_theta": 1e12,
    "rms_norm_eps": 1.0,
}
"""Far beyond any model: what is larger, or not above 0, was read from a damaged file."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of one decoder; sizes are counts, `rope_theta` is the base of the rotary frequencies."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            size = getattr(self, name)
            if not 0 < size <= most:
                raise WeightsError(f"{name} is {size}, outside (0, {most}]; the model's description is damaged")
        if self.head_dim % 2:
            raise WeightsError(f"head_dim is {self.head_dim}; rotary embedding needs an even one")
        if self.num_heads % self.num_kv_heads:
            raise WeightsError(f"{self.num_heads} query heads do not divide into {self.num_kv_heads} KV heads")

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Read a Hugging Face `config.json`; raises WeightsError where it asks for what the decoder does not do."""
        try:
            _refuse_unsupported(raw)
            architecture = str((raw.get("architectures") or ["(none named)"])[0])
            if architecture not in ARCHITECTURES:
                known = ", ".join(sorted(ARCHITECTURES))
                raise WeightsError(f"architecture {architecture} is not supported; supported are: {known}")
            heads = int(raw["num_attention_heads"])
            return cls(
                architecture=architecture,
                num_layers=int(raw["num_hidden_layers"]),
                hidden_size=int(raw["hidden_size"]),
                num_heads=heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
                ffn_size=int(raw["intermediate_size"]),
                vocab_size=int(raw["vocab_size"]),
                max_positions=int(raw["max_position_embeddings"]),
                rope_theta=_rope_theta(raw),
                rms_norm_eps=float(raw["rms_norm_eps"]),
                tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=bool(raw.get("attention_bias", architecture == "Qwen2ForCausalLM")),
            )
        except KeyError as error:
            raise WeightsError(f"config.json has no {error.args[0]!r}") from None
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise WeightsError(f"config.json is damaged: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that `from_hf` reads back as this config."""
        return {
            "architectures": [self.architecture],
            "model_type": ARCHITECTURES[self.architecture],
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn_size,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tied_embeddings,
            "attention_bias": self.qkv_bias,
            "hidden_act": "silu",
        }


def _rope_theta(raw: Mapping[str, Any]) -> float:
    """Transformers 5 writes the base into `rope_parameters`; earlier versions wrote it at the top."""
    nested = raw.get("rope_parameters") or {}
    return float(nested.get("rope_theta") or raw.get("rope_theta") or 10000.0)


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Name what would silently give wrong numbers, instead of running it."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        raise WeightsError(f"RoPE scaling {kind!r} is not supported yet; take a model without it")
    if float(raw.get("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0))) != 1.0:
        raise WeightsError("rotary embedding of a part of each head is not supported yet; take a model without it")
    if raw.get("use_sliding_window"):
        raise WeightsError("sliding-window attention is not supported yet; take a model without it")
    if raw.get("mlp_bias"):
        raise WeightsError("biases in the feed-forward part are not supported yet")
    if raw.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"activation {raw['hidden_act']!r} is not supported; only silu is")
    if raw.get("quantization_config"):
        raise WeightsError("quantised safetensors are not supported; take the unquantised model or a GGUF file")
