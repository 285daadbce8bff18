"""How rotary frequencies are slowed so that a model reaches beyond the length it was first trained on.

Every supported scheme divides each frequency by a number of its own, whatever the length of the sequence. A config
holds those divisors, so the decoder knows no schemes. Example: `linear` by 4 with heads of 8 is (4, 4, 4, 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import WeightsError

DEFAULT_THETA = 10000.0


def rope_theta(raw: Mapping[str, Any]) -> float:
    """The base of the frequencies in a `config.json`; where it stands depends on the version of transformers."""
    return float(_parameters(raw).get("rope_theta") or raw.get("rope_theta") or DEFAULT_THETA)


def rope_divisors(raw: Mapping[str, Any], head_dim: int) -> tuple[float, ...] | None:
    """What a `config.json` divides each of the `head_dim // 2` frequencies by; None where it scales nothing.

    Raises WeightsError on a scheme that is not supported, KeyError on a number that is missing.
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
            return _longrope(scaling)
    raise WeightsError(
        f"RoPE scaling {kind!r} is not supported yet; supported are: default, linear, llama3; take a model with these"
    )


def scaling_to_hf(divisors: tuple[float, ...], max_positions: int) -> dict[str, Any]:
    """The `rope_scaling` that gives these divisors at every length, here and in transformers."""
    return {
        "rope_type": "longrope",
        "short_factor": list(divisors),
        "long_factor": list(divisors),
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": max_positions,
    }


def _parameters(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Transformers 5 writes `rope_parameters`, and lets the `rope_scaling` of earlier versions go before it."""
    return raw.get("rope_scaling") or raw.get("rope_parameters") or {}


def _llama3(raw: Mapping[str, Any], scaling: Mapping[str, Any], head_dim: int) -> tuple[float, ...]:
    """Llama 3.1's: slow waves by `factor`, quick ones not at all, those between in proportion."""
    factor, slow, quick = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    key = "original_max_position_embeddings"
    original = float(raw.get(key) or scaling.get(key) or raw["max_position_embeddings"])
    theta = rope_theta(raw)

    def divisor(pair: int) -> float:
        num_waves = original / (2 * math.pi * math.pow(theta, 2 * pair / head_dim))  # within the original length
        if num_waves < slow:
            return factor
        if num_waves > quick:
            return 1.0
        share = (num_waves - slow) / (quick - slow)
        return 1.0 / ((1.0 - share) / factor + share)

    return tuple(divisor(pair) for pair in range(head_dim // 2))


def _longrope(scaling: Mapping[str, Any]) -> tuple[float, ...]:
    short, long = (tuple(float(value) for value in scaling[key]) for key in ("short_factor", "long_factor"))
    if short != long or scaling.get("attention_factor") != 1.0:
        raise WeightsError(
            "RoPE scaling 'longrope' that depends on the length is not supported yet; take another model"
        )
    return short
