"""Accept in Triton: the likeliest token of each row, the drawn one, and how far the rows confirm their drafts.

A vocabulary is long and rows are few, so each row is cut into parts, and one launch finds the best two of every part.
Another goes through a sequence's rows, makes one of their parts and compares with the draft. Where tokens are drawn,
two launches stand between: the weights of each chunk of the vocabulary are summed, and then one chunk of each row is
looked into. Chunks have one length whatever the rows and the tuning, so that a draw depends on its own row alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.accept.types import LEAST_TEMPERATURE, Accepted, Draws, rows_up_to
from kernels.op import Variant

CHUNK = 2048
"""Tokens whose weights are summed by one program."""

ALIGNED = 16
"""Parts are a multiple of it long: all begin where a wide load may, and Triton can tell."""

MOST_OF_TILE = 4096
"""Parts that a program of the last launch merges at once, of all its rows together."""


@triton.jit
def _best_of(ids, largest, second):
    """Of parts [num_rows, PARTS] along a row: the id of the largest, the lowest of equals; it, or NaN; the next one."""
    is_nan = largest != largest
    has_nan = tl.max(is_nan.to(tl.int32), axis=1) > 0
    numbers = tl.where(is_nan, float("-inf"), largest)
    best = tl.max(numbers, axis=1)
    wins = tl.where(has_nan[:, None], is_nan, numbers == best[:, None])
    place = tl.min(tl.where(wins, ids, 0x7FFFFFFF), axis=1)
    others = tl.where(ids == place[:, None], second, numbers)
    return place, tl.where(has_nan, float("nan"), best), tl.max(others, axis=1)


@triton.jit
def best_of_parts_kernel(
    logits,  # [num_rows, vocab_size]
    ids,  # int32 [num_rows, PARTS]
    values,  # float32 [2, num_rows, PARTS]: the largest and the second of each part
    vocab_size,
    row_stride,
    part_len,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    LOADS_AHEAD: tl.constexpr,
):
    """One program: one part of one row; each lane keeps the best two of what it has seen."""
    row, part = tl.program_id(0), tl.program_id(1)
    start = part * part_len
    end = tl.minimum(start + part_len, vocab_size)
    lane = start + tl.arange(0, BLOCK)
    own = logits + row.to(tl.int64) * row_stride
    found_at = tl.zeros((BLOCK,), tl.int32)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    second = tl.full((BLOCK,), float("-inf"), tl.float32)
    for offset in tl.range(0, part_len, BLOCK, num_stages=LOADS_AHEAD):
        token = lane + offset
        value = tl.load(own + token, mask=token < end, other=float("-inf")).to(tl.float32)
        found_at = tl.where(value > largest, offset, found_at)  # an equal one that comes later is no better
        second = tl.maximum(second, tl.minimum(largest, value))
        largest = tl.maximum(largest, value, propagate_nan=tl.PropagateNan.ALL)
    place, best, other = _best_of((lane + found_at)[None, :], largest[None, :], second[None, :])
    at = row * PARTS + part + tl.arange(0, 1)
    tl.store(ids + at, place)
    tl.store(values + at, best)
    tl.store(values + tl.num_programs(0) * PARTS + at, other)


@triton.jit
def _best_of_row(ids, values, row, PARTS: tl.constexpr):
    """The likeliest token of one row and its logit, from the row's parts."""
    at = row * PARTS + tl.arange(0, PARTS)[None, :]
    largest = tl.load(values + at)
    place, best, _ = _best_of(tl.load(ids + at), largest, largest)
    return tl.sum(place, axis=0), tl.sum(best, axis=0)


