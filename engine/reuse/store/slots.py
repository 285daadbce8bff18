"""The slots of the store's memory: which are free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.reuse.store.entry import Slots


class SlotPool:
    """`num_slots` slots, one a token, each free or given out."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self._is_free: NDArray[np.bool_] = np.ones(num_slots, dtype=np.bool_)

    def take(self, count: int) -> Slots:
        """The lowest free slots, so that what is taken together mostly lies together; as many must be free."""
        assert count <= self.num_free, "the caller evicts first"
        slots = np.flatnonzero(self._is_free)[:count]
        self._is_free[slots] = False
        self.num_free -= count
        return slots

    def give_back(self, slots: Slots) -> None:
        """Nobody needs what these hold."""
        assert not self._is_free[slots].any(), "a slot is given back twice"
        self._is_free[slots] = True
        self.num_free += len(slots)

    def is_free(self, slots: Slots) -> NDArray[np.bool_]:
        """Which of these are free."""
        return self._is_free[slots]
