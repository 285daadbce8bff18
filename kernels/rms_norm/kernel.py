"""RMSNorm in Triton: each row is read once, with the residual to add, and its norm is written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.op import Variant, count_programs, get_compile_constants


@triton.jit(do_not_specialize=["num_rows", "eps"])
def rms_norm_kernel(
    x,  # [num_tokens, num_heads, SIZE], a row of SIZE without gaps; the sum is written back where ADDS
    delta,  # [num_tokens, SIZE]
    weight,  # [SIZE], or a row for each head
    out,  # as x
    num_rows,
    num_heads,
    x_token_stride,
    x_head_stride,
    delta_stride,
    weight_stride,
    out_token_stride,
    out_head_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Normalise ROWS rows (a row is one head of one token), then those the number of programs further on."""
    place = tl.arange(0, BLOCK_SIZE)[None, :]
    for first in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        token, head = (row // num_heads).to(tl.int64), row % num_heads
        mask = (row < num_rows) & (place < SIZE)
        own = x + token * x_token_stride + head * x_head_stride + place
        values = tl.load(own, mask=mask, other=0.0).to(tl.float32)
        if ADDS:
            added = tl.load(delta + token * delta_stride + place, mask=mask, other=0.0).to(tl.float32)
            rounded = (values + added).to(x.dtype.element_ty)
            tl.store(own, rounded, mask=mask)
            values = rounded.to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values, axis=1, keep_dims=True) / SIZE + eps)
        normed = (values * scale).to(x.dtype.element_ty).to(tl.float32)  # rounded before it is weighted, as Llama does
        weights = tl.load(weight + head * weight_stride + place, mask=mask, other=0.0).to(tl.float32)
        target = out + token * out_token_stride + head * out_head_stride + place
        tl.store(target, (normed * weights).to(out.dtype.element_ty), mask=mask)


def launch(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor | None, variant: Variant) -> Tensor:
    """Run `kernels.rms_norm.rms_norm` on checked arguments; with `delta`, x becomes the sum."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    num_heads = 1 if x.dim() == 2 else x.shape[1]
    num_rows, size = x.shape[0] * num_heads, x.shape[-1]
    num_blocks = triton.cdiv(num_rows, variant["ROWS"])
    rms_norm_kernel[(count_programs(num_blocks, variant, x.device),)](
        x,
        x if delta is None else delta,
        weight,
        out,
        num_rows,
        num_heads,
        x.stride(0),
        x.stride(-2),
        0 if delta is None else delta.stride(0),
        0 if weight.dim() == 1 else weight.stride(0),
        out.stride(0),
        out.stride(-2),
        eps,
        SIZE=size,
        BLOCK_SIZE=triton.next_power_of_2(size),
        ADDS=delta is not None,
        enable_fp_fusion=False,  # every product is rounded as in the reference
        **get_compile_constants(variant),
    )
    return out
