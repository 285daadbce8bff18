"""The memory of the span store: keys before RoPE and values by slot, taken once."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.reuse.store.entry import Slots


class SpanMemory:
    """`keys[layer]` and `values[layer]` are [num_slots, num_kv_heads, head_dim]; a slot is a token's."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, capacity_bytes: int) -> None:
        """As many slots as the bytes hold. Raises EngineError where that is none, or there is no memory for them."""
        self.token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
        self.num_slots = capacity_bytes // self.token_bytes
        self.config = config
        self.dtype = dtype
        self.device = device
        if self.num_slots < 1:
            raise EngineError(f"the span store has {capacity_bytes} bytes; the KV of a token takes {self.token_bytes}")
        shape = (self.num_slots, config.num_kv_heads, config.head_dim)
        try:  # zeros touch every page of memory now, not under a request
            self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
            self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        except RuntimeError as error:
            raise EngineError(
                f"there is no memory for {capacity_bytes / 1e9:.1f} GB of stored KV; give the span store less"
            ) from error

        self._rows = [_rows(each) for each in chain(self.keys, self.values)] if device.type == "cpu" else None

    def write(self, slots: Slots, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values, [num_tokens, num_kv_heads, head_dim], into slots."""
        assert keys.dtype == values.dtype == self.dtype, "the bytes are copied as they are"
        assert len(keys) == len(values) == len(slots), "one slot a token"
        if self._rows is None:
            places = torch.from_numpy(slots).to(self.device)
            self.keys[layer].index_copy_(0, places, keys)
            self.values[layer].index_copy_(0, places, values)
        else:
            self._rows[layer][slots] = _rows(keys)
            self._rows[len(self.keys) + layer][slots] = _rows(values)

    def payload(self, slots: Slots) -> memoryview:
        """A copy of what is in these slots: the bytes of [2, num_layers, num_tokens, num_kv_heads, head_dim]."""
        if self._rows is None:
            places = torch.from_numpy(slots).to(self.device)
            copy = torch.stack([each.index_select(0, places) for each in chain(self.keys, self.values)])
            return copy.cpu().view(torch.uint8).numpy().data.cast("B")
        rows = np.empty((len(self._rows), len(slots)), dtype=self._rows[0].dtype)
        for target, source in zip(rows, self._rows, strict=True):
            np.take(source, slots, out=target, mode="clip")  # any mode but the default writes to `out` at once
        return rows.view(np.uint8).data.cast("B")

    def restore(self, slots: Slots, payload: memoryview) -> None:
        """Put what `payload` has returned into slots, as many as it was taken of."""
        if self._rows is None:
            shape = (2 * len(self.keys), len(slots), *self.keys[0].shape[1:])
            copy = torch.frombuffer(payload, dtype=self.dtype).view(shape).to(self.device)
            places = torch.from_numpy(slots).to(self.device)
            for each, source in zip(chain(self.keys, self.values), copy, strict=True):
                each.index_copy_(0, places, source)
            return
        rows = np.frombuffer(payload, dtype=self._rows[0].dtype).reshape(len(self._rows), len(slots))
        for target, source_rows in zip(self._rows, rows, strict=True):
            target[slots] = source_rows


def _rows(tensor: Tensor) -> NDArray[np.void]:
    """A view of a tensor of the host, [num_rows, num_kv_heads, head_dim], that has a row as one element.

    numpy copies rows in the calling thread. torch would share out even these few bytes among all its threads, and on a
    machine that is busy wait for the last of them, a thousand times as long as the copy takes.
    """
    tensor = tensor.contiguous()
    num_bytes = tensor.shape[1] * tensor.shape[2] * tensor.itemsize
    rows: NDArray[np.void] = (
        tensor.view(torch.uint8).numpy().reshape(len(tensor), num_bytes).view(f"V{num_bytes}")[:, 0]
    )
    return rows
