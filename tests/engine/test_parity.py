"""Our decoder gives the logits and the greedy text of transformers on the same weights, in float32."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.store import ModelStore, locate_copy, resolve
from agent_runtime.wiring import open_model
from engine.decoder import Decoder
from engine.engine import Engine
from engine.errors import WeightsError
from engine.families import parse_config
from engine.layers import Quantization
from engine.layers.linear import Blocked
from engine.types import GenerationRequest
from engine.weights import Parameters, load, save_folder
from engine.weights.checkpoint import read_json
from kernels.attention import can_attend
from tests.engine.tiny import FAMILIES, LLAMA, MISTRAL, QWEN3, TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_parameters
from tests.models import RealModel, real_model

LOGITS_BOUND = 1e-4
"""The norm of the difference of all logits, relative to the norm of their spread."""

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
OWN_YARN_ROPE = YARN_ROPE | {"attention_factor": 0.7, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False}
NUM_TOKENS = 70
"""Tokens of a test sequence: past the original length of the scaled models, and past most windows."""

MOE = {
    "num_key_value_heads": 3,
    "head_dim": 16,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
GEMMA = {
    "num_key_value_heads": 3,
    "head_dim": 16,
    "sliding_window": 9,
    "query_pre_attn_scalar": 20,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 7.0,
}
GEMMA3_ROPE = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    }
}
PHI3 = {
    "num_key_value_heads": 3,
    "head_dim": 16,
    "hidden_size": 96,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}

DEEPSEEK_YARN = OWN_YARN_ROPE | {"attention_factor": None, "mscale": 0.7, "mscale_all_dim": 1.3}
DEEPSEEK = {
    "num_key_value_heads": 6,
    "hidden_size": 48,
    "kv_lora_rank": 20,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
GROUPS = {"n_group": 4, "topk_group": 2}

VARIANTS = {
    "llama, as many KV heads": ("Llama", {"num_key_value_heads": 6, "tie_word_embeddings": False}),
    "llama, tied, groups of 2": ("Llama", {"num_key_value_heads": 3, "tie_word_embeddings": True}),
    "llama, wide heads, groups of 3": ("Llama", {"num_key_value_heads": 2, "head_dim": 16}),
    "llama, another RoPE base": ("Llama", {"num_key_value_heads": 1, "rope_parameters": {"rope_theta": 1e6}}),
    "llama, RoPE scaling of Llama 3": ("Llama", {"head_dim": 16, "rope_parameters": LLAMA3_ROPE}),
    "llama, linear RoPE scaling": (
        "Llama",
        {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}},
    ),
    "qwen2, YaRN": ("Qwen2", {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": YARN_ROPE}),
    "llama, YaRN with numbers of its own": ("Llama", {"head_dim": 16, "rope_parameters": OWN_YARN_ROPE}),
    "qwen2, as many KV heads": ("Qwen2", {"num_key_value_heads": 6}),
    "qwen2, one KV head": ("Qwen2", {"num_key_value_heads": 1}),
    "qwen2, groups of 2": ("Qwen2", {"num_key_value_heads": 3, "tie_word_embeddings": False}),
    "qwen2, tied, groups of 3": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3, as many KV heads, wide heads": ("Qwen3", {"num_key_value_heads": 6, "head_dim": 16}),
    "qwen3, tied, groups of 2, narrow heads": (
        "Qwen3",
        {"num_key_value_heads": 3, "head_dim": 4, "tie_word_embeddings": True},
    ),
    "qwen3, one KV head, RoPE scaling": (
        "Qwen3",
        {"num_key_value_heads": 1, "head_dim": 16, "rope_parameters": LLAMA3_ROPE},
    ),
    "mistral, as many KV heads, window of 16": ("Mistral", {"num_key_value_heads": 6, "sliding_window": 16}),
    "mistral, tied, groups of 3, window of 5, wide heads": (
        "Mistral",
        {"num_key_value_heads": 2, "sliding_window": 5, "head_dim": 16, "tie_word_embeddings": True},
    ),
    "mistral, one KV head, window of 1": ("Mistral", {"num_key_value_heads": 1, "sliding_window": 1}),
    "mistral, window never reached": ("Mistral", {"num_key_value_heads": 3, "sliding_window": 100}),
    "mistral, no window": ("Mistral", {"num_key_value_heads": 3, "sliding_window": None}),
    "llama, every bias": ("Llama", {"num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True}),
    "qwen2, windows in a part": (
        "Qwen2",
        {"num_key_value_heads": 3, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3, biases, windows in a part": (
        "Qwen3",
        {
            "num_key_value_heads": 3,
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3 moe, a dense layer": ("Qwen3Moe", MOE | {"mlp_only_layers": [1]}),
    "qwen3 moe, every second layer, biases, a window": (
        "Qwen3Moe",
        MOE
        | {"decoder_sparse_step": 2, "norm_topk_prob": True, "attention_bias": True}
        | {"use_sliding_window": True, "sliding_window": 7},
    ),
    "gemma2": ("Gemma2", GEMMA),
    "gemma2, other layers, a bias, no caps": (
        "Gemma2",
        GEMMA
        | {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "attention_bias": True}
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "tie_word_embeddings": False},
    ),
    "gemma3": (
        "Gemma3",
        GEMMA
        | GEMMA3_ROPE
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
        | {"sliding_window_pattern": 2},
    ),
    "gemma3, caps, other layers": (
        "Gemma3",
        GEMMA | {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "attention_bias": True},
    ),
    "olmo2": ("Olmo2", {"num_key_value_heads": 3}),
    "olmo2, tied, biases": ("Olmo2", {"num_key_value_heads": 6, "attention_bias": True, "tie_word_embeddings": True}),
    "phi3, a part of each head, a window": ("Phi3", PHI3 | {"sliding_window": 11}),
    "deepseek v2 lite, YaRN": ("DeepseekV2", DEEPSEEK | {"qk_rope_head_dim": 16, "rope_parameters": DEEPSEEK_YARN}),
    "deepseek v2, groups": (
        "DeepseekV2",
        DEEPSEEK | GROUPS | {"q_lora_rank": 28, "topk_method": "group_limited_greedy", "first_k_dense_replace": 2},
    ),
    "deepseek v3, YaRN": (
        "DeepseekV3",
        DEEPSEEK | GROUPS | {"q_lora_rank": 28, "qk_rope_head_dim": 16, "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek v3, no queries' vector, halves, tied": (
        "DeepseekV3",
        DEEPSEEK | GROUPS | {"rope_interleave": False, "norm_topk_prob": False, "tie_word_embeddings": True},
    ),
    "phi3, whole heads, tied": ("Phi3", {"num_key_value_heads": 3, "pad_token_id": None, "tie_word_embeddings": True}),
}


def tiny_transformers_model(family: str, changes: dict[str, Any]) -> Any:
    config_class = f"{family}TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, config_class)(
        attn_implementation="eager",  # the others of Gemma leave the cap out
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-6,
        }
        | changes,
    )
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():  # biases are 0 and norms 1 at first: nothing would show
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3)
        if "q_proj.weight" in name or "qkv_proj.weight" in name:
            parameter.data *= 2.0  # attention has peaks
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0.0, 0.3)
    return model


def logits_of(decoder: Decoder, token_ids: list[int], chunk_lens: Sequence[int] = ()) -> Tensor:
    """Logits behind every token; run in chunks of these lengths, where there are any."""
    caches = decoder.new_caches(1, len(token_ids))
    chunks = torch.split(torch.tensor(token_ids), list(chunk_lens) or [len(token_ids)])
    return torch.cat([decoder.logits(decoder.forward(chunk, caches)) for chunk in chunks])


def random_tokens(num_tokens: int) -> list[int]:
    return torch.randint(VOCAB_SIZE, (num_tokens,), generator=torch.Generator().manual_seed(1)).tolist()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / (expected - expected.mean()).norm())


@torch.inference_mode()
def reference_logits(model: Any, token_ids: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


def greedy_choices(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """What transformers chooses behind the prompt and behind each of `output`: its own output if both are equal."""
    return reference_logits(model, prompt + output[:-1])[len(prompt) - 1 :].argmax(dim=-1).tolist()  # type: ignore[no-any-return]


@pytest.fixture(params=VARIANTS)
def tiny_model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    family, changes = VARIANTS[request.param]
    model = tiny_transformers_model(family, changes)
    model.save_pretrained(tmp_path)
    return model, tmp_path


@pytest.mark.parametrize(
    "chunk_lens",
    [[NUM_TOKENS], [1, 15, 1, 2, 30, 1, 20], [17, 16, 16, 16, 5], [1] * NUM_TOKENS],
    ids=["prefill", "chunks of all lengths", "chunks across windows", "steps of one token"],
)
def test_logits_of_a_saved_transformers_model_are_equal(tiny_model: tuple[Any, Path], chunk_lens: list[int]) -> None:
    model, folder = tiny_model
    token_ids = random_tokens(NUM_TOKENS)
    ours = logits_of(Decoder(load(folder, torch.float32)), token_ids, chunk_lens)
    assert relative_error(ours, reference_logits(model, token_ids)) < LOGITS_BOUND


def test_greedy_continuations_of_a_saved_transformers_model_are_equal(tiny_model: tuple[Any, Path]) -> None:
    model, folder = tiny_model
    engine = Engine(Decoder(load(folder, torch.float32)), TOKEN_BYTES, 128)
    for prompt in ([3], list(range(40))):
        output = list(engine.run(GenerationRequest(prompt=prompt, max_new_tokens=64)).token_ids)
        assert len(output) == 64
        assert output == greedy_choices(model, prompt, output)


SENSITIVE = [
    "llama, every bias",
    "llama, RoPE scaling of Llama 3",
    "mistral, as many KV heads, window of 16",
    "qwen2, YaRN",
    "qwen2, windows in a part",
    "qwen3, biases, windows in a part",
    "qwen3 moe, every second layer, biases, a window",
    "gemma2",
    "gemma3",
    "olmo2",
    "phi3, a part of each head, a window",
    "deepseek v2 lite, YaRN",
    "deepseek v2, groups",
    "deepseek v3, YaRN",
]
"""Variants that use what a `config.json` of their family may say."""

KINDS = ("full_attention", "sliding_attention")
CHANGES: dict[str, Callable[[Any], Any]] = {
    "architectures": lambda value: ["Qwen3ForCausalLM" if value == ["LlamaForCausalLM"] else "LlamaForCausalLM"],
    "attention_bias": lambda value: not value,
    "decoder_sparse_step": lambda value: value % 2 + 1,
    "final_logit_softcapping": lambda value: 3.0,
    "first_k_dense_replace": lambda value: value + 1,
    "hidden_act": lambda _: "gelu_pytorch_tanh",
    "hidden_activation": lambda _: "silu",
    "layer_types": lambda value: [KINDS[value[0] == KINDS[0]], *value[1:]],
    "max_window_layers": lambda value: value + 1,
    "mlp_bias": lambda value: not value,
    "mlp_only_layers": lambda _: [1],
    "norm_topk_prob": lambda value: not value,
    "num_experts_per_tok": lambda value: value - 1,
    "query_pre_attn_scalar": lambda value: 2 * value,
    "attn_logit_softcapping": lambda value: 2.0,
    "rms_norm_eps": lambda value: 0.5,
    "sliding_window": lambda value: value - 1,
    "tie_word_embeddings": lambda value: not value,
    "use_bidirectional_attention": lambda _: True,
    "use_sliding_window": lambda value: not value,
    **dict.fromkeys(
        (
            *("head_dim", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads"),
            *("num_hidden_layers", "num_key_value_heads", "num_local_experts", "vocab_size"),
            *("kv_lora_rank", "n_routed_experts", "n_shared_experts", "q_lora_rank"),
            *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        ),
        lambda value: value + 2,
    ),
    **dict.fromkeys(
        (
            *("beta_fast", "beta_slow", "factor", "high_freq_factor", "low_freq_factor"),
            *("mscale", "mscale_all_dim", "routed_scaling_factor"),
        ),
        lambda value: 1.5 * value,
    ),
    "n_group": lambda value: value // 2,
    **dict.fromkeys(("rope_interleave", "truncate"), lambda value: not value),
    "topk_group": lambda value: value - 1,
    "topk_method": lambda value: "group_limited_greedy" if value == "greedy" else "greedy",
    "attention_factor": lambda _: 2.0,
    "original_max_position_embeddings": lambda value: value // 2,
    "partial_rotary_factor": lambda value: value / 2,
    "rope_theta": lambda value: 10 * value,
    "rope_type": lambda value: "linear" if value != "linear" else "default",
}
SILENT = {
    *("attention_dropout", "bos_token_id", "dtype", "embd_pdrop", "eos_token_id", "initializer_range", "model_type"),
    *("num_nextn_predict_layers", "output_router_logits", "pad_token_id", "pretraining_tp", "qk_head_dim"),
    *("resid_pdrop", "router_aux_loss_coef"),
    *("transformers_version", "use_cache"),
    *(
        "max_window_layers",
        "_sliding_window_pattern",
        "sliding_window_pattern",
    ),  # transformers writes `layer_types`, too
}
"""What is of training or of the tokenizer, and what other fields say."""

UNUSED = {
    *((name, "head_dim") for name in SENSITIVE if name.startswith("deepseek")),  # `qk_rope_head_dim` takes its place
    ("gemma3", "attn_logit_softcapping"),  # transformers reads it and leaves it out
    ("phi3, a part of each head, a window", "original_max_position_embeddings"),  # without a scaling
    ("qwen2, YaRN", "use_sliding_window"),  # without a layer that has a window
}


@cache
def saved_variant(name: str, folder: Path) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Its `config.json`, our logits and those of transformers."""
    model = tiny_transformers_model(*VARIANTS[name])
    model.save_pretrained(folder)
    logits = logits_of(Decoder(load(folder, torch.float32)), random_tokens(NUM_TOKENS))
    return read_json(folder / "config.json"), logits, reference_logits(model, random_tokens(NUM_TOKENS))


