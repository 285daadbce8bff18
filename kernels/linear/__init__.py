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
    float32 by AVX2, oneDNN  3.62   4.63   7.30   19.9   70.1
    bf16, emulated           1.31   6.46   15.2   49.4    185

By AVX2 it needs 2.0, 2.1, 5.2, 23.5 and 82 on another EPYC, which has no more (docs/kernels.md).

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
    """Return a copy of bf16 [out_features, in_features] in the kernel's layout; `in_features` must be even.

    `can_multiply` must be true.
    """
    out_features, in_features = weight.shape
    packed = torch.empty(-(-out_features // TILE), in_features // 2, TILE, 2, dtype=weight.dtype)
    _pack_words(weight, packed)
    return packed


def linear(x: Tensor, packed: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    """Return x [num_rows, in_features] times packed weights, plus a bias: [num_rows, out_features] in the dtype of `x`.

    bias: float32, filled up to a multiple of TILE. All sums are in float32. `can_multiply(x.dtype)` must be true.
    """
    x = x.contiguous()
    num_rows, in_features = x.shape
    out = torch.empty(num_rows, out_features, dtype=x.dtype)
    multiply = _find_function(x.dtype)
    assert multiply is not None, "can_multiply says so"
    assert in_features == 2 * packed.shape[1]
    multiply(
        x.data_ptr(),
        packed.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        num_rows,
        in_features,
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


def pack_bytes(weight: Tensor, step: int, scales: Tensor, sums: Tensor, bias: Tensor | None) -> ByteWeights:
    """Pack int8 [out_features, in_features] with float32 scales and biases and int32 sums of the rows [out_features].

    `can_multiply_bytes` must be true.
    """
    out_features, in_features = weight.shape
    packed = torch.empty(-(-out_features // TILE), in_features // 4, TILE, 4, dtype=weight.dtype)
    _pack_words(weight, packed)
    missing = -out_features % TILE
    bias = None if bias is None else F.pad(bias, (0, missing))
    corrections = F.pad(sums * (step // 2), (0, missing))
    return ByteWeights(packed, step, F.pad(scales, (0, missing)), corrections, bias, out_features)


def _pack_words(weight: Tensor, packed: Tensor) -> None:
    weight = weight.contiguous()
    pack = find_function("pack", torch.int32)
    assert pack is not None, "can_multiply says so"
    words_of_row = weight.shape[1] * weight.itemsize // 4
    rows, tiles = ctypes.c_void_p(weight.data_ptr()), ctypes.c_void_p(packed.data_ptr())
    pack(rows, tiles, ctypes.c_long(len(weight)), ctypes.c_long(words_of_row), torch.get_num_threads())


INT8_MOST = 127


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return int8 [out_features, in_features] and float32 scales [out_features] whose product is nearly the matrix, and
    the sums of the integers, int32 [out_features].

    The integers are the nearest of -127..127. A row with a NaN or an infinity has such a scale.
    """
    quantise = find_function("quantise_rows", weight.dtype)
    if quantise is None or weight.device.type != "cpu":
        return quantise_rows_by_torch(weight)
    weight = weight.contiguous()
    integers, scales = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
    sums = torch.empty(len(weight), dtype=torch.int32)
    pointers = [ctypes.c_void_p(each.data_ptr()) for each in (weight, integers, scales, sums)]
    quantise(*pointers, *map(ctypes.c_long, weight.shape), torch.get_num_threads())
    return integers, scales, sums


ROWS_AT_A_TIME = 4096
"""Of a matrix that torch quantises: bounds the float32 copies made on the way."""


def quantise_rows_by_torch(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `quantise_rows`, for every dtype."""
    integers, scales = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
    for start in range(0, len(weight), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        wide = weight[rows].float()
        own = wide.abs().amax(dim=1) / INT8_MOST
        own[own == 0] = 1.0  # a row of zeros; or one below what float32 can divide by
        integers[rows] = (wide / own[:, None]).round_().clamp_(-INT8_MOST, INT8_MOST)
        scales[rows] = own
    return integers, scales, integers.sum(dim=1, dtype=torch.int32)


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


GROUP_SIZE = 32
"""Inputs of a row of 4-bit weights that share a scale. torch's kernel takes as long for 64 and 128, which lose more
precision.
"""


@dataclass(frozen=True, slots=True)
class NibbleWeights:
    """Weights of 4 bits, a nibble times the scale of its group plus the number that a nibble of 0 stands for.

    packed: uint8 [num_tiles, in_features // 8, TILE, 4]. Of 8 inputs in order, the first four are the lower nibbles of
    the bytes, the others the upper ones. scales: bf16 [num_tiles, num_groups, 2, TILE], those numbers second. bias:
    float32. Output features are filled up to a multiple of TILE.
    """

    packed: Tensor
    scales: Tensor
    bias: Tensor | None
    out_features: int


def can_multiply_nibbles(in_features: int) -> bool:
    """Return whether there is a kernel for nibbles, which needs AVX512-VNNI, and takes rows of this width."""
    return in_features % GROUP_SIZE == 0 and _find_nibbles_function(torch.float32) is not None


def pack_nibbles(integers: Tensor, scales: Tensor, least: Tensor, bias: Tensor | None) -> NibbleWeights:
    """Pack integers of 0..15, [out_features, in_features] in any dtype, with the bf16 scales of their groups and what a
    nibble of 0 stands for, [out_features, num_groups].
    """
    out_features, in_features = integers.shape
    missing = -out_features % TILE
    first, second = integers.to(torch.uint8).view(out_features, -1, 2, 4).unbind(dim=2)
    words = F.pad(first | second << 4, (0, 0, 0, 0, 0, missing)).view(-1, TILE, in_features // 8, 4)
    both = F.pad(torch.stack([scales, least], dim=2), (0, 0, 0, 0, 0, missing)).view(-1, TILE, scales.shape[1], 2)
    bias = None if bias is None else F.pad(bias.float(), (0, missing))
    return NibbleWeights(words.transpose(1, 2).contiguous(), both.permute(0, 2, 3, 1).contiguous(), bias, out_features)


def multiply_nibbles(terms: Tensor, scales: Tensor, weights: NibbleWeights, dtype: torch.dtype) -> Tensor:
    """As `multiply_terms`, for terms of 256 values: a group's integers are summed exactly, the groups in float32."""
    multiply = _find_nibbles_function(dtype)
    assert multiply is not None, "can_multiply_nibbles says so"
    out = torch.empty(len(terms) // 2, weights.out_features, dtype=dtype)
    assert terms.shape[1] == 8 * weights.packed.shape[1]
    multiply(
        terms.data_ptr(),
        scales.data_ptr(),
        weights.packed.data_ptr(),
        weights.scales.data_ptr(),
        None if weights.bias is None else weights.bias.data_ptr(),
        out.data_ptr(),
        len(out),
        terms.shape[1],
        weights.out_features,
        torch.get_num_threads(),
    )
    return out


@cache
def _find_nibbles_function(dtype: torch.dtype) -> Function | None:
    function = find_function("multiply_nibbles", dtype)
    if function is not None:
        function.argtypes = [*[ctypes.c_void_p] * 6, *[ctypes.c_long] * 3, ctypes.c_int]
        function.restype = None
    return function


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


def split_terms(x: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Return rows as integers times a scale, each integer in two terms: (upper * step + lower) * scale.

    The terms are uint8 [2 * num_rows, in_features], all upper ones first, plus `step // 2`, which is their zero point.
    The scales are float32 [num_rows, 1]. `step` is 256 or 128.
    """
    split = _find_split_function(x.dtype)
    if split is None:
        return split_terms_by_torch(x.float(), step)
    x = x.contiguous()
    num_rows, in_features = x.shape
    terms, scales = torch.empty(2 * num_rows, in_features, dtype=torch.uint8), torch.empty(num_rows, 1)
    pointers = x.data_ptr(), terms.data_ptr(), scales.data_ptr()
    split(*pointers, num_rows, in_features, step, torch.get_num_threads())
    return terms, scales


@cache
def _find_split_function(dtype: torch.dtype) -> Function | None:
    function = find_function("split_terms", dtype)
    if function is not None:
        function.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_long] * 3, ctypes.c_int]
        function.restype = None
    return function


def split_terms_by_torch(x: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """As `split_terms`, for float32."""
    half = step // 2
    most = half * step - half - 1  # so that `upper` is below `half`
    scales = x.abs().amax(dim=1, keepdim=True).div_(most).clamp_(min=torch.finfo(torch.float32).tiny)
    integers = (x / scales).round_()
    uppers = ((integers + half) / step).floor_()
    lowers = integers.sub_(uppers, alpha=step)
    return torch.cat([uppers, lowers]).add_(half).to(torch.uint8), scales
