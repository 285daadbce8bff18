"""One stored piece of a record: the unit that is kept, evicted, and written to a file."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.reuse.store.kgrams import TokenIds

ENTRY_TOKENS = 256
"""Records are cut at the multiples of this: the most tokens of an entry."""

Slots = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Entry:
    """Tokens in a row of one record, and where their KV is.

    root: what its KV depends on beside the ids, as a digest. record: the prompt that it was computed in. start: where
    its first token stood there. slots: of the store's memory, one a token; None where only a tier has the KV. before,
    after: the entries that adjoin it in its record. anchors: the hashes under which it can be found.
    num_uses, last_used, priority: see `eviction`. is_superseded: newer KV of the same tokens is stored.
    is_kept: a tier has it, so that it need not be written again.
    """

    number: int
    root: bytes
    record: int
    start: int
    token_ids: TokenIds
    generation: int
    slots: Slots | None = None
    before: Entry | None = None
    after: Entry | None = None
    anchors: set[int] = field(default_factory=set)
    num_uses: float = 0.0
    last_used: int = 0
    priority: float = 0.0
    is_superseded: bool = False
    is_kept: bool = False

    @property
    def end(self) -> int:
        """The position behind its last token in its record."""
        return self.start + len(self.token_ids)
