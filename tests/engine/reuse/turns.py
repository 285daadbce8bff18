"""Turns on a core that keeps spans, random edits of a prompt, and the slow way to take KV over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from engine.contiguous_cache import CacheView
from engine.core import EngineCore
from engine.decoder import Batch, Decoder
from engine.engine_config import EngineConfig
from engine.layers import AdapterRows
from engine.reuse import EXACT, Reuse
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest, GenerationResult
from kernels.rope import apply_rope
from tests.engine.cores import tiny_model
from tests.engine.tiny import TOKEN_BYTES, VOCAB_SIZE

SPAN_BYTES = 1 << 20


def reusing_core(model: Decoder | None = None, **changes: Any) -> EngineCore:
    """A tiny core with room for spans; its books are checked in every step."""
    limits = {key: changes.pop(key) for key in ("max_batched_tokens", "max_num_seqs") if key in changes}
    fields: dict[str, Any] = {
        "max_seq_len": 480,
        "page_size": 4,
        "span_bytes": SPAN_BYTES,
        "check_integrity": True,
        "scheduler": SchedulerConfig(**({"max_num_seqs": 8} | limits)),
    }
    return EngineCore(model or tiny_model(), TOKEN_BYTES, EngineConfig(**(fields | changes)))


def run(core: EngineCore, prompt: Sequence[int], reuse: Reuse = EXACT, **fields: Any) -> GenerationResult:
    """One request alone."""
    number = core.add(GenerationRequest(list(prompt), **({"max_new_tokens": 6, "reuse": reuse} | fields)))
    while True:
        for output in core.step():
            if output.id == number and output.error is not None:
                raise output.error
            if output.id == number and output.result is not None:
                return output.result


def random_ids(random: Random, count: int) -> list[int]:
    return [random.randrange(VOCAB_SIZE) for _ in range(count)]


def edited(random: Random, ids: Sequence[int]) -> list[int]:
    """The prompt with one to three of its runs replaced, deleted, lengthened or moved."""
    new = list(ids)
    for _ in range(random.randint(1, 3)):
        first = random.randrange(len(new))
        end = min(len(new), first + random.randrange(8))
        kind = random.randrange(4)
        cut = new[first:end]
        if kind == 0:
            new[first:end] = random_ids(random, end - first)
        elif kind == 1:
            del new[first:end]
        elif kind == 2:
            new[first:first] = random_ids(random, random.randrange(1, 8))
        else:
            del new[first:end]
            place = random.randrange(len(new) + 1)
            new[place:place] = cut
    return new or random_ids(random, 4)


def random_ends(random: Random, length: int) -> tuple[int, ...]:
    """Where segments of a prompt may end."""
    return tuple(sorted({random.randrange(1, length + 1) for _ in range(6)}))


# A token at a time, each placed or run, in contiguous caches.


@dataclass
class Kept:
    """Keys before RoPE and values of one token, a tensor [1, num_kv_heads, head_dim] a layer each."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        assert layer == len(self.keys)
        self.keys.append(keys.clone())
        self.values.append(values.clone())


def _rotate_stored(model: Decoder, layer: int, keys: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Stored keys of one token as the pool has them: of int8 the bias is put back first."""
    weights, form = model.weights.layers[layer], model.weights.kv_format
    if not form.is_int8:
        return apply_rope(keys, *rotation)
    wide = form.decode(keys, torch.float32)
    if weights.key_bias is None:
        return form.encode(apply_rope(wide, *rotation))
    return form.encode(apply_rope(wide + weights.key_bias, *rotation) / weights.key_scales)


@torch.inference_mode()
def run_slowly(
    model: Decoder, token_ids: Sequence[int], placed: Mapping[int, Kept] | None = None
) -> tuple[list[Kept], dict[int, Tensor]]:
    """What each token's KV is, and the logits behind those that were run; `placed` are taken over, by position."""
    caches = model.new_caches(1, len(token_ids))
    kept: list[Kept] = []
    logits: dict[int, Tensor] = {}
    for position, token_id in enumerate(token_ids):
        if placed is not None and position in placed:
            kept.append(placed[position])
            rotations = model.get_rotations(torch.tensor([position]))
            for layer, cache in enumerate(caches):
                rotation = rotations[model.config.layers[layer].rope]
                cache.append(0, _rotate_stored(model, layer, kept[-1].keys[layer], rotation), kept[-1].values[layer])
            continue
        kept.append(Kept())
        batch = Batch(
            torch.tensor([token_id]),
            torch.tensor([position]),
            ((0, 1),),
            AdapterRows(()),
            recorder=kept[-1],
        )
        hidden = model.forward_batch(batch, CacheView(caches, 0, None, 1))
        logits[position] = model.logits(hidden)[0]
    return kept, logits
