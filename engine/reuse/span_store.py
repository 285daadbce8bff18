"""The span store: KV of earlier tokens in memory, with a tier behind it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.reuse.disk_tier import KVTier, SpanHeader, WriteBack
from engine.reuse.span_entry import ENTRY_TOKENS, KGRAM_LEN, Entry, Slots, SpanStats, TokenIds
from engine.reuse.span_index import SpanIndex
from engine.types import Match


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


RECORD_BITS = 62
"""Records that outlive the process are numbered from a random number of so many bits on."""


class SpanStore:
    """Keys before RoPE and values by slot: `keys[layer]` and `values[layer]` are [num_slots, num_kv_heads, head_dim].

    An entry that must leave the memory goes to the tier, and comes back when a prompt has its tokens. What the tier
    does not take, or has lost, is not stored any more. All methods are called from one thread.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        *,
        capacity_bytes: int,
        disk: KVTier | None = None,
    ) -> None:
        """`disk`: the tier; what it has of an earlier start is found at once.

        Raises EngineError where there is no memory for `capacity_bytes`, or they are too few for one token.
        """
        self._memory = SpanMemory(config, dtype, device, capacity_bytes)
        self.keys, self.values = self._memory.keys, self._memory.values
        self._tier: WriteBack | None = None
        self._num_tier_hits = self._num_tier_misses = 0
        if disk is None:
            self._index = SpanIndex(self._memory.num_slots)
            return
        self._tier = WriteBack(disk)
        self._index = SpanIndex(
            self._memory.num_slots,
            on_evict=self._write_back,
            most_absent=disk.capacity_bytes // self._memory.token_bytes,
            first_record=secrets.randbits(RECORD_BITS),
        )
        for header in disk.headers():
            self._add(header)

    @property
    def num_slots(self) -> int:
        """Tokens that it has memory for."""
        return self._memory.num_slots

    def find(self, root: bytes, token_ids: TokenIds, first: int) -> list[Match]:
        """What is stored of a prompt's tokens [first, len - 1), as `SpanIndex.find` has it.

        What only the tier has is read first, as far as it fits into the memory beside the rest.
        """
        runs = self._index.locate(root, token_ids, first)
        lost = self._load(list(dict.fromkeys(piece.entry for run in runs for piece in run))) if self._tier else []
        matches = self._index.take(runs, len(token_ids) - 1 - first)
        for entry in lost:
            if self._index.is_absent(entry):
                self._index.remove(entry)
        return matches

    def new_record(self) -> int:
        """A number for one more prompt."""
        return self._index.new_record()

    def reserve(self, num_tokens: int) -> Slots | None:
        """Slots for so many tokens, by evicting if need be; None: there are not as many."""
        return self._index.reserve(num_tokens)

    def give_back(self, slots: Slots) -> None:
        """Reserved slots are not needed after all."""
        self._index.give_back(slots)

    def write(self, slots: Slots, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put keys before RoPE and values, [num_tokens, num_kv_heads, head_dim], into slots that were reserved."""
        self._memory.write(slots, layer, keys, values)

    def enter(
        self, root: bytes, token_ids: TokenIds, slots: Slots, generation: int, start: int, record: int | None = None
    ) -> None:
        """The KV of these tokens is written in all layers, and found from now on; see `SpanIndex.enter`."""
        self._index.enter(root, token_ids, slots, generation, start, record)

    def stats(self) -> SpanStats:
        """Hits since the start, and what is stored now."""
        stats = self._index.stats(self._memory.token_bytes)
        if self._tier is None:
            return stats
        return replace(
            stats,
            num_tier_hits=self._num_tier_hits,
            num_tier_misses=self._num_tier_misses,
            num_tier_faults=self._tier.num_faults,
            num_tier_dropped=self._tier.num_dropped,
        )

    def forget(self) -> None:
        """Find nothing of what is stored any more; slots that were reserved are free again too.

        What the tier has stays there, and is found after the next start.
        """
        self._index.forget()

    def close(self) -> None:
        """Have the tier keep what is in memory, as much as it takes, worth most; nothing is asked of it any more."""
        if self._tier is None:
            return
        self._tier.close()
        room = self._tier.capacity_bytes
        kept = []
        for entry in reversed(self._index.list_entries()):
            room -= len(entry.token_ids) * self._memory.token_bytes
            if room >= 0 and not entry.is_superseded and not entry.is_kept and len(entry.token_ids) >= KGRAM_LEN:
                kept.append(entry)
        for entry in reversed(kept):  # the last one written is the last one to go
            assert entry.slots is not None
            entry.is_kept = self._tier.write(self._header(entry), self._memory.payload(entry.slots))

    def check_integrity(self) -> None:
        """The parts add up (AssertionError: they do not). As slow as the store is large: for tests."""
        self._index.check_integrity()

    def _load(self, entries: Sequence[Entry]) -> list[Entry]:
        """Read what has no slots from the tier; returns what the tier has not."""
        assert self._tier is not None
        lost = []
        for entry in entries:
            if not self._index.is_absent(entry):
                continue
            payload = self._tier.get(self._header(entry))
            if payload is None:
                self._num_tier_misses += 1
                lost.append(entry)
                continue
            slots = self._index.reserve(len(entry.token_ids), spared=entries)
            if slots is None:
                break
            if not self._index.is_absent(entry):  # making room for it, the index has forgotten it
                self._index.give_back(slots)
                continue
            self._memory.restore(slots, payload)
            self._index.restore(entry, slots)
            self._num_tier_hits += 1
        return lost

    def _write_back(self, entry: Entry) -> bool:
        """An entry's slots are needed; whether it can be had from the tier from now on."""
        assert self._tier is not None
        assert entry.slots is not None
        if len(entry.token_ids) < KGRAM_LEN:  # nobody would find it
            return False
        if not entry.is_kept:
            entry.is_kept = self._tier.put(self._header(entry), self._memory.payload(entry.slots))
        return entry.is_kept

    def _add(self, header: SpanHeader) -> None:
        """Have an entry found that the tier has of an earlier start, if this model can use it."""
        token_ids = np.frombuffer(header.token_ids, dtype="<u4").astype(np.uint32)
        if not 0 < len(token_ids) <= ENTRY_TOKENS:
            return
        entry = Entry(-1, header.root, header.record, header.start, token_ids, header.generation)
        if self._header(entry) == header:
            self._index.add(header.root, header.record, header.start, token_ids, header.generation).is_kept = True

    def _header(self, entry: Entry) -> SpanHeader:
        config = self._memory.config
        return SpanHeader(
            root=entry.root,
            record=entry.record,
            start=entry.start,
            generation=entry.generation,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=str(self._memory.dtype).removeprefix("torch."),
            token_ids=entry.token_ids.astype("<u4").tobytes(),
            num_bytes=len(entry.token_ids) * self._memory.token_bytes,
        )