def list_fields(raw: dict[str, Any]) -> list[tuple[str, ...]]:
    """The paths of all values."""
    return [
        (key, *path)
        for key, value in raw.items()
        for path in (list_fields(value) if isinstance(value, dict) and value else [()])
    ]


def changed(raw: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    key, *rest = path
    return raw | {key: changed(raw[key], tuple(rest), value) if rest else value}


@pytest.mark.parametrize("name", SENSITIVE)
def test_each_field_of_a_config_shows(name: str, tmp_path: Path) -> None:
    """Changed alone, it is refused, or the logits are others, or the longest sequence is."""
    raw, ours, reference = saved_variant(name, tmp_path)
    assert relative_error(ours, reference) < LOGITS_BOUND
    for path in list_fields(raw):
        key, value = path[-1], raw
        for each in path:
            value = value[each]
        if value is None or key in SILENT or (name, key) in UNUSED:
            continue
        if key == "max_position_embeddings":
            assert parse_config(raw | {key: 16 * value}).max_positions != parse_config(raw).max_positions
            continue
        other = changed(raw, path, CHANGES[key](value))
        (tmp_path / "config.json").write_text(json.dumps(other))
        try:
            logits = logits_of(Decoder(load(tmp_path, torch.float32)), random_tokens(NUM_TOKENS))
        except (WeightsError, IndexError):  # IndexError: a token that the smaller model does not have
            continue
        error = relative_error(logits, reference)
        assert not error < 1e-2, f"{path}: {value} -> {CHANGES[key](value)} changes the logits by {error:.1e} only"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        LLAMA | {"tied_embeddings": True},
        LLAMA | {"rope_divisors": (1.0, 1.5, 8.0, 8.0)},
        MISTRAL,
        MISTRAL | {"sliding_window": 3, "head_dim": 16},
        QWEN3 | {"head_dim": 16},
        *FAMILIES.values(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_reads_what_we_save_and_so_do_we(
    tmp_path: Path, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    parameters = tiny_parameters(tiny_config(**changes), dtype=dtype)
    save_folder(parameters, tmp_path)
    again = load(tmp_path, dtype)
    assert again.config == parameters.config
    assert all(torch.equal(again.slots()[name], tensor) for name, tensor in parameters.slots().items())
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert model.dtype == dtype
    if dtype == torch.float32:
        token_ids = [5, 9, 2, 40, 7, 7]
        error = relative_error(logits_of(Decoder(again), token_ids), reference_logits(model, token_ids))
        assert error < LOGITS_BOUND


@pytest.fixture(scope="module")
def transformers_smollm2(smollm2: RealModel) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # `accelerate` is asked for, and not used when weights are dequantised into memory.
        patch.setattr("transformers.modeling_utils.is_accelerate_available", lambda *_: True)
        return transformers.AutoModelForCausalLM.from_pretrained(
            smollm2.path.parent,
            gguf_file=smollm2.path.name,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
        ).eval()


REAL_TEXTS = {
    "code": "def quicksort(items):\n    if len(items) <= 1:\n        return items\n    pivot =",
    "prose": "The capital of France is",
    "a file": Path(__file__).read_text(encoding="utf-8")[:500],
}


@pytest.mark.parametrize("name", REAL_TEXTS)
def test_real_logits_equal_transformers(
    smollm2: RealModel, smollm2_decoder: Decoder, transformers_smollm2: Any, name: str
) -> None:
    token_ids = smollm2.tokenizer.encode(REAL_TEXTS[name])
    expected = reference_logits(transformers_smollm2, token_ids)
    assert relative_error(logits_of(smollm2_decoder, token_ids), expected) < LOGITS_BOUND


def test_a_real_greedy_continuation_equals_that_of_transformers(
    smollm2: RealModel, smollm2_engine: Engine, transformers_smollm2: Any
) -> None:
    prompt = smollm2.tokenizer.encode(REAL_TEXTS["code"])
    output = list(smollm2_engine.run(GenerationRequest(prompt=prompt, max_new_tokens=32)).token_ids)
    assert len(output) == 32
    assert output == greedy_choices(transformers_smollm2, prompt, output)


# The catalogue's Qwen models.


def kept_copy(model: RealModel) -> Path:
    """The bf16 folder that the first start makes; transformers takes half a minute to read the GGUF file."""
    settings = ModelSettings.from_env(os.environ)
    folder = locate_copy(resolve(model.name, ModelStore(settings.cache_dir)), settings.cache_dir)
    if not folder.is_dir():
        open_model(model.name, settings, LoadOptions(context=256))
    return folder


def transformers_logits(folder: Path, token_ids: list[int]) -> Tensor:
    return reference_logits(
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), token_ids
    )


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", pytest.param("qwen2.5-coder-1.5b", marks=pytest.mark.long)])
def test_catalogue_logits_equal_transformers(name: str) -> None:
    """Computed in float32, on weights that bf16 holds; one model after the other, as there may be room for one."""
    model = real_model(name)
    folder = kept_copy(model)
    token_ids = model.tokenizer.encode(REAL_TEXTS["a file"])
    torch.set_num_threads(os.cpu_count() or 1)
    expected = transformers_logits(folder, token_ids)
    actual = logits_of(Decoder(load(folder, torch.float32)), token_ids, [len(token_ids) - 20, 1, 19])
    assert relative_error(actual, expected) < LOGITS_BOUND
    assert torch.equal(actual.argmax(dim=-1), expected.argmax(dim=-1))


# Models in fewer bits stay near the model in float32.


def rounded(parameters: Parameters, dtype: torch.dtype) -> Parameters:
    return Parameters(parameters.config, dtype, read=parameters.slots().__getitem__)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float16, 0.05), (torch.bfloat16, 0.4)],  # of the largest logit's error to the spread: 2^-11 and 2^-8 a step
)
@pytest.mark.parametrize("changes", [{}, QWEN3 | {"head_dim": 16}], ids=["qwen2", "qwen3"])
def test_logits_of_a_tiny_model_are_near_those_in_float32(
    changes: dict[str, object], dtype: torch.dtype, bound: float
) -> None:
    parameters = tiny_parameters(tiny_config(**changes))
    low = Decoder(rounded(parameters, dtype))
    token_ids = random_tokens(30)
    actual, expected = logits_of(low, token_ids), logits_of(Decoder(parameters), token_ids)
    assert actual.dtype == dtype
    assert 0 < relative_error(actual.float(), expected) < bound


