"""Finds the likeliest token of each row on a CPU, from logits or from hidden states.

bfloat16 numbers above 0 are in the order of their bits read as integers, and numpy finds the largest of 32 integers
with one instruction: 64 rows of 16,384 take 0.05 ms, where reading them as float32 first takes 0.45, torch.max 1.0 and
torch.argmax 7.

The logits of 64 rows over a vocabulary of 151,936 are 19 MB in bfloat16, which lie in memory that is fresh for every
block: 4,700 page faults, and a way to main memory and back. A tile of 32,768 columns is 4 MB that torch's allocator
hands out again and again, and that is still in the cache when its largest values are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.accept.op import OP
from kernels.accept.types import Likeliest
from kernels.backend import runs_triton

GROUPS = 16
"""A row is folded into as many parts, laid over one another, so that its two largest are looked for in one of them."""

INFINITE = 0x7F80
"""The bits of bfloat16's infinity; NaNs have larger ones. With the sign's bit set the same holds."""


def likeliest_of(logits: Tensor) -> Likeliest:
    """Of each row of logits [num_rows, vocab_size] in any float dtype, on any device."""
    if runs_triton(logits):
        return _on_device(logits)
    if logits.dtype == torch.bfloat16:
        return _of_bfloat16(logits)
    return _of_floats(logits.float().numpy())


def _of_bfloat16(logits: Tensor) -> Likeliest:
    bits = logits.view(torch.int16).numpy()
    ids, largest, second = _top_two(bits, np.iinfo(np.int16).min)
    found = Likeliest(ids, _as_float(largest), _as_float(second))
    # Bits of numbers below 0 have the opposite order, and a NaN's may have a sign: such rows are read as float32.
    unordered = (largest <= 0) | (second <= 0) | (largest > INFINITE)
    unordered |= bits.view(np.uint16).max(axis=1) > INFINITE + 0x8000
    for row in np.flatnonzero(unordered):
        one = _of_floats(logits[row : row + 1].float().numpy())
        found.token_ids[row], found.largest[row], found.second[row] = one.token_ids[0], one.largest[0], one.second[0]
    return found


def _of_floats(rows: NDArray[np.float32]) -> Likeliest:
    with np.errstate(invalid="ignore"):
        return Likeliest(*_top_two(rows, -np.inf))


def _top_two(rows: NDArray[Any], least: float) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[Any]]:
    """The place of the largest of each row, the first of equals, itself, and the largest of the others.

    least: what no value of the dtype is below. A NaN counts as the largest.
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
    for row in np.flatnonzero(second == largest):  # another column may hold an equal one that stands before it
        places[row] = rows[row].argmax()
    return places, largest, second


def _as_float(bits: NDArray[np.int16]) -> NDArray[np.float32]:
    """bfloat16 is the upper half of float32."""
    return (bits.astype(np.int32) << 16).view(np.float32)


def _on_device(logits: Tensor) -> Likeliest:
    """One wait for the device, and one copy."""
    return OP.accepted({"logits": logits, "draft": None, "row_starts": None, "draws": None}).to_host().likeliest


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
