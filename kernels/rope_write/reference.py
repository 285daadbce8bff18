"""RoPE and the write to the KV pool in plain PyTorch: the kernel's reference, and the CPU's implementation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.rope import apply_rope


@dataclass(frozen=True, slots=True)
class Record:
    """Rows of a store for values and keys before RoPE. A token with a negative slot is not kept."""

    slots: Tensor  # int64 [num_tokens], no two the same
    keys: Tensor  # [num_stored, num_kv_heads, head_dim]
    values: Tensor


def naive_rope_write(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    num_heads: int,
    record: Record | None = None,
) -> Tensor:
    """Compute `kernels.rope_write.rope_write` with plain torch operations."""
    num_rotated = num_heads + pool_keys.shape[1]
    rotated = apply_rope(heads[:, :num_rotated], cos, sin)
    _write(pool_keys, slots, rotated[:, num_heads:])
    _write(pool_values, slots, heads[:, num_rotated:])
    if record is not None:
        _write(record.keys, record.slots, heads[:, num_heads:num_rotated])
        _write(record.values, record.slots, heads[:, num_rotated:])
    return rotated[:, :num_heads].contiguous()


def _write(rows: Tensor, slots: Tensor, values: Tensor) -> None:
    written = slots >= 0
    rows[slots[written]] = values[written]
