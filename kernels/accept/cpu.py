"""Finds the top token of each row on a CPU, from logits or from hidden states.

Positive bfloat16 numbers are ordered as their bits read as integers, and numpy finds the largest of 32 integers with
one instruction. 64 rows of 16,384 take 0.05 ms; a conversion to float32 takes 0.45 ms, torch.max 1.0 ms and
torch.argmax 7 ms.

The logits of 64 rows over a vocabulary of 151,936 are 19 MB of bfloat16 in fresh memory for every block: 4,700 page
faults and a round trip to main memory. A tile of 32,768 columns is 4 MB that torch's allocator reuses and that is still
in the cache when its maximum is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.accept.op import OP
from kernels.accept.types import TopTokens
from kernels.op import runs_triton

GROUPS = 16
"""Each row is folded into this many parts, laid over one another, so that the top two are searched in one part only."""

INFINITE = 0x7F80
"""The bits of bfloat16's infinity. NaNs have larger ones. The same holds with the sign bit set."""


def find_top_tokens(logits: Tensor) -> TopTokens:
    """Find the top token of each row of logits [num_rows, vocab_size], in any float dtype and on any device."""
    if runs_triton(logits):
        return _find_top_on_device(logits)
    if logits.dtype == torch.bfloat16:
        return _find_top_bfloat16(logits)
    return _find_top_float32(logits.float().numpy())


def _find_top_bfloat16(logits: Tensor) -> TopTokens:
    bits = logits.view(torch.int16).numpy()
    ids, largest, second = _find_top_two(bits, np.iinfo(np.int16).min)
    found = TopTokens(ids, _to_float32(largest), _to_float32(second))
    # Bits of numbers below 0 have the opposite order, and a NaN's may have a sign: such rows are read as float32.
    unordered = (largest <= 0) | (second <= 0) | (largest > INFINITE)
    unordered |= bits.view(np.uint16).max(axis=1) > INFINITE + 0x8000
    for row in np.flatnonzero(unordered):
        one = _find_top_float32(logits[row : row + 1].float().numpy())
        found.token_ids[row], found.largest[row], found.second[row] = one.token_ids[0], one.largest[0], one.second[0]
    return found


def _find_top_float32(rows: NDArray[np.float32]) -> TopTokens:
    with np.errstate(invalid="ignore"):
        return TopTokens(*_find_top_two(rows, -np.inf))


def _find_top_two(rows: NDArray[Any], least: float) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[Any]]:
    """Return the position of each row's maximum (the first of equals), the maximum, and the largest of the other
    values.

    `least` is a value below all others of the dtype. A NaN counts as the largest value.
    """
    num_rows, width = rows.shape
    groups = GROUPS if width % GROUPS == 0 else 1
    folded = rows.reshape(num_rows, groups, width // groups)
    over = np.maximum.reduce(folded, axis=1)  # [num_rows, columns], the largest of each column's parts
    at = np.arange(num_rows)
    column = over.argmax(axis=1)
    largest = over[at, column]
    over[at, column] = least
    parts = folded[at, :, column]  # [num_rows, GROUPS], a copy
    part = parts.argmax(axis=1)
    parts[at, part] = least
    second = np.maximum(over.max(axis=1), parts.max(axis=1))
    places = part * folded.shape[2] + column
    for row in np.flatnonzero(second == largest):  # an equal value in another column may come first
        places[row] = rows[row].argmax()
    return places, largest, second


def _to_float32(bits: NDArray[np.int16]) -> NDArray[np.float32]:
    """Convert bfloat16 bits, the upper half of a float32, to float32."""
    return (bits.astype(np.int32) << 16).view(np.float32)


def _find_top_on_device(logits: Tensor) -> TopTokens:
    """Find the top tokens with one synchronization and one copy."""
    return OP.run_kernels({"logits": logits, "draft": None, "row_starts": None, "draws": None}).to_host().top_tokens


TILE = 1 << 15
"""Columns of one tile of the LM head."""


def find_top_tokens_by_tile(hidden: Tensor, tiles: Sequence[Callable[[Tensor], Tensor]]) -> TopTokens:
    """Find the top token of each row of hidden states [num_rows, hidden_size].

    tiles: the parts of the LM head in the order of token ids. Each maps hidden states to logits [num_rows, columns of
    the tile].
    """
    found, offset = None, 0
    for tile in tiles:
        logits = tile(hidden)
        part = find_top_tokens(logits)
        found = part if found is None else found.merge(part, offset)
        offset += logits.shape[1]
    assert found is not None, "a vocabulary has at least one tile"
    return found
