"""RoPE scaling of a `config.json`: the divisors of its frequencies, and the factor of what is rotated.

Every supported scheme divides each frequency by a number of its own, whatever the length of the sequence, and YaRN also
multiplies the rotated queries and keys by one number. So the decoder knows no schemes. Example: `linear` by 4 with
heads of 8 is (4, 4, 4, 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.config import Rope
from engine.errors import WeightsError

DEFAULT_THETA = 10000.0


def read_rope(raw: Mapping[str, Any], rotary_dim: int) -> Rope:
    """Return the RoPE of a `config.json` that has one for all layers; `rotary_dim` numbers of a head are rotated.

    Raises WeightsError for a scheme that is not supported, KeyError if a number is missing.
    """
    return Rope(_read_theta(raw), _read_divisors(raw, rotary_dim), _read_scale(raw))


def read_rotary_dim(raw: Mapping[str, Any], head_dim: int) -> int:
    """Return how many numbers of a head are rotated."""
    return int(
        head_dim * float(raw.get("partial_rotary_factor") or _parameters(raw).get("partial_rotary_factor") or 1.0)
    )


def _read_theta(raw: Mapping[str, Any]) -> float:
    """Return the base of the frequencies; its key depends on the version of transformers."""
    return float(_parameters(raw).get("rope_theta") or raw.get("rope_theta") or DEFAULT_THETA)


def _read_divisors(raw: Mapping[str, Any], rotary_dim: int) -> tuple[float, ...] | None:
    """Return the divisor of each of the `rotary_dim // 2` frequencies; None if it scales nothing."""
    scaling = _parameters(raw)
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise WeightsError("rotary embedding that differs between layers is not supported yet; take a model without it")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return (float(scaling["factor"]),) * (rotary_dim // 2)
        case "llama3":
            return _llama3(raw, scaling, rotary_dim)
        case "longrope":
            return _compute_longrope_divisors(scaling)
        case "yarn":
            numbers = (float(scaling.get(key) or default) for key, default in (("beta_fast", 32), ("beta_slow", 1)))
            return compute_yarn_divisors(
                rotary_dim, _read_theta(raw), float(scaling["factor"]), _get_original_length(raw, scaling), *numbers,
                truncate=bool(scaling.get("truncate", True)),
            )  # fmt: skip
    raise WeightsError(
        f"RoPE scaling {kind!r} is not supported yet; supported are: default, linear, llama3, yarn; take a model with "
        "these"
    )


def _read_scale(raw: Mapping[str, Any]) -> float:
    """Return the number by which rotated queries and keys are multiplied; 1 but for YaRN."""
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
    rotary_dim: int,
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
        return rotary_dim * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = find_pair(beta_fast), find_pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    shares = (min(max((pair - low) / (high - low), 0.0), 1.0) for pair in range(rotary_dim // 2))
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


def build_rope_scaling(rope: Rope, max_positions: int) -> dict[str, Any]:
    """Return the `rope_scaling` that gives these divisors and this scale at every length, here and in transformers."""
    assert rope.divisors is not None, "without them nothing is scaled"
    return {
        "rope_type": "longrope",
        "short_factor": list(rope.divisors),
        "long_factor": list(rope.divisors),
        "factor": 1.0,
        "attention_factor": rope.scale,
        "original_max_position_embeddings": max_positions,
    }


def _parameters(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the RoPE parameters: `rope_scaling`, which goes first in transformers 5, or `rope_parameters`."""
    return raw.get("rope_scaling") or raw.get("rope_parameters") or {}


def _llama3(raw: Mapping[str, Any], scaling: Mapping[str, Any], rotary_dim: int) -> tuple[float, ...]:
    """Return Llama 3.1's divisors: slow waves by `factor`, quick ones not at all, those between in proportion."""
    factor, slow, quick = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original, theta = _get_original_length(raw, scaling), _read_theta(raw)

    def divisor(pair: int) -> float:
        num_waves = original / (2 * math.pi * math.pow(theta, 2 * pair / rotary_dim))  # within the original length
        if num_waves < slow:
            return factor
        if num_waves > quick:
            return 1.0
        share = (num_waves - slow) / (quick - slow)
        return 1.0 / ((1.0 - share) / factor + share)

    return tuple(divisor(pair) for pair in range(rotary_dim // 2))


def _compute_longrope_divisors(scaling: Mapping[str, Any]) -> tuple[float, ...]:
    short, long = (tuple(float(value) for value in scaling[key]) for key in ("short_factor", "long_factor"))
    if short != long or scaling.get("attention_factor") is None:
        raise WeightsError(
            "RoPE scaling 'longrope' that depends on the length is not supported yet; take another model"
        )
    return short
