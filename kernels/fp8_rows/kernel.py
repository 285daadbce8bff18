"""Rows to fp8 in Triton: a row is read once and kept in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.op import Variant


@triton.jit
def fp8_rows_kernel(
    values,  # fp8 [num_rows, size]
    scales,  # float32 [num_rows, 1]
    x,  # [num_rows, size]
    size,
    row_stride,
    SIZE: tl.constexpr,
    MOST: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Quantise a row. The number is rounded in float32, so that the conversion to fp8, which has modes of its own on
    every generation and in the interpreter, is exact.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE)
    mask = column < size
    own = tl.load(x + row * row_stride + column, mask=mask, other=0.0).to(tl.float32)
    is_finite = tl.sum((tl.abs(own) < float("inf")).to(tl.int32), axis=0) == SIZE
    most = tl.max(tl.abs(own), axis=0)
    scale = tl.where(is_finite, tl.maximum(tl.math.div_rn(most, tl.full((), MOST, tl.float32)), LEAST), float("nan"))
    number = tl.where(is_finite, tl.math.div_rn(own, scale + tl.zeros_like(own)), 0.0)
    bits = number.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)  # 3 bits of mantissa
    magic = 24576.0  # float32 numbers around it are multiples of 2^-9, the least number of fp8
    small = (number + magic) - magic
    rounded = tl.where(tl.abs(number) < 0.015625, small, normal)
    tl.store(scales + row, scale)
    tl.store(values + row * size + column, tl.where(is_finite, rounded, 1.0).to(tl.float8e4nv), mask=mask)


def launch(x: Tensor, most: float, least_scale: float, variant: Variant) -> tuple[Tensor, Tensor]:
    """Run `kernels.fp8_rows.quantise_to_fp8` on checked arguments; `most` is the format's largest number."""
    num_rows, size = x.shape
    values = torch.empty((num_rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((num_rows, 1), dtype=torch.float32, device=x.device)
    fp8_rows_kernel[(num_rows,)](
        values,
        scales,
        x,
        size,
        x.stride(0),
        SIZE=max(32, triton.next_power_of_2(size)),
        MOST=most,
        LEAST=least_scale,
        num_warps=variant["num_warps"],
        enable_fp_fusion=False,
    )
    return values, scales
