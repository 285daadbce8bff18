"""Span placement in Triton: gathers, rotates and scatters keys and values of all layers at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.kernel import HALF_BYTES, encode_pairs, store_pairs
from kernels.attention.kv_format import view_rows
from kernels.op import Variant, upload
from kernels.rope.kernel import rotate_pair

MAX_MOVED = 256
"""The most rows of which a program holds some columns in registers."""

MAX_ALIGNMENT = 16
"""Bytes of the widest load."""


@triton.jit(do_not_specialize=["num_tokens", "num_layers"])
def place_kernel(
    addresses,  # int64 [4, num_layers]: where each layer's keys, values, pool_keys and pool_values begin; or [2, ...]
    source_slots,  # int64 [num_tokens]
    cos,  # float32 [num_tokens, head_dim // 2]
    sin,
    target_slots,  # int64 [num_tokens]
    pool,  # any of the pools, for its dtype
    halves,  # float16, the memory of a pool in int8, for its dtype; else None
    key_bias,  # float32 [num_layers, num_kv_heads, head_dim], or None; these two are for int8
    key_scales,
    num_tokens,
    num_layers,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_tokens: tl.constexpr,
    block_heads: tl.constexpr,
    block_layers: tl.constexpr,
    block_half: tl.constexpr,
    alignment: tl.constexpr,
    has_values: tl.constexpr,
):
    """Place a block of tokens and a group of heads in several layers, reading the angles once."""
    half: tl.constexpr = head_dim // 2
    token = tl.program_id(0).to(tl.int64) * block_tokens + tl.arange(0, block_tokens)[:, None, None]
    head = tl.program_id(1) * block_heads + tl.arange(0, block_heads)[None, :, None]
    dim = tl.arange(0, block_half)[None, None, :]
    is_own = token < num_tokens
    source_slot = tl.load(source_slots + token, mask=is_own, other=0)
    target_slot = tl.load(target_slots + token, mask=is_own, other=0)
    token_width: tl.constexpr = num_kv_heads * (head_dim if halves is None else head_dim + HALF_BYTES)
    source = source_slot * token_width + head * head_dim + dim
    target = target_slot * token_width + head * head_dim + dim
    cosines = tl.load(cos + token * half + dim, mask=is_own & (dim < half))
    sines = tl.load(sin + token * half + dim, mask=is_own & (dim < half))
    mask = is_own & (head < num_kv_heads) & (dim < half)

    first_layer = tl.program_id(2) * block_layers
    for layer in range(first_layer, tl.minimum(first_layer + block_layers, num_layers)):
        keys = _load_pointer(addresses + layer, pool, alignment)
        pool_keys_at = addresses + (2 if has_values else 1) * num_layers + layer
        pool_keys = _load_pointer(pool_keys_at, pool, alignment)
        first = tl.load(keys + source, mask=mask)
        second = tl.load(keys + source + half, mask=mask)
        if has_values:
            values = _load_pointer(addresses + num_layers + layer, pool, alignment)
            pool_values = _load_pointer(addresses + 3 * num_layers + layer, pool, alignment)
            first_value = tl.load(values + source, mask=mask)
            second_value = tl.load(values + source + half, mask=mask)
        if halves is not None:
            scales_at = num_kv_heads * half + head
            from_slot = source_slot * (token_width // HALF_BYTES) + scales_at
            to_slot = target_slot * (token_width // HALF_BYTES) + scales_at
            has_scales = is_own & (head < num_kv_heads)
            scales = tl.load(_load_pointer(addresses + layer, halves, 2) + from_slot, mask=has_scales).to(tl.float32)
            first = first.to(tl.float32) * scales
            second = second.to(tl.float32) * scales
            row = layer * (num_kv_heads * head_dim) + head * head_dim + dim
            if key_bias is not None:
                bias = key_bias + row
                first += tl.load(bias, mask=mask, other=0.0)
                second += tl.load(bias + half, mask=mask, other=0.0)
            first, second = rotate_pair(first, second, cosines, sines)
            if key_scales is not None:
                factor = tl.load(key_scales + row, mask=mask, other=1.0)
                first = tl.div_rn(first, tl.broadcast_to(factor, first.shape))
                second = tl.div_rn(second, tl.broadcast_to(factor, second.shape))
            first, second, scales = encode_pairs(first, second, mask)
            own_halves = _load_pointer(pool_keys_at, halves, 2)
            store_pairs(
                pool_keys, own_halves, target_slot, head, dim, first, second, scales, has_scales, num_kv_heads, head_dim
            )
            if has_values:
                own_halves = _load_pointer(addresses + num_layers + layer, halves, 2)
                value_scales = tl.load(own_halves + from_slot, mask=has_scales)
                own_halves = _load_pointer(addresses + 3 * num_layers + layer, halves, 2)
                tl.store(own_halves + to_slot, value_scales, mask=has_scales)
        else:
            first, second = rotate_pair(first.to(tl.float32), second.to(tl.float32), cosines, sines)
            tl.store(pool_keys + target, first.to(pool.dtype.element_ty), mask=mask)
            tl.store(pool_keys + target + half, second.to(pool.dtype.element_ty), mask=mask)
        if has_values:
            tl.store(pool_values + target, first_value, mask=mask)
            tl.store(pool_values + target + half, second_value, mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def move_kernel(
    addresses,  # int64 [num_tensors]
    source_slots,  # int64 [num_tokens]
    target_slots,  # int64 [num_tokens]
    pool,  # any of the tensors, for its dtype
    num_tokens,
    width: tl.constexpr,  # numbers of a row
    block_tokens: tl.constexpr,
    block_width: tl.constexpr,
    alignment: tl.constexpr,
):
    """Move some columns of all rows of a tensor in one program, so that none is overwritten before it is read."""
    rows = _load_pointer(addresses + tl.program_id(1), pool, alignment)
    token = tl.arange(0, block_tokens)[:, None]
    column = tl.program_id(0) * block_width + tl.arange(0, block_width)[None, :]
    mask = (token < num_tokens) & (column < width)
    source = tl.load(source_slots + token, mask=token < num_tokens, other=0)
    target = tl.load(target_slots + token, mask=token < num_tokens, other=0)
    moved = tl.load(rows + source * width + column, mask=mask)
    tl.debug_barrier()  # wait for the loads of other threads
    tl.store(rows + target * width + column, moved, mask=mask)


@triton.jit
def _load_pointer(address, like, alignment: tl.constexpr):
    """Load a pointer of `like`'s type to a tensor whose address is a multiple of `alignment` bytes."""
    return tl.multiple_of(tl.load(address).to(like.dtype), alignment)


