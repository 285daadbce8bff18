"""Places reused KV in the pages of sequences, and records new KV for later prompts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import Rope
from engine.decoder import Decoder, find_ranges
from engine.engine_config import EngineConfig
from engine.kv_cache import KVPages, page_runs
from engine.kv_pool import KVPool
from engine.reuse import ReusePlan, plan_reuse
from engine.reuse.disk_tier import DiskTier
from engine.reuse.plan import Lineage
from engine.reuse.span_store import SpanStore
from engine.runner.step_rows import StepRows
from engine.scheduler import ScheduledSequence
from kernels.attention import Scratch
from kernels.span_placement import place_layers

RESERVED = 64
"""The fewest slots that a sequence reserves at a time: a decoding one needs one for each pass."""


class Recording:
    """One sequence's tokens in the span store: their positions, and the slots that hold their KV.

    If the store has no room, later tokens are not recorded. `plan`: the reuse plan under which the recorded tokens were
    run.
    """

    def __init__(self, store: SpanStore) -> None:
        self.plan: ReusePlan | None = None
        self._store = store
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._spare: list[int] = []

    def reserve(self, num_rows: int) -> NDArray[np.int64]:
        """Return slots for the first rows of a pass, fewer than the rows if the store is full. Unused slots are used
        again.
        """
        missing = num_rows - len(self._spare)
        if missing > 0:
            found = self._store.reserve(max(missing, RESERVED))
            self._spare += [] if found is None else found.tolist()
        return np.array(self._spare[:num_rows], dtype=np.int64)

    def keep(self, positions: Sequence[int]) -> None:
        """Record the first rows of the pass, which are at these positions and final."""
        count = min(len(positions), len(self._spare))
        self._positions += positions[:count]
        self._slots += self._spare[:count]
        del self._spare[:count]

    def is_past(self, position: int) -> bool:
        """Return whether a token at this position or a later one is recorded."""
        return bool(self._positions) and position <= self._positions[-1]

    def give_back(self) -> None:
        """Free all slots that were not entered into the store."""
        self._store.give_back(np.array(self._spare + self._slots, dtype=np.int64))
        self._positions, self._slots, self._spare = [], [], []

    def enter(self, root: bytes, token_ids: Sequence[int], lineage: Lineage) -> None:
        """Enter the recorded tokens into the store: as exact, or, after reused KV, with the plan's generation.

        `lineage` is told the parts of the prompt.
        """
        plan = self.plan
        num_exact, generation = (len(token_ids), 0) if plan is None else (plan.num_exact, plan.generation)
        record = self._enter(root, token_ids, num_exact, generation)
        if plan is not None:
            lineage.add(plan.placed, record, [] if record is None else find_ranges(self._positions))
        self._positions, self._slots = [], []

    def _enter(self, root: bytes, token_ids: Sequence[int], num_exact: int, generation: int) -> int | None:
        if not self._positions:
            return None
        ids = np.array(token_ids, dtype=np.uint32)
        slots = dict(zip(self._positions, self._slots, strict=True))
        record = self._store.new_record()
        for first, end in find_ranges(self._positions):
            border = min(max(first, num_exact), end)
            for start, stop, tainted in ((first, border, 0), (border, end, generation)):
                if start < stop:
                    own = np.array([slots[position] for position in range(start, stop)], dtype=np.int64)
                    self._store.enter(root, ids[start:stop], own, tainted, start, record)
        return record


class StepRecorder:
    """The `KVRecorder` that writes chosen rows of a pass into the store, layer by layer."""

    def __init__(self, store: SpanStore, rows: Sequence[int], slots: NDArray[np.int64], num_rows: int) -> None:
        """`rows` of the pass's `num_rows` go to `slots`."""
        self._store = store
        self._slots = slots
        self._rows = None if len(rows) == num_rows else torch.tensor(rows, dtype=torch.int64)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """As `KVRecorder.write`."""
        if self._rows is not None:
            rows = self._rows.to(keys.device)
            keys, values = keys.index_select(0, rows), values.index_select(0, rows)
        self._store.write(self._slots, layer, keys, values)


log = logging.getLogger(__name__)


def build_kv_reuse(config: EngineConfig, model: Decoder, pool: KVPool) -> KVReuse | None:
    """Return the reuse of KV; None without memory for it, or for a model with a window. EngineError if
    memory is short.
    """
    if not config.span_bytes or model.config.window is not None:
        return None
    tier = None
    if config.span_dir is not None:
        tier = DiskTier(config.span_dir, config.span_disk_bytes, model.fingerprint, config.span_key)
    dtype, device = model.weights.kv_dtype, model.weights.device
    return KVReuse(SpanStore(model.config, dtype, device, capacity_bytes=config.span_bytes, disk=tier), model, pool)


