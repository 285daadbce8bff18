"""The op `accept` in Triton: top token and sampled token of each row, and the number of accepted draft tokens.

A vocabulary is long and rows are few, so each row is cut into parts. One launch finds the top two of every part.
Another merges the parts of each sequence's rows and compares them with the draft. Sampling adds two launches in
between: the weights of each chunk of the vocabulary are summed, then one chunk of each row is searched. The chunk
length depends on neither the rows nor the tuning, so a draw depends on its own row alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.accept.types import MIN_TEMPERATURE, AcceptOutput, Draws, round_up_rows
from kernels.op import Variant

CHUNK = 2048
"""Tokens whose weights one program sums."""

ALIGNED = 16
"""Parts are a multiple of this long, so each starts where a wide load may, which Triton can prove."""

MAX_TILE_PARTS = 4096
"""Parts that a program of the last launch merges at once, over all its rows."""


@triton.jit
def _find_top_two(ids, largest, second):
    """Merge parts [num_rows, PARTS] of a row: the id of the maximum (lowest of equals), the maximum or NaN, the next
    value.
    """
    is_nan = largest != largest
    has_nan = tl.max(is_nan.to(tl.int32), axis=1) > 0
    numbers = tl.where(is_nan, float("-inf"), largest)
    best = tl.max(numbers, axis=1)
    wins = tl.where(has_nan[:, None], is_nan, numbers == best[:, None])
    place = tl.min(tl.where(wins, ids, 0x7FFFFFFF), axis=1)
    others = tl.where(ids == place[:, None], second, numbers)
    return place, tl.where(has_nan, float("nan"), best), tl.max(others, axis=1)


@triton.jit
def top_two_kernel(
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
    """Find the top two of one part of one row. Each lane keeps the top two of the values it has seen."""
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
        found_at = tl.where(value > largest, offset, found_at)  # of equal values the first wins
        second = tl.maximum(second, tl.minimum(largest, value))
        largest = tl.maximum(largest, value, propagate_nan=tl.PropagateNan.ALL)
    place, best, other = _find_top_two((lane + found_at)[None, :], largest[None, :], second[None, :])
    at = row * PARTS + part + tl.arange(0, 1)
    tl.store(ids + at, place)
    tl.store(values + at, best)
    tl.store(values + tl.num_programs(0) * PARTS + at, other)


@triton.jit
def _merge_row_parts(ids, values, row, PARTS: tl.constexpr):
    """Return the top token of one row and its logit, from the row's parts."""
    at = row * PARTS + tl.arange(0, PARTS)[None, :]
    largest = tl.load(values + at)
    place, best, _ = _find_top_two(tl.load(ids + at), largest, largest)
    return tl.sum(place, axis=0), tl.sum(best, axis=0)


@triton.jit
def _compute_weights(logits, token, vocab_size, best, temperature, LEAST: tl.constexpr):
    """Return sampling weights of tokens, 1 for the top token, in float32 as on the CPU, for sums in float64."""
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
    """Sum the weights of one chunk of one row, unless the row does not sample."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    _, best = _merge_row_parts(ids, values, row, PARTS)
    temperature = tl.load(temperatures + row)
    if (temperature > 0.0) & (tl.abs(best) < float("inf")):
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        weights = _compute_weights(logits + row.to(tl.int64) * row_stride, token, vocab_size, best, temperature, LEAST)
        tl.store(sums + row.to(tl.int64) * tl.num_programs(1) + chunk, tl.sum(weights, axis=0))


@triton.jit
def _invert_cdf(weights, target):
    """Return the first index whose running sum of weights is above `target`; the last index of positive weight if there
    is none.

    A weight of 0 is skipped even where rounding makes a running sum larger than the next one.
    """
    place = tl.arange(0, weights.shape[0])
    is_behind = (tl.cumsum(weights, axis=0) > target) & (weights > 0.0)
    first = tl.min(tl.where(is_behind, place, weights.shape[0]), axis=0)
    last = tl.max(tl.where(weights > 0.0, place, 0), axis=0)
    return tl.minimum(first, last)


@triton.jit
def sample_kernel(
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
    """Sample the token of one row."""
    row = tl.program_id(0)
    token, best = _merge_row_parts(ids, values, row, PARTS)
    temperature = tl.load(temperatures + row)
    if (temperature > 0.0) & (tl.abs(best) < float("inf")):
        each = tl.arange(0, CHUNKS)
        chunk_sums = tl.load(sums + row.to(tl.int64) * num_chunks + each, mask=each < num_chunks, other=0.0)
        target = tl.load(numbers + row) * tl.sum(chunk_sums, axis=0)
        chunk = _invert_cdf(chunk_sums, target)
        rest = target - tl.sum(tl.where(each < chunk, chunk_sums, 0.0), axis=0)
        tokens = chunk * CHUNK + tl.arange(0, CHUNK)
        weights = _compute_weights(logits + row.to(tl.int64) * row_stride, tokens, vocab_size, best, temperature, LEAST)
        token = chunk * CHUNK + _invert_cdf(weights, rest)
    tl.store(drawn + row, token)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["drawn", "draft", "row_starts"])
def accept_kernel(
    ids,
    values,
    drawn,
    draft,  # int64 [num_rows], -1 where there is none
    row_starts,  # int32 [num_seqs + 1]
    words,  # int32 [4 * num_rows + num_seqs], as `AcceptOutput` has them
    num_rows,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    DRAWS: tl.constexpr,
    COUNTS: tl.constexpr,
):
    """Choose and count for the rows of one sequence; without counts, for ROWS of all rows."""
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
        likeliest, best, other = _find_top_two(place, largest, second)
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
) -> AcceptOutput:
    """Run `kernels.accept.accept` on checked arguments; without drafts nothing is counted."""
    num_rows, vocab_size = logits.shape
    num_seqs = 0 if row_starts is None else len(row_starts) - 1
    parts, device = variant["PARTS"], logits.device
    rows = max(1, min(MAX_TILE_PARTS // parts, round_up_rows(num_rows)))
    accepted = AcceptOutput.empty(num_rows, num_seqs, device)
    ids = torch.empty((num_rows, parts), dtype=torch.int32, device=device)
    values = torch.empty((2, num_rows, parts), dtype=torch.float32, device=device)
    part_len = triton.cdiv(triton.cdiv(vocab_size, parts), ALIGNED) * ALIGNED
    top_two_kernel[(num_rows, parts)](
        logits, ids, values, vocab_size, logits.stride(0), part_len, enable_fp_fusion=False, **variant
    )
    drawn = ids if draws is None else _launch_sample(logits, ids, values, draws)
    accept_kernel[(triton.cdiv(num_rows, rows) if row_starts is None else num_seqs,)](
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


def _launch_sample(logits: Tensor, ids: Tensor, values: Tensor, draws: Draws) -> Tensor:
    """Return the sampled token of each row: int32 [num_rows]."""
    num_rows, vocab_size = logits.shape
    num_chunks, parts = triton.cdiv(vocab_size, CHUNK), ids.shape[1]
    sums = torch.empty((num_rows, num_chunks), dtype=torch.float64, device=logits.device)
    drawn = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    constants = {"PARTS": parts, "CHUNK": CHUNK, "LEAST": MIN_TEMPERATURE, "enable_fp_fusion": False}
    chunk_weights_kernel[(num_rows, num_chunks)](
        logits, ids, values, draws.temperatures, sums, vocab_size, logits.stride(0), **constants
    )
    sample_kernel[(num_rows,)](
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
