"""Attention by the C++ kernel: over keys and values in bf16, from queries in float32 or bf16.

A token's result has the same bits whatever else is in the pass: keys are taken in blocks that begin at multiples of 64
positions, and each query has sums of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.attention.cpu import block_attention
from kernels.attention.kv_format import SCALE_BYTES
from kernels.attention.runs import Run, Scratch
from kernels.native import MOST_TIMES_SLOWER, Function, find_function, time_in_turns

MAX_WIDTH = 256
"""Of a head."""


def can_attend(activations: torch.dtype, kv: torch.dtype, width: int) -> bool:
    """Return whether the kernel takes queries, and keys and values, of these dtypes in heads of this width. uint8
    stands for int8 with scales (`KVFormat`).
    """
    if kv not in (torch.bfloat16, torch.uint8) or width % 2 or width > MAX_WIDTH or _find_function(activations) is None:
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


class RunTable:
    """The keys and values of several sequences of a pass, as rows of one pool: the same rows in every layer."""

    def __init__(
        self,
        slots: Sequence[Sequence[tuple[int, int]]],
        first_positions: Sequence[int],
        ranges: Sequence[tuple[int, int]],
        positions: Sequence[int],
    ) -> None:
        """Of each sequence, its ranges of rows in the pool, in order; the position of the first of them; the range of
        its tokens in the pass. positions: of all tokens of the pass; those of a sequence ascend.
        """
        runs = [
            (first, position, position + last - first)
            for own, start in zip(slots, first_positions, strict=True)
            for (first, last), position in zip(own, _list_starts(own, start), strict=True)
        ]
        self.positions = np.array(positions, dtype=np.int64)
        self.sequences = np.empty((len(slots), 4), dtype=np.int64)  # `Sequence` in attention.cpp
        first_run = 0
        for row, own, (first, last) in zip(self.sequences, slots, ranges, strict=True):
            row[:] = first, last - first, first_run, len(own)
            first_run += len(own)
        self.runs = np.zeros((len(runs), 8), dtype=np.int64)  # `Run` there
        self.is_int8 = False
        self._first_slots = np.array([first for first, _, _ in runs], dtype=np.int64)
        self.runs[:, 2:4] = [(start, end) for _, start, end in runs]

    def point_at(self, keys: Tensor, values: Tensor) -> None:
        """Take the keys and values of a layer: [num_slots, num_kv_heads, head_dim], each head contiguous."""
        for column, rows in enumerate((keys, values)):
            self.runs[:, column] = rows.data_ptr() + self._first_slots * (rows.stride(0) * rows.itemsize)
            self.runs[:, 4 + column] = rows.stride(0) * rows.itemsize
            self.runs[:, 6 + column] = _count_head_bytes(rows)
        self.is_int8 = keys.dtype == torch.uint8


def _count_head_bytes(rows: Tensor) -> int:
    """Return the bytes between two heads of a token; in int8 the scales are behind the last (`KVFormat`)."""
    return rows.shape[2] - SCALE_BYTES if rows.dtype == torch.uint8 else rows.stride(1) * rows.itemsize


def _list_starts(slots: Sequence[tuple[int, int]], start: int) -> list[int]:
    """Return the position of the first token of each of a sequence's ranges of rows."""
    return list(accumulate((last - first for first, last in slots[:-1]), initial=start))


def attend_sequences(
    query: Tensor,
    table: RunTable,
    num_kv_heads: int,
    window: int | None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from the tokens of several sequences, each to its own keys up to its position, or to the last `window`.

    query: [num_tokens, num_heads, head_dim]. `table` points at the layer's keys and values. scale, cap: as for
    `kernels.attention.causal_attention`. Returns [num_tokens, num_heads, head_dim].
    """
    batch = table.positions, table.sequences, table.runs
    return _attend(query, *batch, num_kv_heads, window, scale, cap, table.is_int8)


def attend(
    query: Tensor,
    positions: Sequence[int],
    runs: Sequence[Run],
    end: int,
    window: int | None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from the tokens at some positions, ascending, each to all keys up to its own, or to the last `window`.

    query: [num_tokens, num_heads, head_dim]. runs: keys and values of neighbouring positions, the last at `end - 1`,
    each head contiguous. Those before the first window may be left out. scale, cap: as for
    `kernels.attention.causal_attention`. Returns [num_tokens, num_heads, head_dim].
    """
    first = end - sum(len(keys) for keys, _ in runs)
    table = np.empty((len(runs), 8), dtype=np.int64)
    for row, (keys, values) in zip(table, runs, strict=True):
        last = first + len(keys)
        strides = keys.stride(0) * keys.itemsize, values.stride(0) * values.itemsize
        row[:] = keys.data_ptr(), values.data_ptr(), first, last, *strides, *map(_count_head_bytes, (keys, values))
        first = last
    sequences = np.array([(0, len(query), 0, len(runs))], dtype=np.int64)
    num_kv_heads, is_int8 = runs[0][0].shape[1], runs[0][0].dtype == torch.uint8
    batch = np.array(positions, dtype=np.int64), sequences, table
    return _attend(query, *batch, num_kv_heads, window, scale, cap, is_int8)


def _attend(
    query: Tensor,
    positions: np.ndarray[Any, Any],
    sequences: np.ndarray[Any, Any],
    runs: np.ndarray[Any, Any],
    num_kv_heads: int,
    window: int | None,
    scale: float | None,
    cap: float | None,
    is_int8: bool,
) -> Tensor:
    function = _find_function(query.dtype)
    assert function is not None, "can_attend says so"
    query = query.contiguous()
    _, num_heads, width = query.shape
    out = torch.empty_like(query)
    scale = width**-0.5 if scale is None else scale
    function(
        query.data_ptr(),
        positions.ctypes.data,
        sequences.ctypes.data,
        len(sequences),
        runs.ctypes.data,
        num_kv_heads,
        num_heads // num_kv_heads,
        width,
        window or 0,
        scale,
        0.0 if cap is None else cap / scale,
        is_int8,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


@cache
def _find_function(dtype: torch.dtype) -> Function | None:
    function = find_function("attend", dtype)
    if function is not None:
        pointer, sizes = ctypes.c_void_p, [ctypes.c_long] * 4
        function.argtypes = [
            *[pointer] * 3,
            ctypes.c_long,
            pointer,
            *sizes,
            *[ctypes.c_float] * 2,
            ctypes.c_int,
            pointer,
            ctypes.c_int,
        ]
        function.restype = None
    return function
