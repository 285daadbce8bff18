"""RMSNorm, SwiGLU and RoPE by the C++ kernels, for rows in float32 or bf16 on a CPU.

Each takes the place of several torch operations that go through memory. A row's result has the same bits whatever the
number of rows. The ops themselves are described in kernels/rms_norm, kernels/swiglu and kernels/rope.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from kernels.native import Function, find_function


def can_run(x: Tensor) -> bool:
    """Return whether the kernels take these rows."""
    return x.device.type == "cpu" and x.stride(-1) == 1 and _find_function("swiglu", x.dtype) is not None


def rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    """As `kernels.rms_norm.rms_norm`; `delta` [num_tokens, size], if any, is added to `x` in place first. The kernel
    reads weights in float32: others are converted by each call.
    """
    num_heads, head_stride, out_head_stride = (1, 0, 0) if x.dim() == 2 else (x.shape[1], x.stride(1), out.stride(1))
    function = _find_function("rms_norm", x.dtype)
    assert function is not None, "can_run says so"
    weight, delta = weight.float().contiguous(), None if delta is None else delta.contiguous()
    function(
        x.data_ptr(),
        None if delta is None else delta.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        x.shape[0],
        num_heads,
        x.shape[-1],
        x.stride(0),
        head_stride,
        0 if weight.dim() == 1 else weight.stride(0),
        out.stride(0),
        out_head_stride,
        eps,
        torch.get_num_threads(),
    )
    return out


def swiglu(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """As `kernels.swiglu.swiglu`."""
    num_rows, width = gate_up.shape
    out = torch.empty(num_rows, width // 2, dtype=gate_up.dtype)
    function = _find_function("swiglu", gate_up.dtype)
    assert function is not None, "can_run says so"
    pointers = gate_up.data_ptr(), out.data_ptr()
    is_gelu = activation == "gelu_tanh"
    function(*pointers, num_rows, width // 2, gate_up.stride(0), is_gelu, torch.get_num_threads())
    return out


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `kernels.rope.apply_rope`."""
    cos, sin = cos.contiguous(), sin.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    function = _find_function("rope", x.dtype)
    assert function is not None, "can_run says so"
    pointers = x.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr()
    function(*pointers, *x.shape, x.stride(0), x.stride(1), torch.get_num_threads())
    return out


def encode_heads(heads: Tensor) -> Tensor:
    """As `kernels.attention.kv_format.encode_heads`, of [num_tokens, num_heads, head_dim]."""
    num_tokens, num_heads, size = heads.shape
    out = torch.empty(num_tokens, num_heads, size + 2, dtype=torch.uint8)
    function = _find_function("encode_heads", heads.dtype)
    assert function is not None, "can_run says so"
    strides = heads.stride(0), heads.stride(1)
    function(heads.data_ptr(), out.data_ptr(), num_tokens, num_heads, size, *strides, torch.get_num_threads())
    return out


_SIGNATURES = {
    "rms_norm": [*[ctypes.c_void_p] * 4, *[ctypes.c_long] * 8, ctypes.c_float, ctypes.c_int],
    "swiglu": [*[ctypes.c_void_p] * 2, *[ctypes.c_long] * 3, *[ctypes.c_int] * 2],
    "encode_heads": [*[ctypes.c_void_p] * 2, *[ctypes.c_long] * 5, ctypes.c_int],
    "rope": [*[ctypes.c_void_p] * 4, *[ctypes.c_long] * 5, ctypes.c_int],
}


@cache
def _find_function(name: str, dtype: torch.dtype) -> Function | None:
    function = find_function(name, dtype)
    if function is not None:
        function.argtypes = _SIGNATURES[name]
        function.restype = None
    return function