def launch(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Sequence[Tensor],
    pool_values: Sequence[Tensor],
    target_slots: Tensor,
    key_bias: Tensor | None,
    key_scales: Tensor | None,
    variant: Variant,
) -> None:
    """Run `kernels.span_placement.place_layers` with these constants, on memory that the device reads."""
    num_tokens, num_layers, pool, halves = len(source_slots), len(keys), pool_keys[0], None
    num_kv_heads, head_dim = pool.shape[1], 2 * cos.shape[1]
    if pool.dtype == torch.uint8:
        pool, halves = view_rows(pool)
    addresses = tuple(each.data_ptr() for each in (*keys, *values, *pool_keys, *pool_values))
    grid = (
        triton.cdiv(num_tokens, variant["block_tokens"]),
        triton.cdiv(num_kv_heads, variant["block_heads"]),
        triton.cdiv(num_layers, variant["block_layers"]),
    )
    table, alignment = _make_address_table(addresses, pool.device)
    place_kernel[grid](
        table,
        source_slots,
        cos,
        sin,
        target_slots,
        pool,
        halves,
        key_bias,
        key_scales,
        num_tokens,
        num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_half=triton.next_power_of_2(head_dim // 2),
        alignment=alignment,
        has_values=len(values) > 0,
        enable_fp_fusion=False,  # fused operations are explicit; Triton 3.9 warns if this is not set
        **variant,
    )


def launch_move(tensors: Sequence[Tensor], source_slots: Tensor, target_slots: Tensor) -> None:
    """Copy at most MAX_MOVED rows to other slots in every tensor."""
    pool, num_tokens = tensors[0], len(source_slots)
    width = pool[0].numel()
    table, alignment = _make_address_table(tuple(each.data_ptr() for each in tensors), pool.device)
    # only two sizes are compiled, because a branch is moved during a request
    block_tokens, block_width = (16, 128) if num_tokens <= 16 else (MAX_MOVED, 32)
    move_kernel[(triton.cdiv(width, block_width), len(tensors))](
        table,
        source_slots,
        target_slots,
        pool,
        num_tokens,
        width=width,
        block_tokens=block_tokens,
        block_width=block_width,
        alignment=alignment,
        num_warps=4 if num_tokens <= 16 else 8,
        enable_fp_fusion=False,
    )


@lru_cache(maxsize=64)
def _make_address_table(addresses: tuple[int, ...], device: torch.device) -> tuple[Tensor, int]:
    """Return the addresses on the device, and their alignment. Cached, since pool and store do not move."""
    return upload(torch.tensor(addresses, dtype=torch.int64), device), gcd(*addresses, MAX_ALIGNMENT)
