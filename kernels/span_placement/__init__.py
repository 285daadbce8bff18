"""Places stored keys and values at other positions.

torch needs two launches a tensor for it, which for 28 layers are 112; of a few tokens, that is all the time it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kernels.attention import Scratch
from kernels.backend import runs_triton
from kernels.span_placement import cpu
from kernels.span_placement.kernel import uploaded
from kernels.span_placement.op import OP
from kernels.span_placement.staging import staging_for

__all__ = ["move_layers", "place", "place_layers"]


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
    """Bring one layer's keys and values of tokens to where a prompt has them.

    keys and values: [num_stored, num_kv_heads, head_dim]; source_slots: int64 [num_tokens], the rows of both. cos, sin:
    float32 [num_tokens, head_dim // 2]: for keys before RoPE, the table's rows for the new positions; for keys of other
    pages, those of how far they move (back: with the sine's sign changed), which drifts if it is done again and again.
    The keys are rotated in float32 and rounded once, with the bits of `apply_rope`, and written to the rows
    `target_slots`, int64 [num_tokens], of pool_keys and pool_values, [num_slots, num_kv_heads, head_dim]; no two may be
    the same, nor one that is read. All contiguous, stored and pool of one dtype.

    What is stored may be in host memory, wherever the pool is, and so may the slots.
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
) -> None:
    """As `place`, in every layer, each with tensors of its own: on a card one launch for all."""
    _check(keys, values, source_slots, cos, sin, pool_keys, pool_values, target_slots)
    if not len(source_slots):
        return
    device = pool_keys[0].device
    if not runs_triton(pool_keys[0]):
        for layer in zip(keys, values, pool_keys, pool_values, strict=True):
            cpu.place(*layer[:2], source_slots, cos, sin, *layer[2:], target_slots, scratch)
        return
    target_slots = uploaded(target_slots, device)
    if keys[0].device != device:
        staging = staging_for(scratch, device)
        staging.place(keys, values, source_slots.cpu(), cos, sin, pool_keys, pool_values, target_slots)
        return
    OP.run(
        {
            "keys": keys,
            "values": values,
            "source_slots": uploaded(source_slots, device),
            "cos": cos,
            "sin": sin,
            "pool_keys": pool_keys,
            "pool_values": pool_values,
            "target_slots": target_slots,
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
    if not len(keys) == len(values) == len(pool_keys) == len(pool_values) > 0:
        raise ValueError(f"{len(keys)} and {len(values)} layers are not {len(pool_keys)} and {len(pool_values)}")
    num_tokens, row = len(source_slots), pool_keys[0].shape[1:]
    if not cos.shape == sin.shape == (num_tokens, row[1] // 2) or target_slots.shape != (num_tokens,):
        raise ValueError(
            f"{num_tokens} tokens of {list(row)} have angles {list(cos.shape)}, {list(sin.shape)} and "
            f"{len(target_slots)} places"
        )
    if not all(each.is_contiguous() for each in (source_slots, cos, sin, target_slots)):
        raise ValueError("slots and angles have to be contiguous")
    for each in (*keys, *values, *pool_keys, *pool_values):
        if each.shape[1:] != row or each.dtype != pool_keys[0].dtype or not each.is_contiguous():
            wanted = f"{list(row)}, {pool_keys[0].dtype}"
            raise ValueError(f"{list(each.shape)}, {each.dtype}, are not contiguous rows of {wanted}")


def move_layers(keys: Sequence[Tensor], values: Sequence[Tensor], source_slots: Tensor, target_slots: Tensor) -> None:
    """Copy what lies in some slots of a pool to as many others, in every layer; the two may overlap.

    keys and values: a layer's [num_slots, num_kv_heads, head_dim] each, contiguous. source_slots, target_slots: int64
    [num_tokens], on their device, of the latter no two the same.
    """
    tensors = [*keys, *values]
    if runs_triton(tensors[0]):
        from kernels.span_placement.kernel import MOST_MOVED, launch_move

        if len(source_slots) <= MOST_MOVED:
            launch_move(tensors, source_slots, target_slots)
            return
    for each in tensors:
        each.index_copy_(0, target_slots, each.index_select(0, source_slots))
