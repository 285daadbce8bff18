"""The model families: how each one's `config.json` is read, and what its tensors are called.

A further dense family is one entry of FAMILIES: a function that returns what differs from Llama, and the names of its
modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.config import ExpertsConfig, LayerSpec, ModelConfig, Rope, check_size
from engine.deepseek import LATENT_MODULES, WITHOUT_QUERY_RANK, dump_deepseek, read_deepseek_v2, read_deepseek_v3
from engine.errors import WeightsError
from engine.rope_config import build_rope_scaling, read_max_positions, read_rope, read_rotary_dim

Raw = Mapping[str, Any]
"""A `config.json`."""

Modules = Mapping[str, tuple[str, ...]]
"""By the field of `LayerParameters`: the modules of a layer whose weights are its parts, in this order."""

LLAMA_MODULES: Modules = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "query_norm": ("self_attn.q_norm",),
    "key_norm": ("self_attn.k_norm",),
    "attention_out": ("self_attn.o_proj",),
    "ffn_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "router": ("mlp.gate",),
    "expert_gate_up": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
    "expert_down": ("mlp.experts.{}.down_proj",),
}

GEMMA_MODULES: Modules = {
    **LLAMA_MODULES,
    "attention_out_norm": ("post_attention_layernorm",),
    "ffn_norm": ("pre_feedforward_layernorm",),
    "ffn_out_norm": ("post_feedforward_layernorm",),
}

MISTRAL_WINDOW, PHI3_EPS = 4096, 1e-5
"""What transformers takes if a `config.json` has no window or no epsilon."""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. model_type: of transformers. read: returns the fields of `ModelConfig` that are not those of a
    Llama without biases; KeyError if a number is missing. dump: returns the keys of `config.json` that `read` makes
    them of. switches: keys of `config.json` that other families refuse.
    """

    model_type: str
    modules: Modules
    read: Callable[[Raw], dict[str, Any]]
    dump: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}
    switches: frozenset[str] = frozenset()


def _read_llama(raw: Raw) -> dict[str, Any]:
    return _read_biases(raw) | {"ffn_bias": bool(raw.get("mlp_bias"))}


def _dump_llama(config: ModelConfig) -> dict[str, Any]:
    return {"mlp_bias": config.ffn_bias}


def _read_biases(raw: Raw) -> dict[str, Any]:
    has_bias = bool(raw.get("attention_bias"))
    return {"qkv_bias": has_bias, "attention_out_bias": has_bias}


def _read_mistral(raw: Raw) -> dict[str, Any]:
    return _repeat_layer(raw, raw.get("sliding_window", MISTRAL_WINDOW))


def _dump_mistral(config: ModelConfig) -> dict[str, Any]:
    return {"sliding_window": _find_window(config)}


def _read_qwen2(raw: Raw) -> dict[str, Any]:
    return {"qkv_bias": True} | _read_qwen_layers(raw)


def _read_qwen3(raw: Raw) -> dict[str, Any]:
    return {"qk_norm": "head"} | _read_biases(raw) | _read_qwen_layers(raw)


def _read_qwen_layers(raw: Raw) -> dict[str, Any]:
    """Return the layers of a Qwen: with the switch, those from `max_window_layers` on have windows."""
    if not raw.get("use_sliding_window"):
        return _repeat_layer(raw)
    first = int(raw.get("max_window_layers", 28))
    return _alternate_layers(raw, lambda layer: layer >= first)


def _dump_qwen(config: ModelConfig) -> dict[str, Any]:
    return {"use_sliding_window": True} | _dump_layers(config) if config.has_windows else {}


def _read_qwen3_moe(raw: Raw) -> dict[str, Any]:
    """Return the fields of a mixture of experts: some of its layers may be dense."""
    window = raw.get("sliding_window", 4096) if raw.get("use_sliding_window") else None
    (layer, *_), num_layers = _repeat_layer(raw, window)["layers"], _get_num_layers(raw)
    dense, step = raw.get("mlp_only_layers") or (), int(raw.get("decoder_sparse_step", 1))
    layers = tuple(
        LayerSpec(layer.rope, layer.window, has_experts=at not in dense and (at + 1) % step == 0)
        for at in range(num_layers)
    )
    experts = ExpertsConfig(
        num_experts=int(raw["num_experts"] if "num_experts" in raw else raw["num_local_experts"]),
        num_used=int(raw["num_experts_per_tok"]),
        ffn_size=int(raw["moe_intermediate_size"]),
        is_normalised=bool(raw.get("norm_topk_prob", False)),
    )
    return {"qk_norm": "head", "layers": layers, "experts": experts} | _read_biases(raw)