class KVReuse:
    """Connects the span store and the pool, for models whose tokens attend to all earlier tokens."""

    def __init__(self, store: SpanStore, model: Decoder, pool: KVPool) -> None:
        assert model.config.window is None, "KV before a window is not kept"
        self.store = store
        self._model = model
        self._pool = pool
        self._scratch = Scratch()
        self._lineage = Lineage()
        self._recordings: dict[int, Recording] = {}
        self._biases = _stack_biases(model)

    def reuse_kv(self, pages: KVPages, sequence: ScheduledSequence, num_cached: int) -> ReusePlan | None:
        """Place the stored KV of a sequence's tokens after its cached prefix and return the plan; None if there is
        none.

        Any failure costs a full prefill and nothing else.
        """
        try:
            token_ids = np.array(sequence.token_ids, dtype=np.uint32)
            matches = self.store.find(sequence.root, token_ids, num_cached)
            plan = plan_reuse(len(token_ids), num_cached, matches, sequence.reuse, self._lineage)
            if not plan.placed:
                return None
            self._place(pages, sequence.id, plan)
        except Exception:
            log.exception("stored KV could not be reused; the prompt is run without it")
            return None
        return plan

    def build_recorder(self, all_rows: Sequence[StepRows]) -> StepRecorder | None:
        """Return the recorder of a pass's rows; None if the store has no room for any."""
        rows, slots = self.reserve(all_rows)
        return StepRecorder(self.store, rows, slots, sum(each.num_rows for each in all_rows)) if rows else None

    def reserve(self, all_rows: Sequence[StepRows]) -> tuple[list[int], NDArray[np.int64]]:
        """Return the rows of a pass whose KV is recorded, and the store's slots for it."""
        rows: list[int] = []
        slots: list[NDArray[np.int64]] = []
        first = 0
        for each in all_rows:
            recording = self._get_recording(each.sequence)
            if recording.plan is not each.sequence.plan or recording.is_past(each.positions[0]):
                self._enter(each.sequence, recording)  # it lost its pages and is run again, on other KV maybe
                recording.plan = each.sequence.plan
            own = recording.reserve(each.num_bare)
            rows += range(first, first + len(own))
            slots.append(own)
            first += each.num_rows
        return rows, np.concatenate(slots)

    def keep(self, rows: StepRows, num_final: int) -> None:
        """Record the first rows of a sequence's pass, whose KV is final."""
        self._recordings[rows.sequence.id].keep(rows.positions[: min(num_final, rows.num_bare)])

    def finish(self, sequence: ScheduledSequence) -> None:
        """Enter what a finished sequence has computed into the store."""
        recording = self._recordings.pop(sequence.id, None)
        if recording is not None:
            self._enter(sequence, recording)
            recording.give_back()

    def drop(self, sequence: ScheduledSequence) -> None:
        """Drop the recording of a failed sequence."""
        recording = self._recordings.pop(sequence.id, None)
        if recording is not None:
            recording.give_back()

    def forget(self) -> None:
        """Drop all recordings and all that is stored."""
        self._recordings.clear()
        self._lineage.forget()
        self.store.forget()

    def _get_recording(self, sequence: ScheduledSequence) -> Recording:
        return self._recordings.setdefault(sequence.id, Recording(self.store))

    def _enter(self, sequence: ScheduledSequence, recording: Recording) -> None:
        recording.enter(sequence.root, sequence.token_ids, self._lineage)

    @torch.inference_mode()
    def _place(self, pages: KVPages, sequence_id: int, plan: ReusePlan) -> None:
        table = pages.page_table(sequence_id)
        sources = torch.from_numpy(np.concatenate([each.slots for each in plan.placed]))
        positions = torch.cat([torch.arange(each.start, each.end) for each in plan.placed])
        ranges = [run for each in plan.placed for run in page_runs(table, pages.page_size, each.start, each.end)]
        targets = torch.cat([torch.arange(first, end) for first, end in ranges])
        for rope, (cos, sin) in self._model.get_rotations(positions.to(self._pool.device)).items():
            layers = self._model.config.get_kv_layers(rope)
            keys, values, pool_keys, pool_values = (
                [part[layer] for layer in layers if part]
                for part in (self.store.keys, self.store.values, self._pool.keys, self._pool.values)
            )
            biases = self._biases.get(rope, (None, None))
            place_layers(keys, values, sources, cos, sin, pool_keys, pool_values, targets, self._scratch, *biases)


def _stack_biases(model: Decoder) -> dict[Rope, tuple[Tensor, Tensor]]:
    """Return by RoPE the biases of keys and their scales, [num_layers, num_kv_heads, head_dim] each, if KV is in int8
    and the model has biases: of a stored span they are taken out.
    """
    weights, config = model.weights, model.config
    found = {}
    for rope in config.ropes if weights.kv_format.is_int8 else ():
        layers = [weights.layers[config.find_computing_layer(each)] for each in config.get_kv_layers(rope)]
        own = [(each.key_bias, each.key_scales) for each in layers]
        pairs = [(bias, scales) for bias, scales in own if bias is not None and scales is not None]
        assert len(pairs) in (0, len(own)), "either all layers have biases, or none"
        if pairs:
            bias, scales = (torch.stack(each) for each in zip(*pairs, strict=True))
            found[rope] = bias, scales
    return found
