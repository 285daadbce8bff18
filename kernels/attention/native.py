"""Attention by the C++ kernel: over keys and values in bf16, from queries in float32 or bf16.

A token's result has the same bits whatever else is in the pass: keys are taken in blocks that begin at multiples of 64
positions, and each query has sums of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from kernels.attention.cpu import Run, Scratch, block_attention
from kernels.native import MOST_TIMES_SLOWER, Function, find_function, time_in_turns

MAX_WIDTH = 256
"""Of a head."""


def can_attend(activations: torch.dtype, kv: torch.dtype, width: int) -> bool:
    """Return whether the kernel takes queries, and keys and values, of these dtypes in heads of this width."""
    if kv != torch.bfloat16 or width % 2 or width > MAX_WIDTH or _find_function(activations) is None:
        return False
    return activations != torch.bfloat16 or is_faster()


@cache
def is_faster() -> bool:
    """Return whether the kernel is to serve queries in bf16, found by timing it and torch's operations in 0.1 s.

    Without matrix units it takes two thirds of their time.
    """
    query, (keys, values) = torch.ones(64, 6, 128).bfloat16(), torch.ones(2, 2048, 1, 128).bfloat16()
    runs, scratch = [(keys, values)], Scratch()
    ours, theirs = time_in_turns(
        [
            partial(attend, query, range(2048 - 64, 2048), runs, 2048, None),
            partial(block_attention, query, runs, scratch),
        ]
    )
    return ours <= MOST_TIMES_SLOWER * theirs


def attend(query: Tensor, positions: Sequence[int], runs: Sequence[Run], end: int, window: int | None) -> Tensor:
    """Attend from the tokens at some positions, ascending, each to all keys up to its own, or to the last `window`.

    query: [num_tokens, num_heads, head_dim]. runs: keys and values of neighbouring positions, the last at `end - 1`,
    each head contiguous. Those before the first window may be left out. Returns [num_tokens, num_heads, head_dim].
    """
    num_tokens, num_heads, width = query.shape
    num_kv_heads = runs[0][0].shape[1]
    query = query.contiguous()
    out = torch.empty_like(query)
    first = end - sum(len(keys) for keys, _ in runs)
    table = np.empty((len(runs), 8), dtype=np.int64)
    for row, (keys, values) in zip(table, runs, strict=True):
        last = first + len(keys)
        strides = keys.stride(0), values.stride(0), keys.stride(1), values.stride(1)
        row[:] = keys.data_ptr(), values.data_ptr(), first, last, *strides
        first = last
    function = _find_function(query.dtype)
    assert function is not None, "can_attend says so"
    at = np.array(positions, dtype=np.int64)
    function(
        query.data_ptr(),
        at.ctypes.data,
        table.ctypes.data,
        len(runs),
        num_tokens,
        num_kv_heads,
        num_heads // num_kv_heads,
        width,
        window or 0,
        width**-0.5,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


@cache
def _find_function(dtype: torch.dtype) -> Function | None:
    function = find_function("attend", dtype)
    if function is not None:
        pointers, sizes = [ctypes.c_void_p] * 3, [ctypes.c_long] * 6
        function.argtypes = [*pointers, *sizes, ctypes.c_float, ctypes.c_void_p, ctypes.c_int]
        function.restype = None
    return function
