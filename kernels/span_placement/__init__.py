"""Copies stored keys and values to other positions of a prompt.

torch needs two launches a tensor, which for 28 layers are 112; for a few tokens the launches take all the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.attention import Scratch
from kernels.attention.kv_format import SCALE_BYTES
from kernels.op import runs_triton, upload
from kernels.span_placement.host import place_on_cpu
from kernels.span_placement.op import OP, naive_place

__all__ = ["OP", "move_layers", "place", "place_layers"]


def place(
    keys: Tensor,
    values: Tensor,
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    target_slots: Tensor,
    scratch: Scratch,
) -> None:
    """Copy one layer's keys and values of some tokens to their new positions in the pool.

    keys, values: [num_stored, num_kv_heads, head_dim]. source_slots: int64 [num_tokens], rows of both. cos, sin:
    float32 [num_tokens, head_dim // 2]. For keys before RoPE these are the table's rows for the new positions. For
    rotated keys they are the rows for the distance of the move (with the sine negated for a move back); repeated moves
    accumulate rounding errors. Keys are rotated in float32 and rounded once, with the bits of `apply_rope`. They are
    written to the rows `target_slots`, int64 [num_tokens], of pool_keys and pool_values, [num_slots, num_kv_heads,
    head_dim]; these rows are distinct, and none of them is read. All tensors are contiguous, and keys, values and pools
    have one dtype.

    Slots may be in host memory, wherever the pool is, and so may keys and values: for a pool on a card, in memory that
    the card may read (pinned, or by cudaHostRegister). It reads them in place, until the kernel is over.
    """
    place_layers([keys], [values], source_slots, cos, sin, [pool_keys], [pool_values], target_slots, scratch)


def place_layers(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Sequence[Tensor],
    pool_values: Sequence[Tensor],
    target_slots: Tensor,
    scratch: Scratch,
    key_bias: Tensor | None = None,
    key_scales: Tensor | None = None,
) -> None:
    """Do the same as `place` in every layer, with one launch on a card. Values may be empty: then there are only keys.

    Keys and values in int8 are uint8 [num_slots, num_kv_heads, head_dim + 2] (`kernels.attention.KVFormat`). key_bias,
    key_scales: float32 [num_layers, num_kv_heads, head_dim], for int8 alone: the bias is added to keys before RoPE, and
    what is rotated is divided by the scales, before it is put into int8 once more.
    """
    _check(keys, values, source_slots, cos, sin, pool_keys, pool_values, target_slots)
    if not len(source_slots):
        return
    device = pool_keys[0].device
    if not runs_triton(pool_keys[0]):
        pairs: Sequence[tuple[Tensor | None, Tensor | None]] = list(zip(values, pool_values, strict=True))
        for at, (own_values, target_values) in enumerate(pairs or [(None, None)] * len(keys)):
            layer = keys[at], own_values, pool_keys[at], target_values
            if pool_keys[0].dtype == torch.uint8:
                own = (None if each is None else each[at] for each in (key_bias, key_scales))
                naive_place(*layer[:2], source_slots, cos, sin, *layer[2:], target_slots, *own)
            else:
                place_on_cpu(*layer[:2], source_slots, cos, sin, *layer[2:], target_slots, scratch)
        return
    if keys[0].device != device and not keys[0].is_pinned():
        raise ValueError("keys and values in host memory must be pinned for a card")
    OP.run(
        {
            "keys": keys,
            "values": values,
            "source_slots": upload(source_slots, device),
            "cos": cos,
            "sin": sin,
            "pool_keys": pool_keys,
            "pool_values": pool_values,
            "target_slots": upload(target_slots, device),
            "key_bias": key_bias,
            "key_scales": key_scales,
        }
    )


def _check(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Sequence[Tensor],
    pool_values: Sequence[Tensor],
    target_slots: Tensor,
) -> None:
    if not len(keys) == len(pool_keys) > 0 or not len(values) == len(pool_values) in (0, len(keys)):
        raise ValueError(f"{len(keys)} and {len(values)} layers are not {len(pool_keys)} and {len(pool_values)}")
    num_tokens, row = len(source_slots), pool_keys[0].shape[1:]
    head_dim = row[1] - SCALE_BYTES if pool_keys[0].dtype == torch.uint8 else row[1]
    if not cos.shape == sin.shape == (num_tokens, head_dim // 2) or target_slots.shape != (num_tokens,):
        raise ValueError(
            f"{num_tokens} tokens of {list(row)} have angles {list(cos.shape)}, {list(sin.shape)} and "
            f"{len(target_slots)} target slots"
        )
    if not all(each.is_contiguous() for each in (source_slots, cos, sin, target_slots)):
        raise ValueError("slots and angles must be contiguous")
    for each in (*keys, *values, *pool_keys, *pool_values):
        if each.shape[1:] != row or each.dtype != pool_keys[0].dtype or not each.is_contiguous():
            wanted = f"{list(row)}, {pool_keys[0].dtype}"
            raise ValueError(f"{list(each.shape)}, {each.dtype}, are not contiguous rows of {wanted}")


def move_layers(keys: Sequence[Tensor], values: Sequence[Tensor], source_slots: Tensor, target_slots: Tensor) -> None:
    """Copy the rows of some slots of a pool to as many other slots in every layer; the two sets may overlap.

    keys, values: [num_slots, num_kv_heads, head_dim] for each layer, contiguous. source_slots, target_slots: int64
    [num_tokens] on the same device; target slots are distinct.
    """
    tensors = [*keys, *values]
    if runs_triton(tensors[0]):
        from kernels.span_placement.kernel import MAX_MOVED, launch_move

        if len(source_slots) <= MAX_MOVED:
            launch_move(tensors, source_slots, target_slots)
            return
    for each in tensors:
        each.index_copy_(0, target_slots, each.index_select(0, source_slots))
