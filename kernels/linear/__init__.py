"""Linear maps on a CPU with weights in bf16, for activations in float32 or bf16: a C++ kernel, compiled at first use.

oneDNN packs weights for one dtype of activations, and emulates bf16 where the CPU has no such instructions. This kernel
reads bf16 weights for both. In float32 it widens them in registers, so that a CPU without bf16 instructions reads half
the bytes of float32 weights and computes with the same precision. In bf16 it needs AVX512-BF16.

ms of one thread for 8960 x 1536 (AMD EPYC with AVX512-BF16; each call with other weights, so that they come from
memory), against oneDNN's packed weights of the activations' dtype, and against its bf16 emulation:

    rows                        1      4     16     64    256
    float32                  1.26   1.09   4.01   16.5   61.9
    float32, oneDNN          3.80   2.51   4.92   16.7   62.5
    bf16                     1.26   1.05   2.41   8.43   32.6
    bf16, oneDNN             2.30   1.36   2.58   8.58   31.9
    float32 by AVX2          1.28   4.31   7.85   20.0   71.1
    float32 by AVX2, oneDNN  3.62   4.63   7.30   19.9   70.1
    bf16, emulated           1.31   6.46   15.2   49.4    185

A token's result has the same bits whatever the number of rows.

Layout of the weights: tiles of TILE output features, the last one filled with zeros. Within a tile, pairs of inputs lie
in order, and of a pair the two weights of each output feature side by side: [num_tiles, in_features // 2, TILE, 2].
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.native import Function, find_function

TILE = 64


def can_multiply(dtype: torch.dtype) -> bool:
    """Return whether there is a kernel for activations of this dtype; compiles it at the first call."""
    return _find_function(dtype) is not None


def pack_weight(weight: Tensor) -> Tensor:
    """Return a copy of bf16 [out_features, in_features] in the kernel's layout; `in_features` must be even."""
    out_features, in_features = weight.shape
    padded = F.pad(weight, (0, 0, 0, -out_features % TILE))
    return padded.view(-1, TILE, in_features // 2, 2).transpose(1, 2).contiguous()


def linear(x: Tensor, packed: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """Return x [num_rows, in_features] times packed weights, plus a bias: [num_rows, out_features] in the dtype of `x`.

    bias: float32, filled up to a multiple of TILE. All sums are in float32. `can_multiply(x.dtype)` must be true.
    """
    x = x.contiguous()
    out = torch.empty(len(x), out_features, dtype=x.dtype)
    multiply = _find_function(x.dtype)
    assert multiply is not None, "can_multiply says so"
    assert x.shape[1] == 2 * packed.shape[1]
    multiply(
        x.data_ptr(),
        packed.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        len(x),
        x.shape[1],
        out_features,
        torch.get_num_threads(),
    )
    return out


@cache
def _find_function(dtype: torch.dtype) -> Function | None:
    function = find_function("multiply", dtype)
    if function is not None:
        function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3 + [ctypes.c_int]
        function.restype = None
    return function
