"""Heads in int8 for Triton kernels that write keys and values: see `kernels.attention.KVFormat`."""

from __future__ import annotations

import triton
import triton.language as tl

MOST = tl.constexpr(127.0)
"""The largest integer."""

HALF_BYTES = tl.constexpr(2)
"""Bytes of a scale."""

ROUNDING = tl.constexpr(12582912.0)
"""A float32 number of 1.5 * 2**23 has no room for fractions: adding it rounds to the nearest integer, ties to even."""


@triton.jit
def encode_pairs(first, second, mask):
    """Return both halves of heads as integers, int8 [tokens, heads, half], and scales, float16 [tokens, heads, 1],
    with the bits of `kernels.attention.kv_format.encode_heads`.

    first, second: float32 [tokens, heads, half], of which those outside of `mask` do not count.
    """
    first = tl.where(mask, first, 0.0)
    second = tl.where(mask, second, 0.0)
    most = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=2, keep_dims=True)
    num_faults = tl.max(((first != first) | (second != second)).to(tl.int32), axis=2, keep_dims=True)
    scales = tl.where(num_faults > 0, float("nan"), tl.div_rn(most, MOST)).to(tl.float16)
    divisors = scales.to(tl.float32)
    is_number = (divisors > 0) & (divisors < float("inf"))
    divisors = tl.where(is_number, divisors, 1.0)
    return _round(first, divisors, is_number), _round(second, divisors, is_number), scales


@triton.jit
def _round(numbers, divisors, is_number):
    quotients = tl.where(is_number, tl.div_rn(numbers, tl.broadcast_to(divisors, numbers.shape)), 0.0)
    bounded = tl.minimum(tl.maximum(quotients, -MOST), MOST)
    return ((bounded + ROUNDING) - ROUNDING).to(tl.int8)


@triton.jit
def store_pairs(
    rows,  # int8: the integers of [num_slots, num_kv_heads, head_dim + 2]
    scales,  # float16: the same memory
    slot,  # int64 [tokens, 1, 1]
    head,  # [1, heads, 1]
    dim,  # [1, 1, half]
    first,
    second,
    own_scales,
    is_written,  # [tokens, heads, 1]
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
):
    """Store what `encode_pairs` returns in slots: the integers of all heads of a token, and then their scales."""
    half: tl.constexpr = head_dim // 2
    width: tl.constexpr = num_kv_heads * (head_dim + HALF_BYTES)
    at = slot * width + head * head_dim + dim
    mask = is_written & (dim < half)
    tl.store(rows + at, first, mask=mask)
    tl.store(rows + at + half, second, mask=mask)
    tl.store(scales + slot * (width // HALF_BYTES) + num_kv_heads * half + head, own_scales, mask=is_written)
