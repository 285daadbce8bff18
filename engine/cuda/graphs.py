"""Passes of a few shapes as captured work: padded to a shape, told to memory that stays, and replayed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cuda.capture import Capture, Work
from engine.cuda.inputs import PassInputs, PoolLayout, arrays_of, inputs_of
from engine.cuda.sequence_rows import Numbers, SequenceRows
from engine.cuda.shapes import PassShape
from engine.cuda.staging import num_staged_bytes, staged

log = logging.getLogger(__name__)

PATIENCE = 16
"""Passes of a shape that run without a graph while nothing is idle; then it is captured before the next one."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One shape's memory of inputs, and the work that reads it."""

    shape: PassShape
    layout: PoolLayout
    memory: Tensor  # uint8
    replay: Work

    def __call__(self, sequences: Sequence[SequenceRows], record_slots: Sequence[int] | Numbers = ()) -> Tensor:
        """The hidden states of the sequences' rows, [num_rows, hidden_size], until the next pass."""
        arrays = arrays_of(sequences, self.shape, self.layout, record_slots)
        staged(arrays, self.memory.device, self.memory)
        return self.replay()[: sum(each.num_rows for each in sequences)]


class Graphs:
    """At most so many graphs, each captured when nobody waits, or when its shape has come again and again.

    A graph is captured over a pass that is padding alone, and so writes nothing that anybody reads.
    """

    def __init__(
        self,
        forward: Callable[[PassInputs], Tensor],
        layout: PoolLayout,
        device: torch.device,
        capture: Capture,
        most: int,
    ) -> None:
        self._forward = forward
        self._layout = layout
        self._device = device
        self._capture = capture
        self._most = most
        self._graphs: dict[PassShape, Graph] = {}
        self._missed: Counter[PassShape] = Counter()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def has_work(self) -> bool:
        """Whether a shape has come that has no graph yet, and may have one."""
        return bool(self._missed) and len(self._graphs) < self._most

    @torch.inference_mode()
    def work(self) -> None:
        """Capture the shape that was missed most."""
        if self.has_work:
            ((shape, _),) = self._missed.most_common(1)
            self._make(shape)

    def find(self, shape: PassShape, *, at_once: bool = False) -> Graph | None:
        """The graph that a pass of this shape fits; None: there is none (yet). `at_once`: have one if there can be."""
        padded = shape.padded
        if padded is None or padded in self._graphs or len(self._graphs) >= self._most:
            return None if padded is None else self._graphs.get(padded)
        self._missed[padded] += 1
        if at_once or self._missed[padded] > PATIENCE:
            self._make(padded)
        return self._graphs.get(padded)

    def _make(self, shape: PassShape) -> None:
        """Memory that runs out here ends it for all shapes to come: passes run without graphs."""
        del self._missed[shape]
        arrays = arrays_of([], shape, self._layout)
        before = _reserved(self._device)
        try:
            memory = torch.empty(num_staged_bytes(arrays), dtype=torch.uint8, device=self._device)
            inputs = inputs_of(staged(arrays, self._device, memory), shape, self._layout)
            replay = self._capture(lambda: self._forward(inputs))
        except RuntimeError:
            log.exception("the passes of %s cannot be captured; from now on they run as they come", shape)
            self._most = len(self._graphs)
            return
        self._graphs[shape] = Graph(shape, self._layout, memory, replay)
        taken = (_reserved(self._device) - before) / 1e6
        log.info("captured %s, %d of at most %d, for %.0f MB", shape, len(self), self._most, taken)


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