@triton.jit
def _weights(logits, token, vocab_size, best, temperature, LEAST: tl.constexpr):
    """What tokens weigh in a draw, 1 the likeliest: as the CPU has it, in float32, for sums in float64."""
    value = tl.load(logits + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
    return tl.exp(tl.div_rn(value - best, tl.maximum(temperature, LEAST))).to(tl.float64)


@triton.jit
def chunk_weights_kernel(
    logits,
    ids,
    values,
    temperatures,  # float32 [num_rows]
    sums,  # float64 [num_rows, num_chunks]
    vocab_size,
    row_stride,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    LEAST: tl.constexpr,
):
    """One program: one chunk of one row, unless the row has nothing to draw."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    _, best = _best_of_row(ids, values, row, PARTS)
    temperature = tl.load(temperatures + row)
    if (temperature > 0.0) & (tl.abs(best) < float("inf")):
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        weights = _weights(logits + row.to(tl.int64) * row_stride, token, vocab_size, best, temperature, LEAST)
        tl.store(sums + row.to(tl.int64) * tl.num_programs(1) + chunk, tl.sum(weights, axis=0))


@triton.jit
def _place_of(weights, target):
    """Where `target` falls when the weights are laid side by side; the last that weighs anything if behind them all.

    A weight of 0 is passed by even where rounding leaves a border's sum above the next one's.
    """
    place = tl.arange(0, weights.shape[0])
    is_behind = (tl.cumsum(weights, axis=0) > target) & (weights > 0.0)
    first = tl.min(tl.where(is_behind, place, weights.shape[0]), axis=0)
    last = tl.max(tl.where(weights > 0.0, place, 0), axis=0)
    return tl.minimum(first, last)


@triton.jit
def draw_kernel(
    logits,
    ids,
    values,
    temperatures,
    numbers,  # float64 [num_rows]
    sums,
    drawn,  # int32 [num_rows]
    vocab_size,
    row_stride,
    num_chunks,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    LEAST: tl.constexpr,
):
    """One program: one row."""
    row = tl.program_id(0)
    token, best = _best_of_row(ids, values, row, PARTS)
    temperature = tl.load(temperatures + row)
    if (temperature > 0.0) & (tl.abs(best) < float("inf")):
        each = tl.arange(0, CHUNKS)
        chunk_sums = tl.load(sums + row.to(tl.int64) * num_chunks + each, mask=each < num_chunks, other=0.0)
        target = tl.load(numbers + row) * tl.sum(chunk_sums, axis=0)
        chunk = _place_of(chunk_sums, target)
        rest = target - tl.sum(tl.where(each < chunk, chunk_sums, 0.0), axis=0)
        tokens = chunk * CHUNK + tl.arange(0, CHUNK)
        weights = _weights(logits + row.to(tl.int64) * row_stride, tokens, vocab_size, best, temperature, LEAST)
        token = chunk * CHUNK + _place_of(weights, rest)
    tl.store(drawn + row, token)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["drawn", "draft", "row_starts"])
def confirm_kernel(
    ids,
    values,
    drawn,
    draft,  # int64 [num_rows], -1 where there is none
    row_starts,  # int32 [num_seqs + 1]
    words,  # int32 [4 * num_rows + num_seqs], as `Accepted` has them
    num_rows,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    DRAWS: tl.constexpr,
    COUNTS: tl.constexpr,
):
    """One program: the rows of one sequence; where nothing is counted, ROWS of all."""
    program = tl.program_id(0)
    if COUNTS:
        begin, end = tl.load(row_starts + program), tl.load(row_starts + program + 1)
    else:
        begin = program * ROWS
        end = tl.minimum(begin + ROWS, num_rows)
    departure = end
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        is_own = row < end
        at = row[:, None] * PARTS + tl.arange(0, PARTS)[None, :]
        place = tl.load(ids + at, mask=is_own[:, None], other=0)
        largest = tl.load(values + at, mask=is_own[:, None], other=0.0)
        second = tl.load(values + num_rows * PARTS + at, mask=is_own[:, None], other=0.0)
        likeliest, best, other = _best_of(place, largest, second)
        token = tl.load(drawn + row, mask=is_own, other=0) if DRAWS else likeliest
        tl.store(words + row, token, mask=is_own)
        tl.store(words + num_rows + row, likeliest, mask=is_own)
        tl.store(words + 2 * num_rows + row, best.to(tl.int32, bitcast=True), mask=is_own)
        tl.store(words + 3 * num_rows + row, other.to(tl.int32, bitcast=True), mask=is_own)
        if COUNTS:
            drafted = tl.load(draft + row, mask=is_own, other=-1)
            confirms = (token == drafted) & (tl.abs(best) < float("inf"))
            departure = tl.minimum(departure, tl.min(tl.where(confirms, end, row), axis=0))
    if COUNTS:
        tl.store(words + 4 * num_rows + program, departure - begin)


def launch(
    logits: Tensor, draft: Tensor | None, row_starts: Tensor | None, draws: Draws | None, variant: Variant
) -> Accepted:
    """As `kernels.accept.accept`, of checked arguments; without drafts, nothing is counted."""
    num_rows, vocab_size = logits.shape
    num_seqs = 0 if row_starts is None else len(row_starts) - 1
    parts, device = variant["PARTS"], logits.device
    rows = max(1, min(MOST_OF_TILE // parts, rows_up_to(num_rows)))
    accepted = Accepted.empty(num_rows, num_seqs, device)
    ids = torch.empty((num_rows, parts), dtype=torch.int32, device=device)
    values = torch.empty((2, num_rows, parts), dtype=torch.float32, device=device)
    part_len = triton.cdiv(triton.cdiv(vocab_size, parts), ALIGNED) * ALIGNED
    best_of_parts_kernel[(num_rows, parts)](
        logits, ids, values, vocab_size, logits.stride(0), part_len, enable_fp_fusion=False, **variant
    )
    drawn = ids if draws is None else _draw(logits, ids, values, draws)
    confirm_kernel[(triton.cdiv(num_rows, rows) if row_starts is None else num_seqs,)](
        ids,
        values,
        drawn,
        ids if draft is None else draft,
        ids if row_starts is None else row_starts,
        accepted.words,
        num_rows,
        PARTS=parts,
        ROWS=rows,
        DRAWS=draws is not None,
        COUNTS=row_starts is not None,
        enable_fp_fusion=False,
    )
    return accepted


def _draw(logits: Tensor, ids: Tensor, values: Tensor, draws: Draws) -> Tensor:
    """int32 [num_rows]."""
    num_rows, vocab_size = logits.shape
    num_chunks, parts = triton.cdiv(vocab_size, CHUNK), ids.shape[1]
    sums = torch.empty((num_rows, num_chunks), dtype=torch.float64, device=logits.device)
    drawn = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    constants = {"PARTS": parts, "CHUNK": CHUNK, "LEAST": LEAST_TEMPERATURE, "enable_fp_fusion": False}
    chunk_weights_kernel[(num_rows, num_chunks)](
        logits, ids, values, draws.temperatures, sums, vocab_size, logits.stride(0), **constants
    )
    draw_kernel[(num_rows,)](
        logits,
        ids,
        values,
        draws.temperatures,
        draws.numbers,
        sums,
        drawn,
        vocab_size,
        logits.stride(0),
        num_chunks,
        CHUNKS=triton.next_power_of_2(num_chunks),
        **constants,
    )
    return drawn
