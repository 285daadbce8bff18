"""SwiGLU."""

from __future__ import annotations

from torch import Tensor

from kernels.op import runs_triton
from kernels.swiglu.op import OP, naive_swiglu

__all__ = ["swiglu"]


def swiglu(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` of a fused projection: [num_tokens, 2 * ffn_size] -> [num_tokens, ffn_size].

    Rows of gate_up may have gaps between them.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [num_tokens, 2 * ffn_size], not {list(gate_up.shape)}")
    if not runs_triton(gate_up):
        return naive_swiglu(gate_up)
    if gate_up.stride(1) != 1:
        raise ValueError("each row must be contiguous")
    out: Tensor
    (out,) = OP.run({"gate_up": gate_up})
    return out
