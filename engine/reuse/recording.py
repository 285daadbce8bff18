"""Keeps the KV of a sequence's tokens for later prompts, as passes compute it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch import runs_of
from engine.reuse.lineage import Lineage
from engine.reuse.planning import ReusePlan
from engine.reuse.store import SpanStore

RESERVED = 64
"""Slots that a sequence takes at a time, at least: a decoding one asks for one a pass."""


class Recording:
    """One sequence's tokens in the span store: where they stand in it, and the slots that hold their KV.

    Where the store has no room for more, what follows is not kept. `plan`: what the sequence took over before the
    tokens that are kept were run.
    """

    def __init__(self, store: SpanStore) -> None:
        self.plan: ReusePlan | None = None
        self._store = store
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._spare: list[int] = []

    def reserve(self, num_rows: int) -> NDArray[np.int64]:
        """Slots for the rows of a pass, the first of them, if there are too few; what is not kept is used again."""
        missing = num_rows - len(self._spare)
        if missing > 0:
            found = self._store.reserve(max(missing, RESERVED))
            self._spare += [] if found is None else found.tolist()
        return np.array(self._spare[:num_rows], dtype=np.int64)

    def keep(self, positions: Sequence[int]) -> None:
        """The first rows of the pass, which stand at these positions, are final."""
        count = min(len(positions), len(self._spare))
        self._positions += positions[:count]
        self._slots += self._spare[:count]
        del self._spare[:count]

    def is_past(self, position: int) -> bool:
        """Whether a token there is kept already, or one behind it."""
        return bool(self._positions) and position <= self._positions[-1]

    def give_back(self) -> None:
        """Free all slots that nothing was entered with."""
        self._store.give_back(np.array(self._spare + self._slots, dtype=np.int64))
        self._positions, self._slots, self._spare = [], [], []

    def enter(self, root: bytes, token_ids: Sequence[int], lineage: Lineage) -> None:
        """Let what was kept be found: as exact, or, where a plan took KV over before it, as of that plan's generation.

        `lineage` is told how the prompt was put together.
        """
        plan = self.plan
        num_exact, generation = (len(token_ids), 0) if plan is None else (plan.num_exact, plan.generation)
        record = self._enter(root, token_ids, num_exact, generation)
        if plan is not None:
            lineage.add(plan.placed, record, [] if record is None else runs_of(self._positions))
        self._positions, self._slots = [], []

    def _enter(self, root: bytes, token_ids: Sequence[int], num_exact: int, generation: int) -> int | None:
        if not self._positions:
            return None
        ids = np.array(token_ids, dtype=np.uint32)
        slots = dict(zip(self._positions, self._slots, strict=True))
        record = self._store.new_record()
        for first, end in runs_of(self._positions):
            border = min(max(first, num_exact), end)
            for start, stop, tainted in ((first, border, 0), (border, end, generation)):
                if start < stop:
                    own = np.array([slots[position] for position in range(start, stop)], dtype=np.int64)
                    self._store.enter(root, ids[start:stop], own, tainted, start, record)
        return record


class PassRecorder:
    """Writes the rows of a pass that are to be kept into the store, layer by layer: a `KVRecorder`."""

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
