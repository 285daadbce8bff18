"""LoRA adapters that stay unmerged beside the model: each request of a batch has its own, or none (as in Punica, arXiv
2310.18547, and S-LoRA, arXiv 2311.03285).

The forward pass calls `AdapterRows.apply(kind, layer, x, out)` after each projection, and rows [start, end) of `out`
get scale * (x @ A^T) @ B^T of their adapter. In the fused projections the parts of an adapter change columns of their
own:

    qkv      [0, q) [q, q + k) [q + k, q + k + v)        gate_up  [0, ffn_size) [ffn_size, 2 * ffn_size)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import RequestError, WeightsError
from engine.families import list_modules
from engine.layers.decoder_weights import order_rotary
from engine.weights.checkpoint import LoraAdapter, LowRankUpdate
from engine.weights.parameters import Parameters, list_part_sizes

ProjectionKind = Literal["qkv", "attention_out", "gate_up", "down"]

KINDS: tuple[ProjectionKind, ...] = get_args(ProjectionKind)


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
    """One adapter, converted for its model. `fingerprint` identifies it in cache keys; so does `mark` within its set,
    as what is added to token ids.
    """

    mark = 0

    def __init__(self, lora: LoraAdapter, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        """Raises WeightsError if it changes a tensor that this model does not have, or the LM head, or experts."""
        if config.latent is not None:
            raise WeightsError(f"{config.architecture} takes adapters only when it is loaded: merge {lora.folder} then")
        lora.check_fits(Parameters(config, dtype, "meta").slots())
        left = dict(lora.updates)
        if "lm_head.weight" in left:
            raise WeightsError(f"the adapter {lora.folder} changes the LM head: merge it when the model is loaded")
        self.fingerprint = _compute_fingerprint(lora.updates)
        self._updates: dict[tuple[ProjectionKind, int], list[_PartUpdate]] = {}
        for layer in range(config.num_layers):
            for kind, part, start, end in _list_parts(config, layer):
                update = left.pop(f"model.layers.{layer}.{part}.weight", None)
                if update is not None:
                    num_heads = max(0, config.num_heads + config.num_kv_heads - start // config.head_dim)
                    rows = order_rotary(update.up, config, num_heads) if kind == "qkv" else update.up
                    down = update.down.to(device, dtype)
                    up = (update.scale * rows.float()).T.contiguous().to(device, dtype)
                    self._updates.setdefault((kind, layer), []).append(_PartUpdate(down, up, start, end))
        if left:
            raise WeightsError(f"the adapter {lora.folder} changes {min(left)!r}: merge it when the model is loaded")

    def apply(self, kind: ProjectionKind, layer: int, x: Tensor, out: Tensor, mask: Tensor | None = None) -> None:
        """Add this adapter's update of `x` [num_rows, in_features] to `out` [num_rows, out_features], in place.

        mask: [num_rows, 1], 1 for the rows that get it and 0 for the others; None: all get it.
        """
        for update in self._updates.get((kind, layer), ()):
            update.add_to(x, out, mask)


MOST_IDS = 2**32
"""Ids that the keys of the prefix cache can tell apart."""


class AdapterSet:
    """The adapters that requests to one model may name."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._adapters: dict[str, Adapter] = {}
        self._marks: dict[bytes, int] = {}  # by fingerprint

    def load(self, name: str, folder: Path) -> Adapter:
        """Load a PEFT folder as `name`, replacing an earlier one; raises WeightsError, and then nothing changes."""
        adapter = Adapter(LoraAdapter(folder), self._config, self._dtype, self._device)
        mark = (len(self._marks) + 1) * self._config.vocab_size
        if mark + self._config.vocab_size > MOST_IDS and adapter.fingerprint not in self._marks:
            raise WeightsError(f"{len(self._marks)} adapters were loaded since the start: start anew to load more")
        adapter.mark = self._marks.setdefault(adapter.fingerprint, mark)
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
            elif adapter is not None and num_rows:
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


NO_ADAPTERS = AdapterRows(())


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


def _list_parts(config: ModelConfig, layer: int) -> Iterator[tuple[ProjectionKind, str, int, int]]:
    """Yield the parts of a layer's projections: the module in checkpoints, and its columns [start, end)."""
    modules = list_modules(config)
    for kind in KINDS:
        sizes = list_part_sizes(config, layer, kind) or [config.hidden_size]
        if len(modules[kind]) == 1:
            sizes = [sum(sizes)]
        for part, (start, end) in zip(modules[kind], pairwise(accumulate(sizes, initial=0)), strict=False):
            yield kind, part, start, end


def _compute_fingerprint(updates: Mapping[str, LowRankUpdate]) -> bytes:
    """Return blake2b-128 over every name, scale and matrix."""
    digest = blake2b(digest_size=16)
    for name, update in sorted(updates.items()):
        digest.update(f"{name} {update.scale!r}\n".encode())
        for matrix in (update.down, update.up):
            digest.update(f"{matrix.dtype} {tuple(matrix.shape)}\n".encode())
            digest.update(matrix.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()
