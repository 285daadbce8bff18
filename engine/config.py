"""The shape of a decoder: one config for every supported family, with its rotary frequencies.

Every supported RoPE scaling divides each frequency by a number of its own, whatever the length of the sequence, and
YaRN also multiplies the rotated queries and keys by one number. A config holds the divisors and that number, so the
decoder knows no schemes. Example: `linear` by 4 with heads of 8 is (4, 4, 4, 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import WeightsError

DEFAULT_THETA = 10000.0


def rope_theta(raw: Mapping[str, Any]) -> float:
    """Return the base of the frequencies in a `config.json`; its key depends on the version of transformers."""
    return float(_parameters(raw).get("rope_theta") or raw.get("rope_theta") or DEFAULT_THETA)


def rope_divisors(raw: Mapping[str, Any], head_dim: int) -> tuple[float, ...] | None:
    """Return the divisor of each of the `head_dim // 2` frequencies in a `config.json`; None if it scales nothing.

    Raises WeightsError for a scheme that is not supported, KeyError if a number is missing.
    """
    scaling = _parameters(raw)
    if float(raw.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1.0) != 1.0:
        raise WeightsError("rotary embedding of a part of each head is not supported yet; take a model without it")
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise WeightsError("rotary embedding that differs between layers is not supported yet; take a model without it")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return (float(scaling["factor"]),) * (head_dim // 2)
        case "llama3":
            return _llama3(raw, scaling, head_dim)
        case "longrope":
            return _compute_longrope_divisors(scaling)
        case "yarn":
            numbers = (float(scaling.get(key) or default) for key, default in (("beta_fast", 32), ("beta_slow", 1)))
            return compute_yarn_divisors(
                head_dim, rope_theta(raw), float(scaling["factor"]), _get_original_length(raw, scaling), *numbers,
                truncate=bool(scaling.get("truncate", True)),
            )  # fmt: skip
    raise WeightsError(
        f"RoPE scaling {kind!r} is not supported yet; supported are: default, linear, llama3, yarn; take a model with "
        "these"
    )


def rope_scale(raw: Mapping[str, Any]) -> float:
    """Return the number by which a `config.json` multiplies rotated queries and keys; 1 but for YaRN.

    Raises KeyError if a number is missing.
    """
    scaling = _parameters(raw)
    kind, given = scaling.get("rope_type", scaling.get("type")), scaling.get("attention_factor")
    if kind not in ("yarn", "longrope"):
        return 1.0
    if given is not None:  # longrope without it is refused
        return float(given)
    factor, top, bottom = float(scaling["factor"]), scaling.get("mscale"), scaling.get("mscale_all_dim")
    if top and bottom:
        return compute_yarn_scale(factor, float(top)) / compute_yarn_scale(factor, float(bottom))
    return compute_yarn_scale(factor)


def compute_yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's factor of queries and keys (Peng et al. 2023, arXiv 2309.00071, equation 22)."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def compute_yarn_divisors(
    head_dim: int,
    theta: float,
    factor: float,
    original: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    *,
    truncate: bool = True,
) -> tuple[float, ...]:
    """Return YaRN's divisors: 1 for waves that turn `beta_fast` times within the original length, `factor` for those
    that turn `beta_slow` times, and those between in proportion to their index.
    """

    def find_pair(num_turns: float) -> float:
        return head_dim * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = find_pair(beta_fast), find_pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    shares = (min(max((pair - low) / (high - low), 0.0), 1.0) for pair in range(head_dim // 2))
    return tuple(1.0 / (share / factor + (1.0 - share)) for share in shares)


def read_max_positions(raw: Mapping[str, Any]) -> int:
    """Return the longest sequence of a `config.json`; with YaRN that of the scaled model, which few configs write."""
    scaling, positions = _parameters(raw), int(raw["max_position_embeddings"])
    if scaling.get("rope_type", scaling.get("type")) != "yarn":
        return positions
    return max(positions, int(float(scaling["factor"]) * _get_original_length(raw, scaling)))


def _get_original_length(raw: Mapping[str, Any], scaling: Mapping[str, Any]) -> float:
    key = "original_max_position_embeddings"
    return float(raw.get(key) or scaling.get(key) or raw["max_position_embeddings"])


def build_rope_scaling(divisors: tuple[float, ...], max_positions: int, scale: float = 1.0) -> dict[str, Any]:
    """Return the `rope_scaling` that gives these divisors and this scale at every length, here and in transformers."""
    return {
        "rope_type": "longrope",
        "short_factor": list(divisors),
        "long_factor": list(divisors),
        "factor": 1.0,
        "attention_factor": scale,
        "original_max_position_embeddings": max_positions,
    }


def _parameters(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the RoPE parameters: `rope_scaling`, which goes first in transformers 5, or `rope_parameters`."""
    return raw.get("rope_scaling") or raw.get("rope_parameters") or {}