def _dump_qwen3_moe(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None, "the architecture says so"
    windows = {"use_sliding_window": True, "sliding_window": _find_window(config)} if config.has_windows else {}
    return windows | {
        "num_experts": config.experts.num_experts,
        "num_experts_per_tok": config.experts.num_used,
        "moe_intermediate_size": config.experts.ffn_size,
        "norm_topk_prob": config.experts.is_normalised,
        "mlp_only_layers": [at for at, layer in enumerate(config.layers) if not layer.has_experts],
    }


def _read_gemma(raw: Raw) -> dict[str, Any]:
    if raw.get("use_bidirectional_attention"):
        raise WeightsError("attention to later tokens (use_bidirectional_attention) is not supported")
    return _read_biases(raw) | {
        "norms_after": True,
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "embedding_scale": float(raw["hidden_size"]) ** 0.5,
        "attention_scale": float(raw["query_pre_attn_scalar"]) ** -0.5,
        "tied_embeddings": bool(raw.get("tie_word_embeddings", True)),
    }


def _read_gemma2(raw: Raw) -> dict[str, Any]:
    caps = {
        "attention_cap": raw.get("attn_logit_softcapping", 50.0),
        "logit_cap": raw.get("final_logit_softcapping", 30.0),
    }
    return _read_gemma(raw) | caps | _alternate_layers(raw, lambda layer: layer % 2 == 0)


def _dump_gemma(config: ModelConfig) -> dict[str, Any]:
    assert config.attention_scale is not None, "`_read_gemma` says so"
    return _dump_layers(config) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(config.attention_scale**-2),
        "attn_logit_softcapping": config.attention_cap,
        "final_logit_softcapping": config.logit_cap,
    }


def _read_gemma3(raw: Raw) -> dict[str, Any]:
    caps = {"logit_cap": raw.get("final_logit_softcapping")}  # transformers applies none to scores
    every = int(raw.get("sliding_window_pattern") or 6)
    nested = raw.get("rope_parameters") or {}
    local = nested.get("sliding_attention") or {"rope_theta": float(raw.get("rope_local_base_freq", 10_000.0))}
    full = nested.get("full_attention") or {"rope_theta": float(raw.get("rope_theta", 1e6))} | (
        raw.get("rope_scaling") or {}
    )
    layers = _alternate_layers(raw, lambda layer: (layer + 1) % every != 0, full, local)
    return _read_gemma(raw) | caps | layers | {"qk_norm": "head"}


def _dump_gemma3(config: ModelConfig) -> dict[str, Any]:
    ropes = {kind: layer.rope for kind, layer in zip(_list_kinds(config), config.layers, strict=True)}
    parameters = {
        kind: {"rope_theta": rope.theta, "rope_type": "default"}
        | ({} if rope.divisors is None else build_rope_scaling(rope, config.max_positions))
        for kind, rope in ropes.items()
    }
    return _dump_gemma(config) | {"rope_scaling": None, "rope_parameters": parameters}


def _read_olmo2(raw: Raw) -> dict[str, Any]:
    return _read_biases(raw) | {"qk_norm": "all", "norms_before": False, "norms_after": True}


def _read_phi3(raw: Raw) -> dict[str, Any]:
    """Return the fields of a Phi-3 or Phi-4. Its scheme was called `su` and `yarn` before."""
    scaling = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    if scaling.get("rope_type", scaling.get("type")) in ("su", "yarn"):
        scaling["rope_type"] = "longrope"
    return _repeat_layer(raw, raw.get("sliding_window"), scaling) | {
        "rms_norm_eps": float(raw.get("rms_norm_eps", PHI3_EPS))
    }


def _dump_phi3(config: ModelConfig) -> dict[str, Any]:
    # transformers' default of pad_token_id is beyond a small vocabulary
    return {"sliding_window": _find_window(config), "pad_token_id": None}


def _repeat_layer(raw: Raw, window: int | None = None, rope: Raw | None = None) -> dict[str, Any]:
    """Return layers that are all alike; `rope` takes the place of the RoPE parameters of `config.json`."""
    kinds = raw.get("layer_types") or ()
    expected = "full_attention" if window is None else "sliding_attention"
    if any(kind != expected for kind in kinds):
        raise WeightsError(f"layer_types other than {expected} are not supported for {_get_architecture(raw)} yet")
    layer = LayerSpec(_read_rope(raw, rope), None if window is None else int(window))
    return {"layers": (layer,) * _get_num_layers(raw)}


