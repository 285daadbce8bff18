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
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ByteWeights:
    """Signed bytes in the kernel's layout, [num_tiles, in_features // 4, TILE, 4], for terms of `step` values. Of each
    output feature, filled up to a multiple of TILE, a scale, a bias, and what the terms' zero point adds to a sum.
    """

    packed: Tensor
    step: int
    scales: Tensor  # float32
    corrections: Tensor  # int32
    bias: Tensor | None  # float32
    out_features: int


def can_multiply_bytes(in_features: int) -> bool:
    """Return whether there is a kernel for bytes, which needs AVX512-VNNI, and takes rows of this width."""
    return in_features % 4 == 0 and _find_bytes_function(torch.float32) is not None


def pack_bytes(weight: Tensor, step: int, scales: Tensor, bias: Tensor | None) -> ByteWeights:
    """Pack int8 [out_features, in_features] with float32 scales and biases [out_features]."""
    out_features, in_features = weight.shape
    missing = -out_features % TILE
    packed = F.pad(weight, (0, 0, 0, missing)).view(-1, TILE, in_features // 4, 4).transpose(1, 2).contiguous()
    corrections = F.pad(weight.sum(dim=1, dtype=torch.int32) * (step // 2), (0, missing))
    bias = None if bias is None else F.pad(bias, (0, missing))
    return ByteWeights(packed, step, F.pad(scales, (0, missing)), corrections, bias, out_features)


def multiply_terms(terms: Tensor, scales: Tensor, weights: ByteWeights, dtype: torch.dtype) -> Tensor:
    """Return (step * upper + lower) * scale of each row, times the weights, plus the bias: [num_rows, out_features].

    terms: uint8 [2 * num_rows, in_features], with the zero point `step // 2`, all upper ones first. scales: float32,
    one for each row. dtype: of the result, float32 or bf16.
    """
    multiply = _find_bytes_function(dtype)
    assert multiply is not None, "can_multiply_bytes says so"
    out = torch.empty(len(terms) // 2, weights.out_features, dtype=dtype)
    assert terms.shape[1] == 4 * weights.packed.shape[1]
    multiply(
        terms.data_ptr(),
        float(weights.step),
        scales.data_ptr(),
        weights.packed.data_ptr(),
        weights.scales.data_ptr(),
        weights.corrections.data_ptr(),
        None if weights.bias is None else weights.bias.data_ptr(),
        out.data_ptr(),
        len(out),
        terms.shape[1],
        weights.out_features,
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


@cache
def _find_bytes_function(dtype: torch.dtype) -> Function | None:
    function = find_function("multiply_terms", dtype)
    if function is not None:
        pointers, sizes = [ctypes.c_void_p] * 6, [ctypes.c_long] * 3
        function.argtypes = [ctypes.c_void_p, ctypes.c_float, *pointers, *sizes, ctypes.c_int]
        function.restype = None
    return function
