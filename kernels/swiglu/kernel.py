"""SwiGLU in Triton: both halves of a row are read from the projection without a copy."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.op import Variant, count_programs, get_compile_constants


@triton.jit(do_not_specialize=["num_tokens"])
def swiglu_kernel(
    gate_up,  # [num_tokens, 2 * ffn_size]
    out,  # [num_tokens, ffn_size]
    num_tokens,
    ffn_size,
    row_stride,
    BLOCK: tl.constexpr,
    IS_GELU: tl.constexpr,
):
    """Process BLOCK columns of a token, then those of the tokens the number of programs further on."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < ffn_size
    for token in range(tl.program_id(0).to(tl.int64), num_tokens, tl.num_programs(0)):
        own = gate_up + token * row_stride + column
        gate = tl.load(own, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(own + ffn_size, mask=mask, other=0.0).to(tl.float32)
        if IS_GELU:  # 0.5 * (1 + tanh(y)) is the sigmoid of 2 * y, here without an overflow
            x = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
            power = tl.exp(-tl.abs(x))
            gated = gate * tl.where(x < 0, power, 1.0) / (1.0 + power)
        else:
            gated = gate / (1.0 + tl.exp(-gate))
        gated = gated.to(out.dtype.element_ty).to(tl.float32)  # rounded, as torch's silu is
        tl.store(out + token * ffn_size + column, (gated * up).to(out.dtype.element_ty), mask=mask)


def launch(gate_up: Tensor, activation: str, variant: Variant) -> Tensor:
    """Run `kernels.swiglu.swiglu` on checked arguments."""
    num_tokens, ffn_size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_tokens, ffn_size), dtype=gate_up.dtype, device=gate_up.device)
    grid = (count_programs(num_tokens, variant, gate_up.device), triton.cdiv(ffn_size, variant["BLOCK"]))
    swiglu_kernel[grid](
        gate_up,
        out,
        num_tokens,
        ffn_size,
        gate_up.stride(0),
        IS_GELU=activation == "gelu_tanh",
        enable_fp_fusion=False,
        **get_compile_constants(variant),
    )
    return out
