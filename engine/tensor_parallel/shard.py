"""The part of a model's parameters that one rank has.

Projections into heads and into the feed-forward part are split by rows, those out of them by columns, so that each rank
computes whole heads and what they add to the hidden state; the sum over all ranks is the layer's result. Norms, the
router and the embedding are whole on every rank, and each has a part of the vocabulary of the LM head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import WeightsError
from engine.weights.checkpoint import LoraAdapter, open_tensors
from engine.weights.gguf import GGUFModel
from engine.weights.parameters import Parameters

BY_ROWS = frozenset({"q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj"})
BY_KV_HEADS = frozenset({"k_proj", "v_proj"})
BY_COLUMNS = frozenset({"o_proj", "down_proj"})
"""Modules by the way in which they are split; a bias of the last belongs to the first rank alone."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank` of `size` ranks."""

    rank: int
    size: int

    def narrow(self, config: ModelConfig) -> ModelConfig:
        """Return the config of a rank's layers. Raises WeightsError if something does not divide by the ranks.

        With fewer KV heads than ranks, several ranks have the same one. The latent vector is on all ranks.
        """
        size, kv_heads, experts = self.size, config.num_kv_heads, config.experts
        parts = {"query heads": config.num_heads, "numbers of the feed-forward part": config.ffn_size}
        if experts is not None:
            parts |= {"numbers of an expert": experts.ffn_size, "numbers of shared experts": experts.shared_size}
        for what, count in parts.items():
            if count % size:
                raise WeightsError(f"{count} {what} do not divide into {size} ranks; take another --tensor-parallel")
        if kv_heads % size and size % kv_heads:
            raise WeightsError(f"{kv_heads} KV heads do not divide into {size} ranks; take another --tensor-parallel")
        if config.qk_norm == "all":
            raise WeightsError("norms over all heads together cannot be split; run this model on one rank")
        if experts is not None:
            own_size, shared_size = experts.ffn_size // size, experts.shared_size // size
            experts = replace(experts, ffn_size=own_size, shared_size=shared_size)
        return replace(
            config,
            num_heads=config.num_heads // size,
            num_kv_heads=max(1, kv_heads // size),
            head_dim=config.head_dim,
            ffn_size=config.ffn_size // size,
            experts=experts,
        )

    def cut(self, config: ModelConfig, name: str, tensor: Tensor) -> Tensor:
        """Return this rank's part of a tensor of a checkpoint; `config` is that of the whole model."""
        module, kind = name.split(".")[-2:]
        if module in BY_ROWS:
            return self._take_rows(tensor)
        if module in BY_KV_HEADS:
            return self._take_kv_rows(config, tensor)
        if module == "gate_up_proj":
            return torch.cat([self._take_rows(part) for part in tensor.chunk(2)])
        if module == "qkv_proj":
            query, *others = torch.split(tensor, list(config.get_qkv_sizes(0)))
            return torch.cat([self._take_rows(query), *(self._take_kv_rows(config, part) for part in others)])
        if module in BY_COLUMNS:
            if kind == "bias":
                return tensor if self.rank == 0 else torch.zeros_like(tensor)
            return tensor.chunk(self.size, dim=1)[self.rank]
        return tensor

    def find_tokens(self, vocab_size: int) -> range:
        """Return the tokens that this rank has of the LM head."""
        each = -(-vocab_size // self.size)
        return range(min(vocab_size, self.rank * each), min(vocab_size, (self.rank + 1) * each))

    def _take_rows(self, rows: Tensor) -> Tensor:
        return rows.chunk(self.size)[self.rank]

    def _take_kv_rows(self, config: ModelConfig, rows: Tensor) -> Tensor:
        num_parts = min(self.size, config.num_kv_heads)
        return rows.chunk(num_parts)[self.rank * num_parts // self.size]


def load_shard(
    source: GGUFModel | Path,
    dtype: torch.dtype,
    shard: Shard,
    adapter: LoraAdapter | None = None,
    device: torch.device | str = "cpu",
) -> Parameters:
    """As `engine.weights.load`, of one rank. Raises WeightsError, also if the model does not divide by the ranks."""
    config, read = open_tensors(source, dtype, adapter, device)
    parameters = Parameters(shard.narrow(config), dtype, device, lambda name: shard.cut(config, name, read(name)))
    tokens = shard.find_tokens(config.vocab_size)
    parameters.lm_head = parameters.lm_head[tokens.start : tokens.stop].clone()
    return parameters
