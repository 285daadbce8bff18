"""Rotates the queries and keys of a step, and writes keys and values to the KV pool."""

from __future__ import annotations

from torch import Tensor

from kernels.op import runs_triton
from kernels.rope import Record
from kernels.rope_write.op import OP, naive_rope_write

__all__ = ["Record", "rope_write"]


def rope_write(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    num_heads: int,
    record: Record | None = None,
) -> Tensor:
    """Rotate a layer's queries and keys, write keys and values to the pool, and return the queries.

    heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], the fused projection: queries, keys, values. cos, sin:
    float32 [num_tokens, head_dim // 2], the table's rows for the tokens' positions. slots: int64 [num_tokens], distinct
    rows of pool_keys and pool_values, [num_slots, num_kv_heads, head_dim]; tokens with a negative slot are not written,
    which pads a captured graph. record: also keeps values and the keys before RoPE. All tensors are contiguous; heads,
    pools and record have one dtype. Queries and keys are rotated in float32 and rounded once, with the bits of
    `kernels.rope.apply_rope`.

    Returns [num_tokens, num_heads, head_dim]. `heads` is not changed.
    """
    _check(heads, cos, sin, slots, pool_keys, pool_values, num_heads)
    if record is not None:
        _check(heads, cos, sin, record.slots, record.keys, record.values, num_heads)
    if not runs_triton(heads):
        return naive_rope_write(heads, cos, sin, slots, pool_keys, pool_values, num_heads, record)
    query: Tensor
    query, *_ = OP.run(
        {
            "heads": heads,
            "cos": cos,
            "sin": sin,
            "slots": slots,
            "pool_keys": pool_keys,
            "pool_values": pool_values,
            "num_heads": num_heads,
            "record": record,
        }
    )
    return query


def _check(
    heads: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, pool_keys: Tensor, pool_values: Tensor, num_heads: int
) -> None:
    num_tokens, num_all, head_dim = heads.shape
    num_kv_heads = pool_keys.shape[1]
    if pool_keys.shape != pool_values.shape or pool_keys.shape[2] != head_dim:
        raise ValueError(f"heads of {head_dim} do not fit pools {list(pool_keys.shape)} and {list(pool_values.shape)}")
    if num_all != num_heads + 2 * num_kv_heads:
        raise ValueError(f"{num_all} heads are not {num_heads} queries and {num_kv_heads} keys and values")
    if not cos.shape == sin.shape == (num_tokens, head_dim // 2):
        raise ValueError(f"angles {list(cos.shape)} and {list(sin.shape)} do not fit heads {list(heads.shape)}")
    if slots.shape != (num_tokens,):
        raise ValueError(f"{num_tokens} tokens need as many slots, not {list(slots.shape)}")
    if not heads.dtype == pool_keys.dtype == pool_values.dtype:
        raise ValueError(f"heads are {heads.dtype}, the pools {pool_keys.dtype} and {pool_values.dtype}")
    if not all(each.is_contiguous() for each in (heads, cos, sin, slots, pool_keys, pool_values)):
        raise ValueError("heads, angles, slots and pools must be contiguous")
