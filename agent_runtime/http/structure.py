"""Bounds how a JSON text is built, without parsing it: parsers, and what walks their values, recurse and allocate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent_runtime.errors import BadRequest

MAX_DEPTH = 64
"""Of arrays and objects in each other. Python's parser would take some hundreds, what is made of them fewer."""

MAX_VALUES = 200_000
"""Of one body; a batch of 256 requests with 100 files each has fewer. While the parser runs, no other thread does."""

BLOCK_BYTES = 1 << 16
"""What is looked at in one go, in some 0.1 ms: between two blocks other threads run."""

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_structure(text: bytes, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> None:
    """Raise BadRequest where a JSON text (UTF-8) is nested deeper, or holds more values, or a NUL byte.

    Brackets and commas in strings do not count. Of what is not JSON the answer is any that a parser bears. Takes time
    in proportion to the text, whatever is in it.
    """
    if b"\0" in text:
        raise BadRequest("the body holds a NUL byte; send JSON as UTF-8")
    num_openings = text.count(b"[") + text.count(b"{")
    if num_openings <= max_depth and num_openings + text.count(b",") < max_values:
        return
    depth, num_values, num_quotes = 0, 1, 0
    for bare, quotes in _outside_strings(text):
        brackets = np.frombuffer(bare.translate(None, _NO_BRACKETS), np.uint8)
        num_values += bare.count(b",") + bare.count(b"[") + bare.count(b"{")
        num_quotes += quotes
        if num_values > max_values or num_quotes > 4 * max_values:  # each may have a key
            raise BadRequest(f"the body holds more than {max_values} values")
        if not len(brackets):
            continue
        depths = depth + np.cumsum(_STEPS[brackets], dtype=np.int64)
        if depths.max() > max_depth:
            raise BadRequest(f"the body is nested deeper than {max_depth} arrays and objects")
        depth = int(depths[-1])


def _outside_strings(text: bytes) -> Iterator[tuple[bytes, int]]:
    """What lies outside of strings, block by block, and how many strings begin and end in each.

    A quote ends a string unless an odd number of backslashes stands before it: without the pairs of backslashes, and
    then without the quotes that one stands before, every quote counts.
    """
    is_inside, cut_off = False, b""
    for start in range(0, len(text), BLOCK_BYTES):
        block = (cut_off + text[start : start + BLOCK_BYTES]).replace(b"\\\\", b"")
        cut_off = block[-1:] if block.endswith(b"\\") else b""  # what it escapes is in the next block
        parts = block[: len(block) - len(cut_off)].replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[is_inside::2]), len(parts) - 1
        is_inside ^= len(parts) % 2 == 0
