"""RoPE and the write into the pool written out: the truth that the kernel is compared with, and the CPU's way."""

from __future__ import annotations

from torch import Tensor

from kernels.rope import apply_rope


def rope_write(
    heads: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, pool_keys: Tensor, pool_values: Tensor, num_heads: int
) -> Tensor:
    """As `kernels.rope_write.rope_write`."""
    num_rotated = num_heads + pool_keys.shape[1]
    rotated = apply_rope(heads[:, :num_rotated], cos, sin)
    kept = slots >= 0
    pool_keys[slots[kept]] = rotated[kept, num_heads:]
    pool_values[slots[kept]] = heads[kept, num_rotated:]
    return rotated[:, :num_heads].contiguous()
