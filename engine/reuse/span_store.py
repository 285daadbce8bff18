"""The span store: KV of earlier tokens in memory, with a disk tier."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig
from engine.device import check_device, map_host_memory
from engine.errors import EngineError
from engine.kv_pool import get_head_width, page_bytes
from engine.reuse.disk_tier import KVTier, SpanHeader, WriteBack
from engine.reuse.span_entry import ENTRY_TOKENS, KGRAM_LEN, Entry, Slots, SpanStats, TokenIds
from engine.reuse.span_index import SpanIndex
from engine.types import Match


class SpanMemory:
    """`keys[layer]` and `values[layer]` are [num_slots, num_kv_heads, head_dim]; a slot holds one token. With latent
    attention `values` is empty.

    It is host memory, whatever the device: there is more of it. A card reads and writes it in place, up to the end of
    what was launched, even where the slots have been given back.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, capacity_bytes: int) -> None:
        """Allocate as many slots as the bytes hold. Raises EngineError if that is none, or if memory is short."""
        self.token_bytes = page_bytes(config, 1, dtype)
        self.num_slots = capacity_bytes // self.token_bytes
        self.config = config
        self.dtype = dtype
        self.device = device
        if self.num_slots < 1:
            raise EngineError(
                f"the span store has {capacity_bytes} bytes, and the KV of a token takes {self.token_bytes}; raise "
                "--span-memory"
            )
        parts = 1 + config.has_values
        shape = (parts, config.num_kv_layers, self.num_slots, config.num_kv_heads, get_head_width(config, dtype))
        try:  # zeros touch every page of memory now, not under a request
            memory = torch.zeros(shape, dtype=dtype)
            weakref.finalize(self, map_host_memory(memory, device))
        except RuntimeError as error:
            raise EngineError(
                f"there is no memory for {capacity_bytes / 1e9:.1f} GB of stored KV; lower --span-memory"
            ) from error
        self.keys, self.values = list(memory[0].unbind()), [each for part in memory[1:] for each in part.unbind()]
        self._rows = [_rows(each) for each in chain(self.keys, self.values)]

    def write(self, slots: Slots, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write keys and values, [num_tokens, num_kv_heads, head_dim], to slots."""
        for part, rows in enumerate((keys, values) if self.values else (keys,)):
            assert rows.dtype == self.dtype, "the bytes are copied as they are"
            assert len(rows) == len(slots), "one slot a token"
            self._rows[part * len(self.keys) + layer][slots] = _rows(rows.cpu())

    def payload(self, slots: Slots) -> memoryview:
        """Return a copy of these slots: the bytes of [2 or 1, num_layers, num_tokens, num_kv_heads, head_dim]."""
        rows = np.empty((len(self._rows), len(slots)), dtype=self._rows[0].dtype)
        for target, source in zip(rows, self._rows, strict=True):
            np.take(source, slots, out=target, mode="clip")  # any mode but the default writes to `out` at once
        return rows.view(np.uint8).data.cast("B")

    def restore(self, slots: Slots, payload: memoryview) -> None:
        """Write what `payload` has returned to as many slots."""
        check_device(self.device)  # waits: a card may still read these slots, or write them for a cancelled request
        rows = np.frombuffer(payload, dtype=self._rows[0].dtype).reshape(len(self._rows), len(slots))
        for target, source_rows in zip(self._rows, rows, strict=True):
            target[slots] = source_rows


def _rows(tensor: Tensor) -> NDArray[np.void]:
    """Return a view of a host tensor [num_rows, num_kv_heads, head_dim] in which a row is one element.

    numpy copies rows in the calling thread. torch would split even these few bytes among all its threads, and on a busy
    machine wait for the last of them, a thousand times as long as the copy takes.
    """
    tensor = tensor.contiguous()
    num_bytes = tensor.shape[1] * tensor.shape[2] * tensor.itemsize
    rows: NDArray[np.void] = (
        tensor.view(torch.uint8).numpy().reshape(len(tensor), num_bytes).view(f"V{num_bytes}")[:, 0]
    )
    return rows


RECORD_BITS = 62
"""Records that outlive the process are numbered from a random number of this many bits on."""


class SpanStore:
    """Keys before RoPE and values by slot: `keys[layer]` and `values[layer]` are [num_slots, num_kv_heads, head_dim].

    An entry that is evicted from memory goes to the tier, and comes back when a prompt has its tokens. What the tier
    does not take, or has lost, is forgotten. All methods are called from one thread.
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
        """`disk`: the tier; what it has from an earlier start is found at once.

        Raises EngineError if there is no memory for `capacity_bytes`, or they are too few for one token.
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
        """Return what is stored of a prompt's tokens [first, len - 1), as `SpanIndex.find`.

        Entries that only the tier has are read first, as far as they fit into memory.
        """
        runs = self._index.locate(root, token_ids, first)
        lost = self._load(list(dict.fromkeys(piece.entry for run in runs for piece in run))) if self._tier else []
        matches = self._index.take(runs, len(token_ids) - 1 - first)
        for entry in lost:
            if self._index.is_absent(entry):
                self._index.remove(entry)
        return matches

    def new_record(self) -> int:
        """Return the number of a new record."""
        return self._index.new_record()

    def reserve(self, num_tokens: int) -> Slots | None:
        """Return slots for so many tokens, evicting entries if needed; None if there are too few."""
        return self._index.reserve(num_tokens)

    def give_back(self, slots: Slots) -> None:
        """Free reserved slots."""
        self._index.give_back(slots)

    def write(self, slots: Slots, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write keys before RoPE and values, [num_tokens, num_kv_heads, head_dim], to slots that were reserved."""
        self._memory.write(slots, layer, keys, values)

    def enter(
        self, root: bytes, token_ids: TokenIds, slots: Slots, generation: int, start: int, record: int | None = None
    ) -> None:
        """Enter tokens whose KV is written in all layers; see `SpanIndex.enter`."""
        self._index.enter(root, token_ids, slots, generation, start, record)

    def stats(self) -> SpanStats:
        """Return hits since the start, and what is stored now."""
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
        """Forget everything in memory and free all slots, including reserved ones.

        What the tier has stays there, and is found after the next start.
        """
        self._index.forget()

    def close(self) -> None:
        """Write what is in memory to the tier, the highest priority first as far as it fits; the store is not used
        afterwards.
        """
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
            entry.is_kept = self._tier.write(self._build_header(entry), self._memory.payload(entry.slots))

    def check_integrity(self) -> None:
        """Raise AssertionError if the parts do not add up. As slow as the store is large: for tests."""
        self._index.check_integrity()

    def _load(self, entries: Sequence[Entry]) -> list[Entry]:
        """Read absent entries from the tier; return those that the tier does not have."""
        assert self._tier is not None
        lost = []
        for entry in entries:
            if not self._index.is_absent(entry):
                continue
            payload = self._tier.get(self._build_header(entry))
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
        """Write an entry whose slots are needed to the tier; return whether it can be read from there."""
        assert self._tier is not None
        assert entry.slots is not None
        if len(entry.token_ids) < KGRAM_LEN:  # nobody would find it
            return False
        if not entry.is_kept:
            entry.is_kept = self._tier.put(self._build_header(entry), self._memory.payload(entry.slots))
        return entry.is_kept

    def _add(self, header: SpanHeader) -> None:
        """Add an entry that the tier has from an earlier start, if this model can use it."""
        token_ids = np.frombuffer(header.token_ids, dtype="<u4").astype(np.uint32)
        if not 0 < len(token_ids) <= ENTRY_TOKENS:
            return
        entry = Entry(-1, header.root, header.record, header.start, token_ids, header.generation)
        if self._build_header(entry) == header:
            self._index.add(header.root, header.record, header.start, token_ids, header.generation).is_kept = True

    def _build_header(self, entry: Entry) -> SpanHeader:
        config = self._memory.config
        return SpanHeader(
            root=entry.root,
            record=entry.record,
            start=entry.start,
            generation=entry.generation,
            num_layers=config.num_kv_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=get_head_width(config, self._memory.dtype),
            dtype=str(self._memory.dtype).removeprefix("torch."),
            token_ids=entry.token_ids.astype("<u4").tobytes(),
            num_bytes=len(entry.token_ids) * self._memory.token_bytes,
        )
