"""LoRA adapters that stay unmerged beside the model: each request of a batch has its own, or none (as in Punica, arXiv
2310.18547, and S-LoRA, arXiv 2311.03285).

The forward pass calls `AdapterRows.apply(kind, layer, x, out)` after each projection, and rows [start, end) of `out`
get scale * (x @ A^T) @ B^T of their adapter. In the fused projections the parts of an adapter change columns of their
own:

    qkv      [0, q) [q, q + k) [q + k, q + k + v)        gate_up  [0, ffn_size) [ffn_size, 2 * ffn_size)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import RequestError, WeightsError
from engine.weights.checkpoint import LoraAdapter, LowRankUpdate
from engine.weights.parameters import Parameters

ProjectionKind = Literal["qkv", "attention_out", "gate_up", "down"]

PARTS: Mapping[ProjectionKind, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""A fused projection's parts, in the order of their columns, by their names in checkpoints."""


@dataclass(frozen=True, slots=True)
class _PartUpdate:
    down: Tensor  # [rank, in_features]
    up: Tensor  # [rank, end - start], times the scale
    start: int
    end: int

    def add_to(self, x: Tensor, out: Tensor, mask: Tensor | None) -> None:
        reduced = x @ self.down.T
        out[:, self.start : self.end].addmm_(reduced if mask is None else reduced * mask, self.up)


class Adapter:
    """One adapter, converted for its model. `fingerprint` identifies it in cache keys."""

    def __init__(self, lora: LoraAdapter, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        """Raises WeightsError if it changes a tensor that this model does not have, or the LM head."""
        lora.check_fits(Parameters(config, dtype, "meta").slots())
        if "lm_head.weight" in lora.updates:
            raise WeightsError(f"the adapter {lora.folder} changes the LM head: merge it when the model is loaded")
        self.fingerprint = _compute_fingerprint(lora.updates)
        self._updates: dict[tuple[ProjectionKind, int], list[_PartUpdate]] = {}
        for kind, parts in PARTS.items():
            for (start, end), part in zip(_list_columns(kind, config), parts, strict=True):
                for layer in range(config.num_layers):
                    update = lora.updates.get(f"model.layers.{layer}.{part}.weight")
                    if update is not None:
                        down = update.down.to(device, dtype)
                        up = (update.scale * update.up.float()).T.contiguous().to(device, dtype)
                        self._updates.setdefault((kind, layer), []).append(_PartUpdate(down, up, start, end))

    def apply(self, kind: ProjectionKind, layer: int, x: Tensor, out: Tensor, mask: Tensor | None = None) -> None:
        """Add this adapter's update of `x` [num_rows, in_features] to `out` [num_rows, out_features], in place.

        mask: [num_rows, 1], 1 for the rows that get it and 0 for the others; None: all get it.
        """
        for update in self._updates.get((kind, layer), ()):
            update.add_to(x, out, mask)


class AdapterSet:
    """The adapters that requests to one model may name."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._adapters: dict[str, Adapter] = {}

    def load(self, name: str, folder: Path) -> Adapter:
        """Load a PEFT folder as `name`, replacing an earlier one; raises WeightsError, and then nothing changes."""
        adapter = Adapter(LoraAdapter(folder), self._config, self._dtype, self._device)
        self._adapters[name] = adapter
        return adapter

    def unload(self, name: str) -> None:
        """Forget an adapter; requests that have it keep it. Raises RequestError if there is none of that name."""
        self.get(name)
        del self._adapters[name]

    @property
    def adapters(self) -> Collection[Adapter]:
        """The adapters that have a name."""
        return self._adapters.values()

    def get(self, name: str) -> Adapter:
        """Return the adapter; raises RequestError if there is none of that name."""
        if name not in self._adapters:
            loaded = ", ".join(sorted(self._adapters)) or "none"
            raise RequestError(f"there is no adapter {name!r}; loaded are: {loaded}")
        return self._adapters[name]


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """Which rows of a ragged batch belong to which adapter: disjoint half-open ranges [start, end)."""

    ranges: tuple[tuple[Adapter, int, int], ...]

    @classmethod
    def from_sequences(cls, sequences: Iterable[tuple[Adapter | None, int]]) -> AdapterRows:
        """Return the rows from each sequence's adapter and number of rows, in the batch's order. Neighbours of one
        adapter share a range: [(a, 3), (a, 2), (None, 4), (b, 1)] gives a [0, 5), b [9, 10).
        """
        ranges: list[tuple[Adapter, int, int]] = []
        start = 0
        for adapter, num_rows in sequences:
            end = start + num_rows
            if ranges and ranges[-1][0] is adapter and ranges[-1][2] == start:
                ranges[-1] = (adapter, ranges[-1][1], end)
            elif adapter is not None:
                ranges.append((adapter, start, end))
            start = end
        return cls(tuple(ranges))

    def apply(self, kind: ProjectionKind, layer: int, x: Tensor, out: Tensor) -> None:
        """Add each range's update to `out` [num_rows, out_features] in place; `x` is the projection's input."""
        for adapter, start, end in self.ranges:
            adapter.apply(kind, layer, x[start:end], out[start:end])

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The adapters, each once, in an order of their own."""
        return tuple(sorted({adapter for adapter, _, _ in self.ranges}, key=id))

    def build_masks(self, num_rows: int) -> NDArray[np.float32]:
        """Return for each of `adapters` which rows have it: 1 or 0, [num_adapters, num_rows]."""
        adapters = self.adapters
        masks = np.zeros((len(adapters), num_rows), dtype=np.float32)
        for adapter, start, end in self.ranges:
            masks[adapters.index(adapter), start:end] = 1.0
        return masks


@dataclass(frozen=True, slots=True)
class MaskedAdapters:
    """Adapters whose rows are told by a mask on the device, so that a captured pass serves any rows. Each computes its
    update of all rows.
    """

    adapters: tuple[Adapter, ...]
    masks: Tensor  # [num_adapters, num_rows], 1 or 0

    def apply(self, kind: ProjectionKind, layer: int, x: Tensor, out: Tensor) -> None:
        """As `AdapterRows.apply`."""
        for adapter, mask in zip(self.adapters, self.masks, strict=True):
            adapter.apply(kind, layer, x, out, mask[:, None].to(x.dtype))


def _list_columns(kind: ProjectionKind, config: ModelConfig) -> list[tuple[int, int]]:
    sizes = {
        "qkv": config.qkv_sizes,
        "attention_out": (config.hidden_size,),
        "gate_up": (config.ffn_size, config.ffn_size),
        "down": (config.hidden_size,),
    }[kind]
    return list(pairwise(accumulate(sizes, initial=0)))


def _compute_fingerprint(updates: Mapping[str, LowRankUpdate]) -> bytes:
    """Return blake2b-128 over every name, scale and matrix."""
    digest = blake2b(digest_size=16)
    for name, update in sorted(updates.items()):
        digest.update(f"{name} {update.scale!r}\n".encode())
        for matrix in (update.down, update.up):
            digest.update(f"{matrix.dtype} {tuple(matrix.shape)}\n".encode())
            digest.update(matrix.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()