def test_a_real_models_logits_in_float16_are_near_those_in_float32(
    smollm2: RealModel, smollm2_decoder: Decoder
) -> None:
    token_ids = smollm2.tokenizer.encode(REAL_TEXTS["a file"])
    actual = logits_of(Decoder(load(smollm2.gguf, torch.float16)), token_ids).float()
    expected = logits_of(smollm2_decoder, token_ids)
    assert 0 < relative_error(actual, expected) < 0.04  # 0.017 seen; in bfloat16 0.18
    assert (actual.argmax(dim=-1) == expected.argmax(dim=-1)).float().mean() > 0.98


def test_the_kv_of_another_dtype_or_scheme_is_never_taken_for_this_ones() -> None:
    """Nor that of int8 with other terms, which a folder that two machines share may hold."""

    def name(dtype: torch.dtype, scheme: Quantization | None = None, activations: torch.dtype | None = None) -> bytes:
        return Decoder(rounded(tiny_parameters(tiny_config()), dtype), scheme, activations).fingerprint

    names = [name(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    names += [name(torch.float32, scheme) for scheme in SCHEMES]
    names += [name(torch.bfloat16, scheme, torch.float32) for scheme in (None, *SCHEMES)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.precision.find_int8_step", lambda: 64)
        names.append(name(torch.float32, "int8"))
    assert len(set(names)) == len(names) == 9
    assert name(torch.bfloat16, None, torch.bfloat16) == name(torch.bfloat16)


SCHEMES: tuple[Quantization, ...] = ("int8", "int4")


@pytest.mark.parametrize(
    ("scheme", "activations", "bound", "alike"),
    [
        (None, torch.float32, 0.15, 0.97),  # 0.05 and 0.993 seen
        ("int8", torch.float32, 0.8, 0.9),
        ("int8", torch.bfloat16, 0.8, 0.9),
        ("int4", torch.float32, 1.6, 0.85),
        ("int4", torch.bfloat16, 1.6, 0.85),
    ],
)
def test_a_real_models_logits_in_fewer_bits_are_near_those_in_float32(
    smollm2: RealModel,
    smollm2_decoder: Decoder,
    scheme: Quantization | None,
    activations: torch.dtype,
    bound: float,
    alike: float,
) -> None:
    token_ids = smollm2.tokenizer.encode(REAL_TEXTS["a file"])
    decoder = Decoder(load(smollm2.gguf, torch.bfloat16), scheme, activations)
    actual, expected = logits_of(decoder, token_ids), logits_of(smollm2_decoder, token_ids)
    assert actual.dtype == activations
    assert 0 < relative_error(actual.float(), expected) < bound
    assert (actual.argmax(dim=-1) == expected.argmax(dim=-1)).float().mean() > alike


@pytest.mark.parametrize(
    ("scheme", "activations"),
    [(None, torch.float32), (None, torch.bfloat16), ("int8", torch.float32), ("int8", torch.bfloat16)],
)
def test_the_logits_of_a_position_have_the_same_bits_however_many_rows_a_pass_has(
    smollm2: RealModel, scheme: Quantization | None, activations: torch.dtype
) -> None:
    """The logits of 100 positions, in passes of 1, 8, 64 and 256 rows: a draft is verified by what wrote it."""
    config = smollm2.gguf.config
    if not can_attend(activations, torch.bfloat16, config.head_dim):
        pytest.skip(f"there are no kernels for {activations} here: they need Linux and g++, and AVX512-BF16 for bf16")
    decoder = Decoder(load(smollm2.gguf, torch.bfloat16), scheme, activations)
    if scheme is None and not isinstance(decoder.weights.layers[0].attention_out, Blocked):
        pytest.skip("oneDNN is much quicker here, and its bits depend on the number of rows")
    token_ids = torch.randint(config.vocab_size, (356,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = logits_of(decoder, token_ids, [100, 256])[-100:]
    for num_rows in (1, 8, 64):
        chunks = [256, *[num_rows] * (100 // num_rows), *[100 % num_rows] * (100 % num_rows > 0)]
        assert torch.equal(logits_of(decoder, token_ids, chunks)[-100:], expected), num_rows