def _alternate_layers(
    raw: Raw, has_window: Callable[[int], bool], rope: Raw | None = None, window_rope: Raw | None = None
) -> dict[str, Any]:
    """Return layers with and without a window: by `layer_types`, or where there are none by their number. Those with a
    window may have a RoPE of their own.
    """
    num_layers = _get_num_layers(raw)
    kinds: Sequence[str] = raw.get("layer_types") or [
        "sliding_attention" if has_window(layer) else "full_attention" for layer in range(num_layers)
    ]
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise WeightsError(
            f"layer_types are those of {len(kinds)} of {num_layers} layers: {', '.join(sorted(set(kinds)))}"
        )
    window = raw.get("sliding_window", 4096)
    of_kind = {"full_attention": LayerSpec(_read_rope(raw, rope))}
    if window is None:
        of_kind["sliding_attention"] = of_kind["full_attention"]
    elif "sliding_attention" in kinds:
        of_kind["sliding_attention"] = LayerSpec(_read_rope(raw, window_rope or rope), int(window))
    return {"layers": tuple(of_kind[kind] for kind in kinds)}


def _dump_layers(config: ModelConfig) -> dict[str, Any]:
    """Return the keys that `_alternate_layers` reads."""
    return {"sliding_window": _find_window(config), "layer_types": _list_kinds(config)}


def _find_window(config: ModelConfig) -> int | None:
    return next((layer.window for layer in config.layers if layer.window is not None), None)


def _list_kinds(config: ModelConfig) -> list[str]:
    return ["full_attention" if layer.window is None else "sliding_attention" for layer in config.layers]


def _read_rope(raw: Raw, parameters: Raw | None = None) -> Rope:
    own = raw if parameters is None else {**raw, "rope_scaling": parameters, "rope_parameters": None}
    return read_rope(own, read_rotary_dim(own, _get_head_dim(raw)))


DEEPSEEK_MODULES: Modules = {**LLAMA_MODULES, **LATENT_MODULES}
PHI3_MODULES: Modules = {**LLAMA_MODULES, "qkv": ("self_attn.qkv_proj",), "gate_up": ("mlp.gate_up_proj",)}
BIASES, WINDOWS, EXPERTS = {"attention_bias"}, {"use_sliding_window"}, {"num_experts", "num_local_experts"}

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family("llama", LLAMA_MODULES, _read_llama, _dump_llama, frozenset(BIASES | {"mlp_bias"})),
    "MistralForCausalLM": Family("mistral", LLAMA_MODULES, _read_mistral, _dump_mistral),
    "Qwen2ForCausalLM": Family("qwen2", LLAMA_MODULES, _read_qwen2, _dump_qwen, frozenset(BIASES | WINDOWS)),
    "Qwen3ForCausalLM": Family("qwen3", LLAMA_MODULES, _read_qwen3, _dump_qwen, frozenset(BIASES | WINDOWS)),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe", LLAMA_MODULES, _read_qwen3_moe, _dump_qwen3_moe, frozenset(BIASES | WINDOWS | EXPERTS)
    ),
    "Gemma2ForCausalLM": Family("gemma2", GEMMA_MODULES, _read_gemma2, _dump_gemma, frozenset(BIASES)),
    "Gemma3ForCausalLM": Family("gemma3_text", GEMMA_MODULES, _read_gemma3, _dump_gemma3, frozenset(BIASES)),
    "Olmo2ForCausalLM": Family("olmo2", GEMMA_MODULES, _read_olmo2, switches=frozenset(BIASES)),
    "Phi3ForCausalLM": Family("phi3", PHI3_MODULES, _read_phi3, _dump_phi3, frozenset({"partial_rotary_factor"})),
    "DeepseekV2ForCausalLM": Family(
        "deepseek_v2", DEEPSEEK_MODULES, read_deepseek_v2, dump_deepseek, frozenset(EXPERTS)
    ),
    "DeepseekV3ForCausalLM": Family(
        "deepseek_v3", DEEPSEEK_MODULES, read_deepseek_v3, dump_deepseek, frozenset(EXPERTS)
    ),
}
"""The families by Hugging Face's names of their architectures."""


def list_modules(config: ModelConfig) -> Modules:
    """Return the modules of a model's layers."""
    modules = FAMILIES[config.architecture].modules
    is_plain = config.latent is not None and config.latent.query_rank is None
    return {**modules, **WITHOUT_QUERY_RANK} if is_plain else modules


REFUSED = {
    "attention_bias": "a bias in the attention part",
    "use_sliding_window": "sliding-window attention in a part of the layers",
    "mlp_bias": "a bias in the feed-forward part",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "partial_rotary_factor": "rotary embedding of a part of each head",
}
"""Switches of `config.json` that would change the result, and what each asks for."""

