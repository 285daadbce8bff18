"""The DeepSeek families: how their `config.json` is read, with latent attention (MLA) and experts in groups.

Papers: DeepSeek-V2, arXiv 2405.04434; DeepSeek-V3, arXiv 2412.19437.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from engine.config import ExpertsConfig, LatentConfig, LayerSpec, ModelConfig, check_size
from engine.errors import WeightsError
from engine.rope_config import build_rope_scaling, compute_yarn_scale, read_rope

LATENT_MODULES: Mapping[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    "query_latent_norm": ("self_attn.q_a_layernorm",),
    "query_up": ("self_attn.q_b_proj",),
    "latent_norm": ("self_attn.kv_a_layernorm",),
    "latent_up": ("self_attn.kv_b_proj",),
    "shared_gate_up": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    "shared_down": ("mlp.shared_experts.down_proj",),
}
"""The modules that other families do not have, as `engine.families.Modules`."""

WITHOUT_QUERY_RANK: Mapping[str, tuple[str, ...]] = {"qkv": ("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa")}
"""Where queries are made from the hidden state (DeepSeek-V2-Lite)."""


def read_deepseek_v2(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a DeepSeek-V2 or V2-Lite that are not those of a Llama; raises as `Family.read`."""
    method = raw.get("topk_method", "greedy")
    _expect(raw, "topk_method", method, ("greedy", "group_limited_greedy"))
    _expect(raw, "scoring_func", raw.get("scoring_func", "softmax"), ("softmax",))
    _expect(raw, "norm_topk_prob", bool(raw.get("norm_topk_prob")), (False,))  # transformers does not normalise
    groups = (1, 1) if method == "greedy" else (int(raw["n_group"]), int(raw["topk_group"]))
    return _read_latent(raw, is_interleaved=True) | _read_experts(raw, "softmax", groups)


def read_deepseek_v3(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a DeepSeek-V3 or R1 that are not those of a Llama; raises as `Family.read`."""
    _expect(raw, "topk_method", raw.get("topk_method", "noaux_tc"), ("noaux_tc",))
    _expect(raw, "scoring_func", raw.get("scoring_func", "sigmoid"), ("sigmoid",))
    latent = _read_latent(raw, is_interleaved=bool(raw.get("rope_interleave", True)))
    return latent | _read_experts(raw, "sigmoid", (int(raw["n_group"]), int(raw["topk_group"])))


def _expect(raw: Mapping[str, Any], key: str, value: object, supported: tuple[object, ...]) -> None:
    if value not in supported:
        architecture, listed = (raw.get("architectures") or ["this model"])[0], " and ".join(map(str, supported))
        raise WeightsError(f"{key} {value!r} is not supported for {architecture}; supported: {listed}")


def _read_latent(raw: Mapping[str, Any], *, is_interleaved: bool) -> dict[str, Any]:
    heads, rank, rotary_dim = (int(raw[key]) for key in ("num_attention_heads", "kv_lora_rank", "qk_rope_head_dim"))
    _expect(raw, "num_key_value_heads", raw.get("num_key_value_heads") or heads, (heads,))
    _expect(raw, "moe_layer_freq", raw.get("moe_layer_freq", 1), (1,))
    query_rank = raw.get("q_lora_rank")
    latent = LatentConfig(
        rank=rank,
        key_dim=int(raw["qk_nope_head_dim"]),
        value_dim=int(raw["v_head_dim"]),
        query_rank=None if query_rank is None else int(query_rank),
        is_interleaved=is_interleaved,
    )
    num_layers, num_dense = int(raw["num_hidden_layers"]), int(raw["first_k_dense_replace"])
    check_size("num_layers", num_layers)
    rope = read_rope(raw, rotary_dim)
    return {
        "layers": tuple(LayerSpec(rope, has_experts=at >= num_dense) for at in range(num_layers)),
        "num_kv_heads": 1,
        "head_dim": rank + rotary_dim,
        "rotary_dim": rotary_dim,
        "attention_scale": (latent.key_dim + rotary_dim) ** -0.5 * _read_score_scale(raw) ** 2,
        "latent": latent,
    }


def _read_score_scale(raw: Mapping[str, Any]) -> float:
    """Return the number by which YaRN multiplies queries and keys, the parts that are not rotated, too."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    weight = scaling.get("mscale_all_dim")
    if not weight or scaling.get("rope_type", scaling.get("type", "default")) == "default":
        return 1.0
    return compute_yarn_scale(float(scaling["factor"]), float(weight))


def _read_experts(
    raw: Mapping[str, Any], scoring: Literal["softmax", "sigmoid"], groups: tuple[int, int]
) -> dict[str, Any]:
    ffn_size = int(raw["moe_intermediate_size"])
    experts = ExpertsConfig(
        num_experts=int(raw["n_routed_experts"]),
        num_used=int(raw["num_experts_per_tok"]),
        ffn_size=ffn_size,
        is_normalised=bool(raw.get("norm_topk_prob")),
        scoring=scoring,
        num_groups=groups[0],
        num_groups_used=groups[1],
        scale=float(raw["routed_scaling_factor"]),
        shared_size=int(raw.get("n_shared_experts") or 0) * ffn_size,
    )
    return {"experts": experts}


def dump_deepseek(config: ModelConfig) -> dict[str, Any]:
    """Return the keys of `config.json` that the functions above read."""
    latent, experts = config.latent, config.experts
    assert latent is not None, "the architecture says so"
    assert experts is not None, "the architecture says so"
    rotary_dim, rope = config.head_dim - latent.rank, config.layers[0].rope
    scaling = None if rope.divisors is None else build_rope_scaling(rope, config.max_positions)
    score_scale = math.sqrt((config.attention_scale or 1.0) * (latent.key_dim + rotary_dim) ** 0.5)
    if scaling is not None and not math.isclose(score_scale, 1.0):
        scaling |= {"mscale_all_dim": 1.0, "factor": math.exp((score_scale - 1.0) / 0.1)}
    is_v3, has_groups = experts.scoring == "sigmoid", experts.num_groups > 1
    own = {"rope_interleave": latent.is_interleaved} if is_v3 else {
        "topk_method": "group_limited_greedy" if has_groups else "greedy"
    }  # fmt: skip
    return own | {
        "num_key_value_heads": config.num_heads,
        "head_dim": rotary_dim,
        "partial_rotary_factor": None,
        "rope_scaling": scaling,
        "qk_rope_head_dim": rotary_dim,
        "qk_nope_head_dim": latent.key_dim,
        "v_head_dim": latent.value_dim,
        "kv_lora_rank": latent.rank,
        "q_lora_rank": latent.query_rank,
        "first_k_dense_replace": sum(not layer.has_experts for layer in config.layers),
        "n_routed_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_used,
        "moe_intermediate_size": experts.ffn_size,
        "n_shared_experts": experts.shared_size // experts.ffn_size,
        "norm_topk_prob": experts.is_normalised,
        "routed_scaling_factor": experts.scale,
        "n_group": experts.num_groups,
        "topk_group": experts.num_groups_used,
    }
