"""The slow obvious way to take KV over: a token at a time, each placed or run, in contiguous caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.decoder import Batch, CacheView, Decoder
from engine.layers import AdapterRows
from kernels.rope import apply_rope


@dataclass
class Kept:
    """Keys before RoPE and values of one token, a tensor [1, num_kv_heads, head_dim] a layer each."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        assert layer == len(self.keys)
        self.keys.append(keys.clone())
        self.values.append(values.clone())


@torch.inference_mode()
def run(
    model: Decoder, token_ids: Sequence[int], placed: Mapping[int, Kept] | None = None
) -> tuple[list[Kept], dict[int, Tensor]]:
    """What each token's KV is, and the logits behind those that were run; `placed` are taken over, by position."""
    caches = model.new_caches(1, len(token_ids))
    kept: list[Kept] = []
    logits: dict[int, Tensor] = {}
    for position, token_id in enumerate(token_ids):
        if placed is not None and position in placed:
            kept.append(placed[position])
            cos, sin = model.rotations(torch.tensor([position]))
            for layer, cache in enumerate(caches):
                cache.append(0, apply_rope(kept[-1].keys[layer], cos, sin), kept[-1].values[layer])
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