LINEAR_ATTENTION = "it has layers of linear attention, whose state is not a key and value for each token: spans of it \
cannot be reused, and rejected drafts cannot be taken back"
NOT_SUPPORTED = {
    "Qwen3NextForCausalLM": LINEAR_ATTENTION,
    "Qwen3_5ForCausalLM": LINEAR_ATTENTION,
    "Qwen3_5ForConditionalGeneration": LINEAR_ATTENTION,
    "Qwen3_5MoeForCausalLM": LINEAR_ATTENTION,
    "Qwen3_5MoeForConditionalGeneration": LINEAR_ATTENTION,
    "Gemma3ForConditionalGeneration": "it is for images, too; take its text model (Gemma3ForCausalLM)",
}
"""Architectures that people ask for, and why they are refused."""


def parse_config(raw: Raw) -> ModelConfig:
    """Read a Hugging Face `config.json`; raises WeightsError where it asks for what the decoder does not do."""
    try:
        architecture = _get_architecture(raw)
        if architecture in NOT_SUPPORTED:
            raise WeightsError(f"{architecture} is not supported: {NOT_SUPPORTED[architecture]}")
        if architecture not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise WeightsError(f"architecture {architecture} is not supported; supported are: {known}")
        family = FAMILIES[architecture]
        _refuse_unsupported(raw, family)
        fields: dict[str, Any] = {
            "architecture": architecture,
            "hidden_size": int(raw["hidden_size"]),
            "num_heads": int(raw["num_attention_heads"]),
            "num_kv_heads": _get_num_kv_heads(raw, architecture),
            "head_dim": _get_head_dim(raw),
            "ffn_size": int(raw["intermediate_size"]),
            "vocab_size": int(raw["vocab_size"]),
            "max_positions": read_max_positions(raw),
            "tied_embeddings": bool(raw.get("tie_word_embeddings", False)),
        }
        rotary_dim = read_rotary_dim(raw, fields["head_dim"])
        if rotary_dim != fields["head_dim"]:
            fields["rotary_dim"] = rotary_dim
        fields |= family.read(raw)
        if "layers" not in fields:
            fields |= _repeat_layer(raw)
        if "rms_norm_eps" not in fields:
            fields["rms_norm_eps"] = float(raw["rms_norm_eps"])
        return ModelConfig(**fields)
    except KeyError as error:
        raise WeightsError(f"config.json has no {error.args[0]!r}") from None
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise WeightsError(f"config.json is damaged: {error}") from error


def dump_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` that `parse_config` and transformers read as this config."""
    rope = config.layers[0].rope
    raw: dict[str, Any] = {
        "architectures": [config.architecture],
        "model_type": FAMILIES[config.architecture].model_type,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rope_theta": rope.theta,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.qkv_bias,
        "hidden_act": "silu",
    }
    if rope.divisors is not None:
        raw["rope_scaling"] = build_rope_scaling(rope, config.max_positions)
    if config.rotary_dim is not None:
        raw["partial_rotary_factor"] = config.rotary_dim / config.head_dim
    return raw | FAMILIES[config.architecture].dump(config)


def _get_num_layers(raw: Raw) -> int:
    num_layers = int(raw["num_hidden_layers"])
    check_size("num_layers", num_layers)
    return num_layers


def _get_architecture(raw: Raw) -> str:
    return str((raw.get("architectures") or ["(none named)"])[0])


def _get_num_kv_heads(raw: Raw, architecture: str) -> int:
    """Return the number of KV heads. Those of Llama, OLMo and Phi default to the number of query heads; the others'
    defaults fit one model.
    """
    has_default = architecture in ("LlamaForCausalLM", "Olmo2ForCausalLM", "Phi3ForCausalLM")
    known = raw.get("num_key_value_heads") if has_default else raw["num_key_value_heads"]
    return int(raw["num_attention_heads"] if known is None else known)


def _get_head_dim(raw: Raw) -> int:
    has_own_default = _get_architecture(raw) in ("Qwen3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM")
    known = raw["head_dim"] if has_own_default else raw.get("head_dim")
    return int(raw["hidden_size"]) // int(raw["num_attention_heads"]) if known is None else int(known)


def _refuse_unsupported(raw: Raw, family: Family) -> None:
    """Raise WeightsError for settings that would silently give wrong numbers."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    for key, what in REFUSED.items():
        value = raw.get(key) or (key == "partial_rotary_factor" and scaling.get(key))
        if key not in family.switches and value and not (key == "partial_rotary_factor" and float(value) == 1.0):
            raise WeightsError(f"{what} ({key}) is not supported for {_get_architecture(raw)}; take a model without it")
    expected = "gelu_pytorch_tanh" if family.model_type.startswith("gemma") else "silu"
    activation = raw.get("hidden_activation" if family.model_type.startswith("gemma") else "hidden_act", expected)
    if activation != expected:
        raise WeightsError(f"activation {activation!r} is not supported; only {expected} is")
    if raw.get("quantization_config"):
        raise WeightsError("quantised safetensors are not supported; take the unquantised model or a GGUF file")
