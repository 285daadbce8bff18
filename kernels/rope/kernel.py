"""The rotation of RoPE in Triton, as a part of the kernels that do something with rotated keys."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotated(first, second, cos, sin):
    """Both halves of float32 pairs, rotated, with the bits of `kernels.rope.rotate` on a CPU.

    There a product is rounded and the other one added by a fused multiply-add. Written as `a * b - c * d`, the compiler
    would choose which of the two it fuses.
    """
    return tl.fma(-second, sin, first * cos), tl.fma(first, sin, second * cos)
