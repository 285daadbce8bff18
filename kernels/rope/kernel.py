"""The rotation of RoPE in Triton, for kernels that use rotated keys."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate_pair(first, second, cos, sin):
    """Rotate both halves of float32 pairs, with the bits of `kernels.rope.naive_rope` on a CPU.

    There one product is rounded and the other added by a fused multiply-add. For `a * b - c * d` the compiler would
    choose which product it fuses.
    """
    return tl.fma(-second, sin, first * cos), tl.fma(first, sin, second * cos)
