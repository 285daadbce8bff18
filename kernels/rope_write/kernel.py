"""RoPE and the write to the KV pool in one Triton kernel: every head is read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.kernel import encode_pairs, store_pairs
from kernels.attention.kv_format import view_rows
from kernels.op import Variant
from kernels.rope import Record
from kernels.rope.kernel import rotate_pair


@triton.jit
def _store_halves(rows, place, half: tl.constexpr, first, second, mask):
    """Write both halves of heads to places of some rows, if there are any rows."""
    if rows is not None:
        tl.store(rows + place, first.to(rows.dtype.element_ty), mask=mask)
        tl.store(rows + place + half, second.to(rows.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def rope_write_kernel(
    heads,  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim], or without values
    cos,  # float32 [num_tokens, head_dim // 2]
    sin,
    slots,  # int64 [num_tokens]
    query,  # [num_tokens, num_heads, head_dim]
    pool_keys,  # [num_slots, num_kv_heads, head_dim]
    pool_values,  # or None, as record_values
    record_slots,  # int64 [num_tokens], or None
    record_keys,  # [num_stored, num_kv_heads, head_dim]
    record_values,
    pool_key_scales,  # float16, the memory of the pools and the record where they are in int8; else None
    pool_value_scales,
    record_key_scales,
    record_value_scales,
    key_bias,  # float32 [num_kv_heads, head_dim], or None; these two are for int8
    key_scales,
    num_tokens,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_tokens: tl.constexpr,
    block_heads: tl.constexpr,
    block_half: tl.constexpr,
):
    """Process a block of tokens and a group of query heads, or a group of KV heads with their keys and values."""
    half: tl.constexpr = head_dim // 2
    num_query_groups: tl.constexpr = (num_heads + block_heads - 1) // block_heads
    group = tl.program_id(1)
    token = tl.program_id(0).to(tl.int64) * block_tokens + tl.arange(0, block_tokens)[:, None, None]
    dim = tl.arange(0, block_half)[None, None, :]
    is_own = (token < num_tokens) & (dim < half)
    cosines = tl.load(cos + token * half + dim, mask=is_own)
    sines = tl.load(sin + token * half + dim, mask=is_own)
    num_parts: tl.constexpr = 1 if pool_values is None else 2
    row = heads + token * ((num_heads + num_parts * num_kv_heads) * head_dim)

    if group < num_query_groups:
        head = group * block_heads + tl.arange(0, block_heads)[None, :, None]
        mask = is_own & (head < num_heads)
        source = row + head * head_dim + dim
        first = tl.load(source, mask=mask).to(tl.float32)
        second = tl.load(source + half, mask=mask).to(tl.float32)
        first, second = rotate_pair(first, second, cosines, sines)
        if key_scales is not None:  # those of a pair are equal
            factor = tl.load(key_scales + head // (num_heads // num_kv_heads) * head_dim + dim, mask=mask, other=1.0)
            first *= factor
            second *= factor
        target = token * (num_heads * head_dim) + head * head_dim + dim
        _store_halves(query, target, half, first, second, mask)
    else:
        head = (group - num_query_groups) * block_heads + tl.arange(0, block_heads)[None, :, None]
        mask = is_own & (head < num_kv_heads)
        source = row + (num_heads + head) * head_dim + dim
        first_key = tl.load(source, mask=mask)
        second_key = tl.load(source + half, mask=mask)
        first_value = first_key
        second_value = second_key
        if pool_values is not None:
            value_source = source + num_kv_heads * head_dim
            first_value = tl.load(value_source, mask=mask)
            second_value = tl.load(value_source + half, mask=mask)
        first, second = rotate_pair(first_key.to(tl.float32), second_key.to(tl.float32), cosines, sines)
        slot = tl.load(slots + token, mask=token < num_tokens, other=-1)
        if pool_key_scales is not None:
            is_written = (token < num_tokens) & (head < num_kv_heads) & (slot >= 0)
            if key_scales is not None:
                factor = tl.load(key_scales + head * head_dim + dim, mask=mask, other=1.0)
                first = tl.div_rn(first, tl.broadcast_to(factor, first.shape))
                second = tl.div_rn(second, tl.broadcast_to(factor, second.shape))
            keys, other_keys, key_steps = encode_pairs(first, second, mask)
            store_pairs(
                pool_keys, pool_key_scales, slot, head, dim, keys, other_keys, key_steps, is_written,
                num_kv_heads, head_dim,
            )  # fmt: skip
            if pool_values is not None:
                values, other_values, value_steps = encode_pairs(
                    first_value.to(tl.float32), second_value.to(tl.float32), mask
                )
                store_pairs(
                    pool_values, pool_value_scales, slot, head, dim, values, other_values, value_steps, is_written,
                    num_kv_heads, head_dim,
                )  # fmt: skip
            if record_slots is not None:
                first = first_key.to(tl.float32)
                second = second_key.to(tl.float32)
                if key_bias is not None:
                    first -= tl.load(key_bias + head * head_dim + dim, mask=mask, other=0.0)
                    second -= tl.load(key_bias + head * head_dim + dim + half, mask=mask, other=0.0)
                keys, other_keys, key_steps = encode_pairs(first, second, mask)
                slot = tl.load(record_slots + token, mask=token < num_tokens, other=-1)
                is_written = (token < num_tokens) & (head < num_kv_heads) & (slot >= 0)
                store_pairs(
                    record_keys, record_key_scales, slot, head, dim, keys, other_keys, key_steps, is_written,
                    num_kv_heads, head_dim,
                )  # fmt: skip
                if pool_values is not None:
                    store_pairs(
                        record_values, record_value_scales, slot, head, dim, values, other_values, value_steps,
                        is_written, num_kv_heads, head_dim,
                    )  # fmt: skip
        else:
            place = slot * (num_kv_heads * head_dim) + head * head_dim + dim
            is_written = mask & (slot >= 0)
            _store_halves(pool_keys, place, half, first, second, is_written)
            _store_halves(pool_values, place, half, first_value, second_value, is_written)
            if record_slots is not None:
                slot = tl.load(record_slots + token, mask=token < num_tokens, other=-1)
                place = slot * (num_kv_heads * head_dim) + head * head_dim + dim
                is_written = mask & (slot >= 0)
                _store_halves(record_keys, place, half, first_key, second_key, is_written)
                _store_halves(record_values, place, half, first_value, second_value, is_written)


def launch(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor | None,
    num_heads: int,
    record: Record | None,
    key_bias: Tensor | None,
    key_scales: Tensor | None,
    variant: Variant,
) -> Tensor:
    """Run `kernels.rope_write.rope_write` with these constants."""
    num_tokens, _, head_dim = heads.shape
    num_kv_heads = pool_keys.shape[1]
    query = torch.empty((num_tokens, num_heads, head_dim), dtype=heads.dtype, device=heads.device)
    record_slots = None if record is None else record.slots
    rows = [pool_keys, pool_values, *((None, None) if record is None else (record.keys, record.values))]
    scales: list[Tensor | None] = [None] * len(rows)
    if pool_keys.dtype == torch.uint8:
        rows, scales = map(
            list, zip(*((None, None) if each is None else view_rows(each) for each in rows), strict=True)
        )
    num_groups = triton.cdiv(num_heads, variant["block_heads"]) + triton.cdiv(num_kv_heads, variant["block_heads"])
    rope_write_kernel[(triton.cdiv(num_tokens, variant["block_tokens"]), num_groups)](
        heads,
        cos,
        sin,
        slots,
        query,
        *rows[:2],
        record_slots,
        *rows[2:],
        *scales,
        key_bias,
        key_scales,
        num_tokens,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_half=triton.next_power_of_2(head_dim // 2),
        enable_fp_fusion=False,  # fused operations are explicit; Triton 3.9 warns if this is not set
        **variant,
    )
    return query
