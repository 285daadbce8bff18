"""Tells how deep a JSON text is nested without parsing it: parsers, and whatever walks their values, recurse."""

from __future__ import annotations

import re

import numpy as np

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1

BLOCK_BYTES = 1 << 20


def nests_deeper(text: bytes, limit: int) -> bool:
    """Whether more than `limit` brackets and braces of a JSON text (UTF-8) are open at once.

    Those in strings do not count. Of what is not JSON the answer is any. Costs a look where there are no more of them
    than that.
    """
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    bare = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    depth = 0
    for start in range(0, len(bare), BLOCK_BYTES):
        depths = depth + np.cumsum(_STEPS[bare[start : start + BLOCK_BYTES]], dtype=np.int64)
        if depths.max() > limit:
            return True
        depth = int(depths[-1])
    return False