def _llama3(raw: Mapping[str, Any], scaling: Mapping[str, Any], head_dim: int) -> tuple[float, ...]:
    """Return Llama 3.1's divisors: slow waves by `factor`, quick ones not at all, those between in proportion."""
    factor, slow, quick = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original, theta = _get_original_length(raw, scaling), rope_theta(raw)

    def divisor(pair: int) -> float:
        num_waves = original / (2 * math.pi * math.pow(theta, 2 * pair / head_dim))  # within the original length
        if num_waves < slow:
            return factor
        if num_waves > quick:
            return 1.0
        share = (num_waves - slow) / (quick - slow)
        return 1.0 / ((1.0 - share) / factor + share)

    return tuple(divisor(pair) for pair in range(head_dim // 2))


def _compute_longrope_divisors(scaling: Mapping[str, Any]) -> tuple[float, ...]:
    short, long = (tuple(float(value) for value in scaling[key]) for key in ("short_factor", "long_factor"))
    if short != long or scaling.get("attention_factor") is None:
        raise WeightsError(
            "RoPE scaling 'longrope' that depends on the length is not supported yet; take another model"
        )
    return short


ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Hugging Face's architecture names that this decoder runs, and its `model_type` for each."""

MISTRAL_WINDOW = 4096
"""The window that transformers takes if a Mistral's `config.json` has none."""

REFUSED = {
    "use_sliding_window": "sliding-window attention in a part of the layers",
    "mlp_bias": "a bias in the feed-forward part",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
}
"""Switches of `config.json` that would change the result, and what each asks for."""

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
    "sliding_window": 1 << 24,
    "rope_scale": 1e3,
}
"""Limits far beyond any model: a larger value, or one not above 0, comes from a damaged file."""

LARGEST_DIVISOR = 1e6
"""The same for RoPE scaling."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of one decoder; sizes are counts, `rope_theta` is the base of the rotary frequencies.

    With a `sliding_window` of w, a token attends to itself and the w - 1 tokens before it; without one, to all before
    it. `qk_norm` is an RMSNorm of each query and key head before RoPE. `rope_divisors`: the divisor of each of the
    head_dim // 2 rotary frequencies, if there are any. `rope_scale`: rotated queries and keys are multiplied by it.
    """

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
    qk_norm: bool = False
    sliding_window: int | None = None
    rope_divisors: tuple[float, ...] | None = None
    rope_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            size = getattr(self, name)
            if size is not None and not 0 < size <= most:
                raise WeightsError(f"{name} is {size}, outside (0, {most}]; the model's description is damaged")
        if self.head_dim % 2:
            raise WeightsError(f"head_dim is {self.head_dim}; rotary embedding needs an even one")
        if self.num_heads % self.num_kv_heads:
            raise WeightsError(f"{self.num_heads} query heads do not divide into {self.num_kv_heads} KV heads")
        if self.rope_divisors is not None:
            if len(self.rope_divisors) != self.head_dim // 2:
                raise WeightsError(f"{len(self.rope_divisors)} RoPE factors for {self.head_dim // 2} frequencies")
            if not all(0 < divisor <= LARGEST_DIVISOR for divisor in self.rope_divisors):
                raise WeightsError(f"a RoPE factor is outside (0, {LARGEST_DIVISOR}]; the description is damaged")

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Read a Hugging Face `config.json`; raises WeightsError where it asks for what the decoder does not do."""
        try:
            architecture = str((raw.get("architectures") or ["(none named)"])[0])
            if architecture not in ARCHITECTURES:
                known = ", ".join(sorted(ARCHITECTURES))
                raise WeightsError(f"architecture {architecture} is not supported; supported are: {known}")
            window = _read_window(raw, architecture)
            _refuse_unsupported(raw, architecture, window)
            heads, head_dim = int(raw["num_attention_heads"]), _head_dim(raw, architecture)
            return cls(
                architecture=architecture,
                num_layers=int(raw["num_hidden_layers"]),
                hidden_size=int(raw["hidden_size"]),
                num_heads=heads,
                num_kv_heads=_num_kv_heads(raw, architecture),
                head_dim=head_dim,
                ffn_size=int(raw["intermediate_size"]),
                vocab_size=int(raw["vocab_size"]),
                max_positions=read_max_positions(raw),
                rope_theta=rope_theta(raw),
                rms_norm_eps=float(raw["rms_norm_eps"]),
                tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=architecture == "Qwen2ForCausalLM",
                qk_norm=architecture == "Qwen3ForCausalLM",
                sliding_window=window,
                rope_divisors=rope_divisors(raw, head_dim),
                rope_scale=rope_scale(raw),
            )
        except KeyError as error:
            raise WeightsError(f"config.json has no {error.args[0]!r}") from None
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise WeightsError(f"config.json is damaged: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that `from_hf` reads back as this config."""
        raw: dict[str, Any] = {
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
        if self.architecture == "MistralForCausalLM":
            raw["sliding_window"] = self.sliding_window
        if self.rope_divisors is not None:
            raw["rope_scaling"] = build_rope_scaling(self.rope_divisors, self.max_positions, self.rope_scale)
        return raw


def _num_kv_heads(raw: Mapping[str, Any], architecture: str) -> int:
    """Return the number of KV heads. Only Llama defaults to the number of query heads; the others' defaults fit one
    model.
    """
    known = raw.get("num_key_value_heads") if architecture == "LlamaForCausalLM" else raw["num_key_value_heads"]
    return int(raw["num_attention_heads"] if known is None else known)


def _head_dim(raw: Mapping[str, Any], architecture: str) -> int:
    known = raw["head_dim"] if architecture == "Qwen3ForCausalLM" else raw.get("head_dim")
    return int(raw["hidden_size"]) // int(raw["num_attention_heads"]) if known is None else int(known)


def _read_window(raw: Mapping[str, Any], architecture: str) -> int | None:
    """Return the window of every layer. Only Mistral's class has one without another switch."""
    if architecture != "MistralForCausalLM":
        return None
    window = raw.get("sliding_window", MISTRAL_WINDOW)
    return None if window is None else int(window)


def _refuse_unsupported(raw: Mapping[str, Any], architecture: str, window: int | None) -> None:
    """Raise WeightsError for settings that would silently give wrong numbers."""
    for key, what in REFUSED.items():
        if raw.get(key):
            raise WeightsError(f"{what} ({key}) is not supported yet; take a model without it")
    expected = "full_attention" if window is None else "sliding_attention"
    if any(kind != expected for kind in raw.get("layer_types") or ()):
        raise WeightsError(f"layer_types other than {expected} are not supported for {architecture} yet")
    if raw.get("attention_bias") and architecture != "Qwen2ForCausalLM":  # which has a bias whatever this says
        raise WeightsError(f"attention_bias is not supported for {architecture} yet; take a model without it")
    if raw.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"activation {raw['hidden_act']!r} is not supported; only silu is")
    if raw.get("quantization_config"):
        raise WeightsError("quantised safetensors are not supported; take the unquantised model or a GGUF file")
