"""How passes are run: what the engine's loop asks for, whoever does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from engine.cuda.graphs import Graphs
from engine.kv_pool import KVPool
from engine.model import Decoder
from engine.paging import KVPages
from engine.pass_rows import PassRows
from engine.sampling import Sampler
from engine.types import GenerationRequest
from engine.verification import Verification

CONTEXT = 512
"""Tokens that the rows of a measured pass look back on, as most of an edit's do."""


class Passes(Protocol):
    """Runs passes over the rows of sequences whose pages are in one pool."""

    @property
    def graphs(self) -> Graphs | None:
        """What can be done for later passes while nobody waits, if anything."""
        ...

    def run(self, all_rows: Sequence[PassRows], pages: KVPages) -> list[Verification | None]:
        """What is chosen behind each sequence's rows, whose KV is written; None behind a part of a prompt."""
        ...

    def measure(self, num_rows: int) -> None:
        """Run a pass over a draft, all rows of which are scored, in a pool that holds nothing yet."""
        ...


def most_measured(model: Decoder, pool: KVPool) -> int:
    """Rows of a measured pass that have room."""
    return min(pool.num_slots, model.config.max_positions)


def measured_start(num_rows: int, model: Decoder, pool: KVPool) -> int:
    """The position at which the rows of a measured pass begin."""
    return min(CONTEXT, most_measured(model, pool) - num_rows)


class _AllRows:
    """Wants to see every row."""

    def rows_behind(self, num_accepted: int, num_drafted: int) -> int:
        return num_drafted

    def observe(self, num_output: int, draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        pass


def measured_verification(hidden: Tensor) -> Verification:
    """Of a measured pass's rows, [num_rows, hidden_size]."""
    sampler = Sampler(GenerationRequest([0], 1))
    return Verification(hidden, sampler, [], [0] * (len(hidden) - 1), _AllRows())
