"""The likeliest tokens straight from hidden states: the vocabulary a tile at a time, so that few logits are in memory.

The logits of 64 rows over a vocabulary of 151,936 are 19 MB in bfloat16, which lie in memory that is fresh for every
block: 4,700 page faults, and a way to main memory and back. A tile of 32,768 columns is 4 MB that torch's allocator
hands out again and again, and that is still in the cache when its largest values are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from kernels.accept.likeliest import Likeliest
from kernels.accept.rows import likeliest_of

TILE = 1 << 15
"""Columns of the LM head in one tile."""


def likeliest(hidden: Tensor, tiles: Sequence[Callable[[Tensor], Tensor]]) -> Likeliest:
    """The likeliest token behind each row of hidden states [num_rows, hidden_size].

    tiles: parts of the LM head in the order of the token ids; each makes of the rows their logits
    [num_rows, columns of the tile].
    """
    found, offset = None, 0
    for tile in tiles:
        logits = tile(hidden)
        part = likeliest_of(logits)
        found = part if found is None else found.beside(part, offset)
        offset += logits.shape[1]
    assert found is not None, "a vocabulary has at least one tile"
    return found
