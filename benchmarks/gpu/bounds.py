"""Shapes of known models, and the least time of their passes on a card."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from benchmarks.engine.roofline import Rows, count_kv_token_bytes, count_work
from benchmarks.gpu.card import Ceilings
from engine.config import LayerSpec, ModelConfig, Rope
from engine.weights import Parameters

MOST_POSITIONS = 136 * 1024
"""Room for 128k tokens of context; for speed alone it does not matter that no model was trained for such positions."""

STD = 0.02
"""Standard deviation of the random weights, as models are initialised."""


def _make_qwen25(hidden_size: int, num_heads: int, num_kv_heads: int, ffn_size: int, vocab_size: int) -> ModelConfig:
    return ModelConfig(
        architecture="Qwen2ForCausalLM",
        layers=(LayerSpec(Rope(1e6)),) * 28,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        ffn_size=ffn_size,
        vocab_size=vocab_size,
        max_positions=MOST_POSITIONS,
        rms_norm_eps=1e-6,
        tied_embeddings=hidden_size < 2048,
        qkv_bias=True,
    )


SHAPES: Mapping[str, ModelConfig] = {
    "1.5b": _make_qwen25(1536, 12, 2, 8960, 151936),
    "7b": _make_qwen25(3584, 28, 4, 18944, 152064),
}
"""Qwen2.5 and Qwen2.5-Coder of these sizes."""


def draw_parameters(config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Parameters:
    """Return random weights of this shape."""
    parameters = Parameters(config, dtype, device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, tensor in sorted(parameters.slots().items()):
        tensor.normal_(0.0, STD, generator=generator)
        if "norm" in name:
            tensor.add_(1.0)
    return parameters


PROMPTS = (2048, 8192, 32768)
"""Tokens of the prompts that are prefilled."""

CONTEXT = 2048
"""Tokens of the prompt before decoding."""

PLAIN = f"plain decoding behind {CONTEXT:,} tokens, tok/s"

PASSES = (1, 4, 16, 64, 256, 512, 1024, 1536)
"""Rows of the passes: the pending token and a draft."""

CONTEXTS = (8192, 32768, 131072)
"""Tokens of the prompts whose second turn is measured."""

COLD = "cold"
MODES = (COLD, "exact", "fast", "turbo")
"""A first turn, and the modes of a second."""

CHANGED = 64
"""Tokens of the second turn that are new, in the middle of the prompt."""

SEGMENT = 512
"""Tokens of a segment, the unit that is recomputed around a change."""

BUS_BYTES_S = 64e9
"""The most that PCIe 5 with 16 lanes carries."""

ITEM_BYTES = 2
"""bfloat16."""


def compute_pass_s(config: ModelConfig, rows: Rows, ceilings: Ceilings) -> float:
    done = count_work(config, [rows], ITEM_BYTES)
    return max(done.flops / ceilings.flops_s, done.num_bytes / ceilings.copy_bytes_s)


def compute_prefill_tok_s(config: ModelConfig, num_tokens: int, ceilings: Ceilings) -> float:
    """Return tokens a second of a prompt in one pass."""
    return num_tokens / compute_pass_s(config, Rows(0, num_tokens), ceilings)


def compute_decode_s(config: ModelConfig, num_rows: int, ceilings: Ceilings) -> float:
    """Return seconds of a pass over a token and its draft, all of whose rows get logits."""
    return compute_pass_s(config, Rows(CONTEXT, num_rows, num_rows), ceilings)


def compute_second_turn_s(config: ModelConfig, num_tokens: int, mode: str, ceilings: Ceilings) -> float:
    """Return seconds to the first token of a prompt that was run before but for CHANGED tokens in its middle.

    cold: all is run. exact: what follows the change, too. fast: the changed segment, and what is stored of the
    rest is read from host memory. turbo: the same for the changed tokens alone.
    """
    if mode == COLD:
        return compute_pass_s(config, Rows(0, num_tokens), ceilings)
    changed_at = num_tokens // 2
    if mode == "exact":
        return compute_pass_s(config, Rows(changed_at, num_tokens - changed_at), ceilings)
    num_run = (SEGMENT if mode == "fast" else CHANGED) + 1  # the last token is run in any case
    num_placed = num_tokens - changed_at - num_run
    moved_s = num_placed * count_kv_token_bytes(config, ITEM_BYTES) / BUS_BYTES_S
    return moved_s + compute_pass_s(config, Rows(num_tokens - num_run, num_run), ceilings)


def compute_bounds(config: ModelConfig, ceilings: Ceilings) -> dict[str, float]:
    """Return the bound of each figure, tokens a second or ms, by its name in the tables."""
    found = {name_prefill(num): compute_prefill_tok_s(config, num, ceilings) for num in PROMPTS}
    found[PLAIN] = 1 / compute_decode_s(config, 1, ceilings)
    found |= {name_pass(num): 1e3 * compute_decode_s(config, num, ceilings) for num in PASSES}
    for num in CONTEXTS:
        found |= {name_turn(num, mode): 1e3 * compute_second_turn_s(config, num, mode, ceilings) for mode in MODES}
    return found


def name_prefill(num_tokens: int) -> str:
    return f"prefill of {num_tokens:,} tokens, tok/s"


def name_pass(num_rows: int) -> str:
    rows = "1 row" if num_rows == 1 else f"{num_rows} rows"
    return f"pass over {rows} behind {CONTEXT:,} tokens, ms"


def name_turn(num_tokens: int, mode: str) -> str:
    return f"first token of {num_tokens:,}, {mode}, ms"
