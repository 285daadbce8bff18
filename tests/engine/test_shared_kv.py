"""Layers may attend to the keys and values of an earlier one (Brandon et al. 2024, arXiv 2405.12981)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Gemma3nTextConfig

from engine.config import LayerSpec, ModelConfig, Rope
from engine.decoder import Decoder
from engine.errors import WeightsError
from engine.kv_pool import page_bytes
from engine.reuse import Reuse
from engine.types import GenerationRequest
from engine.weights import Parameters
from tests.engine.cores import PROMPT, Oracle, alone, make_core, run_one, same
from tests.engine.reuse.turns import edited, random_ids, reusing_core, run
from tests.engine.runner.kernel_cores import by_kernels, kernel_core
from tests.engine.test_parity import logits_of, relative_error
from tests.engine.tiny import QWEN3, VOCAB_SIZE, tiny_config, tiny_parameters

SHARED: dict[str, Any] = QWEN3 | {
    "head_dim": 16,
    "layers": tuple(LayerSpec(Rope(1e4), window) for window in (None, None, 9, None, 5)),
    "kv_of_layer": (0, 0, 1, 0, 1),
}


def compute_plainly(parameters: Parameters, token_ids: Tensor) -> Tensor:
    """Logits of a whole sequence by plain operations, layer after layer."""
    config, hidden = parameters.config, F.embedding(token_ids, parameters.embedding)
    stored: dict[int, tuple[Tensor, Tensor]] = {}
    for index, spec in enumerate(config.layers):
        layer = parameters.layer(index)
        normed = F.rms_norm(hidden, (config.hidden_size,), layer.attention_norm, config.rms_norm_eps)
        query, *pair = (normed @ layer.qkv.T).split([size for size in config.get_qkv_sizes(index) if size], dim=1)
        heads = rotate(query, layer.query_norm, config)
        if pair:
            values = pair[1].view(len(token_ids), config.num_kv_heads, -1)
            stored[config.get_kv_layer(index)] = rotate(pair[0], layer.key_norm, config), values
        keys, values = stored[config.get_kv_layer(index)]
        attended = attend(heads, keys, values, spec.window)
        hidden = hidden + attended @ layer.attention_out.T
        normed = F.rms_norm(hidden, (config.hidden_size,), layer.ffn_norm, config.rms_norm_eps)
        gate, up = (normed @ layer.gate_up.T).chunk(2, dim=1)
        hidden = hidden + (F.silu(gate) * up) @ layer.down.T
    normed = F.rms_norm(hidden, (config.hidden_size,), parameters.final_norm, config.rms_norm_eps)
    return normed @ parameters.lm_head.T


def rotate(rows: Tensor, norm: Tensor, config: ModelConfig) -> Tensor:
    heads = F.rms_norm(rows.view(len(rows), -1, config.head_dim), (config.head_dim,), norm, config.rms_norm_eps)
    half = config.head_dim // 2
    angles = torch.arange(len(rows))[:, None] / 1e4 ** (torch.arange(half) / half)
    first, second = heads.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(query: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    distance = torch.arange(len(query))[:, None] - torch.arange(len(query))
    hidden = (distance < 0) | (distance >= (window or len(query)))
    scores = torch.einsum("thd,shd->hts", query, keys) / query.shape[2] ** 0.5
    shares = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hts,shd->thd", shares, values).flatten(1)


@pytest.mark.parametrize("chunks", [[60], [1] * 60, [7, 1, 40, 12]])
def test_logits_are_those_of_plain_operations(chunks: list[int]) -> None:
    token_ids = random_ids(Random(1), 60)
    expected = compute_plainly(tiny_parameters(tiny_config(**SHARED)), torch.tensor(token_ids))
    decoder = Decoder(tiny_parameters(tiny_config(**SHARED)))
    assert relative_error(logits_of(decoder, token_ids, chunks), expected) < 1e-5


def test_only_layers_that_compute_keys_have_them_and_a_place_in_the_pool() -> None:
    config = tiny_config(**SHARED)
    own = [name for name in Parameters(config, torch.float32, "meta").slots() if "k_proj" in name]
    assert own == ["model.layers.0.self_attn.k_proj.weight", "model.layers.2.self_attn.k_proj.weight"]
    whole = tiny_config(**SHARED | {"kv_of_layer": None})
    assert page_bytes(config, 16, torch.float32) * 5 == page_bytes(whole, 16, torch.float32) * 2
    assert len(make_core(model=Decoder(tiny_parameters(config)))._pool.keys) == 2


def test_the_layers_that_gemma_3n_lets_share_can_be_named() -> None:
    """Its last 15 of 35 layers attend to the keys and values of the last local or global layer before them."""
    theirs = Gemma3nTextConfig()
    ropes = {"sliding_attention": Rope(1e4), "full_attention": Rope(1e6)}
    stored: dict[str, int] = {}
    kv_of_layer: list[int] = []
    for kind, mode in zip(theirs.layer_types, theirs.kv_sharing_modes, strict=True):
        own = len(set(kv_of_layer))
        kv_of_layer.append(stored[kind] if mode == "reuse" else own)
        if mode == "store":
            stored[kind] = own
    layers = tuple(LayerSpec(ropes[kind], 512 if kind == "sliding_attention" else None) for kind in theirs.layer_types)
    config = tiny_config(**SHARED | {"layers": layers, "kv_of_layer": tuple(kv_of_layer)})
    assert config.num_layers == 35
    assert config.num_kv_layers == 35 - theirs.num_kv_shared_layers
    assert {config.get_kv_layer(layer) for layer in range(20, 35)} == {18, 19}, (
        "the last local one, the last global one"
    )
    whole = tiny_config(**SHARED | {"layers": layers, "kv_of_layer": None})
    assert page_bytes(config, 16, torch.float32) * 35 == page_bytes(whole, 16, torch.float32) * 20


@pytest.mark.parametrize("by_card", [False, True])
def test_the_engine_drafts_batches_and_reuses_as_with_one_for_each_layer(by_card: bool) -> None:
    model = Decoder(tiny_parameters(tiny_config(**SHARED)))
    request = GenerationRequest(prompt=PROMPT, max_new_tokens=40)
    target = alone(model, request)
    core = kernel_core(model) if by_card else make_core(model=model)
    assert same(run_one(core, request), target)
    assert same(run_one(core, request, Oracle(target.token_ids)), target)
    random = Random(2)
    if by_card:
        with by_kernels():
            core = reusing_core(model)
    else:
        core = reusing_core(model)
    prompt = random_ids(random, 90)
    run(core, prompt)
    new = edited(random, prompt)
    found = run(core, new, Reuse("turbo"), max_new_tokens=5)
    assert found.usage.reused_approximate > 20
    plain = reusing_core(model)
    run(plain, prompt)
    assert found.token_ids == run(plain, new, Reuse("turbo"), max_new_tokens=5).token_ids


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_of_layer": (0, 0)}, "named for 2 of 5 layers"),
        ({"kv_of_layer": (0, 2, 1, 0, 1)}, "layer 1 attends to keys and values 2, which no layer has computed"),
        ({"kv_of_layer": (0, -1, 1, 0, 1)}, "layer 1 attends to keys and values -1"),
        ({"layers": (LayerSpec(Rope(1e4)), LayerSpec(Rope(1e5))), "kv_of_layer": (0, 0)}, "rotated in another way"),
    ],
)
def test_keys_that_nobody_computes_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WeightsError, match=said):
        tiny_config(**SHARED | changes)


def test_the_vocabulary_is_used_in_full() -> None:
    """Otherwise equal logits would prove little."""
    model = Decoder(tiny_parameters(tiny_config(**SHARED)))
    chosen = logits_of(model, random_ids(Random(3), 100)).argmax(dim=-1)
    assert len(chosen.unique()) > VOCAB_SIZE // 4
