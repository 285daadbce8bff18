"""Linear layers: plain, packed for oneDNN or for our own kernel, or with weights in int4, int8 or fp8.

Plain weights are packed by every call anew, which costs one row about as much again as its arithmetic: on an AMD EPYC
with AVX512-BF16 (2 cores), gate_up of Qwen2.5-0.5B in bf16 takes 0.40 ms plain and 0.14 ms packed at 1 row, 0.64 and
0.42 ms at 16, 11.3 and 10.7 ms at 512.

Scales and offsets are multiples of a power of two (`_compute_grid`), so that every stored weight is a number of the
dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.fp8_rows import quantise_to_fp8
from kernels.linear import (
    GROUP_SIZE,
    INT8_MOST,
    TILE,
    ByteWeights,
    NibbleWeights,
    can_multiply,
    can_multiply_bytes,
    can_multiply_nibbles,
    linear,
    multiply_nibbles,
    multiply_terms,
    pack_bytes,
    pack_nibbles,
    pack_weight,
    quantise_rows,
    split_terms,
)
from kernels.native import MOST_TIMES_SLOWER, time_in_turns

Quantization = Literal["int8", "int4", "fp8"]
"""int8 and fp8 with a scale for each output feature, int4 with a scale and an offset for each group of inputs."""


class Projection(Protocol):
    """A linear map with an optional bias."""

    out_features: int
    """Columns of the result."""
    num_bytes: int
    """Bytes of the stored weights, scales and bias: what a pass over one row reads."""

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features], in the dtype of `x`."""


class Dense:
    """`torch.nn.functional.linear`: for every device and dtype; the other projections are tested against it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight  # [out_features, in_features]
        self._bias = bias  # [out_features]
        self.out_features = weight.shape[0]
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        return F.linear(x, self._weight, self._bias)


class Blocked:
    """Our own kernel over bf16 weights (`kernels.linear`), for float32 or bf16 rows. The weights are a copy."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Pack bf16 [out_features, in_features]; `can_block` says whether there is a kernel for it."""
        self._weight = pack_weight(weight)
        self._bias = None if bias is None else F.pad(bias.float(), (0, -len(bias) % TILE))
        self.out_features = weight.shape[0]
        self.num_bytes = self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        return linear(x, self._weight, self._bias, self.out_features)


def can_block(weight: Tensor, activations: torch.dtype) -> bool:
    """Return whether our kernel multiplies rows of dtype `activations` by this matrix."""
    is_bf16 = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return is_bf16 and weight.shape[1] % 2 == 0 and can_multiply(activations)


EXPECTED_ROWS = 512
"""Rows for which the packed order is chosen; on the CPUs seen it is the same for all."""


class Packed:
    """oneDNN's linear map over weights in its own order, which are a copy: the plain ones may be freed."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Pack [out_features, in_features]; `can_pack` says whether this machine can."""
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, EXPECTED_ROWS)  # opaque: has no storage
        self._bias = bias
        self.out_features = weight.shape[0]
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product


@cache
def can_pack(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether weights of this dtype can be packed here and then give what `linear` gives, found by trying."""
    if device_type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    with torch.inference_mode():
        ramp = torch.arange(-1.0, 1.0, 1 / 512)
        weight, bias, x = ramp.view(32, 32).to(dtype), ramp[:32].to(dtype), ramp[-96:].view(3, 32).to(dtype)
        try:
            packed = Packed(weight, bias)(x)
        except (RuntimeError, AttributeError, NotImplementedError):  # no such op, dtype or instruction set
            return False
        bound = 8 * torch.finfo(dtype).eps * float(x.abs().max()) * float(weight.abs().sum(dim=1).max())
        return bool((packed - F.linear(x, weight, bias)).abs().max() <= bound)


@cache
def is_blocked_faster() -> bool:
    """Return whether our kernel, if there is one, is to serve activations in bf16, found by timing both in 0.1 s.

    Without matrix units both take as long at 64 rows, and ours half as long at one row; with AMX packed weights are
    several times faster. So noise decides nothing.
    """
    if not can_pack("cpu", torch.bfloat16):
        return True
    with torch.inference_mode():
        weight, x = torch.ones(2048, 1024, dtype=torch.bfloat16), torch.ones(64, 1024, dtype=torch.bfloat16)
        seconds = time_in_turns([partial(projection(weight), x) for projection in (Blocked, Packed)])
    return seconds[0] <= MOST_TIMES_SLOWER * seconds[1]


class Fp8:
    """y = (x8 @ q8^T) * scales + bias, all in fp8 (e4m3), with a scale for each output feature and for each row of `x`.

    Sums are in float32. The weights take half of bf16's memory. For cards with such products (Ada, Hopper and later);
    torch computes the same on a CPU, slowly.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Quantise [out_features, in_features] (see `can_multiply_fp8`)."""
        self._weight, scales = quantise_to_fp8(weight)
        self._scales = scales.view(1, -1)
        self._bias = bias
        self.out_features = len(weight)
        self.num_bytes = self._weight.nbytes + scales.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features], rounded to bf16."""
        rows, scales = quantise_to_fp8(x)
        product = torch._scaled_mm(rows, self._weight.t(), scales, self._scales, out_dtype=torch.bfloat16)
        return (product if self._bias is None else product.add_(self._bias)).to(x.dtype)


FP8_MULTIPLE = 16
"""torch multiplies matrices in fp8 whose sides are multiples of this."""


def can_multiply_fp8(weight: Tensor) -> bool:
    """Return whether `Fp8` can hold a matrix of this shape on this device."""
    return not any(size % FP8_MULTIPLE for size in weight.shape) and has_fp8_products(weight.device)


@cache
def has_fp8_products(device: torch.device) -> bool:
    """Return whether products in fp8 with a scale for each row and column are right there, found by trying."""
    with torch.inference_mode():
        weight, x = torch.ones(32, 64, device=device), torch.ones(3, 64, device=device)
        weight[::2] *= 3
        x[1] *= 5
        try:
            found = Fp8(weight)(x)
        except (RuntimeError, AttributeError, NotImplementedError):  # the card or this torch has none
            return False
        return bool(torch.equal(found, x @ weight.t()))


BUFFER_ELEMENTS = 1 << 24
"""32 MB in bf16: it holds most matrices of a 1.5B model in one or two blocks, and is small compared with the model."""


class UnpackingBuffer:
    """A buffer that is allocated once and shared by a model's projections; one thread at a time may use it."""

    def __init__(self, dtype: torch.dtype, num_elements: int = BUFFER_ELEMENTS) -> None:
        self._block = torch.empty(num_elements, dtype=dtype)
        self._bytes = torch.empty(num_elements // 2, dtype=torch.int8)

    def linear(self, x: Tensor, shape: tuple[int, int], unpack: Callable[[int, int, Tensor, Tensor], None]) -> Tensor:
        """Return `x` [num_rows, in_features] times a matrix of `shape` [out_features, in_features], without a bias.

        `unpack(start, end, block, half)` writes the matrix's rows [start, end) into `block`; `half` is int8 scratch
        memory of half its size.
        """
        out_features, in_features = shape
        num_rows = len(self._block) // in_features
        assert num_rows, "one row of the matrix is larger than the buffer"
        products = []
        for start in range(0, out_features, num_rows):
            end = min(start + num_rows, out_features)
            size = (end - start) * in_features
            block = self._block[:size].view(end - start, in_features)
            unpack(start, end, block, self._bytes[: size // 2].view(end - start, in_features // 2))
            products.append(F.linear(x.to(block.dtype), block))
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)


OUT_MULTIPLE = 16
"""torch's kernel supports only multiples of this as output features."""

LEVELS = 15
MIDDLE = 8
"""An integer of 0..15 stands for (integer - 8) * scale + offset, as in torch's kernel."""

INT4_MOST_DIRECT_ROWS = 72
"""Up to this many rows the kernels for int4 are quicker, whose time grows with the rows; beyond, unpacking and a plain
product.

One thread, 9728 x 896 in bf16: 0.10 ms a row, against 5 ms to unpack and 2.6 ms for the product of 64 rows.
"""

NIBBLE_STEP = 256
"""Values of a term of an activation for our kernel, which needs AVX512-VNNI."""

FEW = 8
"""Multiples of the grid: shorter steps are rounded up. Of longer ones, 15 that are rounded down end no further within
the range than half a step."""

INT4_ROWS_AT_A_TIME = 4096
"""Of a matrix that is quantised: bounds the float32 copies made on the way."""


class Int4:
    """A projection quantised to 4 bits, kept twice: as a kernel for few rows reads it, and as plain nibbles for many.
    Together they take half of bf16.

    For weights from bf16 our kernel multiplies few rows where the CPU has AVX512-VNNI, with activations of 16 bits as
    in `Int8`. Elsewhere torch's does: rows are rounded to the dtype of the weight, and so is the result; in float32 it
    is a slow loop. The buffer may be wider: where bf16 is emulated, a product in float32 of the same numbers is
    quicker.

    ms of two threads for 17920 x 1536 at 1, 4, 16 and 64 rows (AMD EPYC): 0.42, 0.75, 2.6, 10, in int8 0.56, 0.78, 2.2,
    8.2; by torch's kernel 0.81, 1.4, 5.4, 21.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, buffer: UnpackingBuffer) -> None:
        """Quantise [out_features, in_features] (see `can_pack_int4`); a NaN or infinity in it is one in the result."""
        out_features, in_features = weight.shape
        num_groups = in_features // GROUP_SIZE
        integers = torch.empty(weight.shape, dtype=torch.int32)
        scales_offsets = torch.empty(out_features, num_groups, 2, dtype=weight.dtype)
        for start in range(0, out_features, INT4_ROWS_AT_A_TIME):
            rows = slice(start, start + INT4_ROWS_AT_A_TIME)
            self._quantise(weight[rows].float(), integers[rows], scales_offsets[rows])
        self._scales, self._offsets = scales_offsets.movedim(2, 0).contiguous()  # [out_features, num_groups]
        self._blocked: NibbleWeights | None = None
        self._for_kernel: Tensor | None = None
        if weight.dtype == torch.bfloat16 and can_multiply_nibbles(in_features):
            least = self._offsets.float() - MIDDLE * self._scales.float()  # exact in bf16: a multiple of the grid
            self._blocked = pack_nibbles(integers, self._scales, least.bfloat16(), bias)
        else:
            self._for_kernel = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
            self._scales_offsets = scales_offsets.transpose(0, 1).contiguous()  # [num_groups, out_features, 2]
        self._nibbles = _pack_halves(integers - MIDDLE)
        self._bias = bias
        self._buffer = buffer
        self.out_features = out_features
        self.num_bytes = weight.numel() // 2 + scales_offsets.nbytes + (0 if bias is None else bias.nbytes)

    @staticmethod
    def _quantise(weight: Tensor, integers: Tensor, scales_offsets: Tensor) -> None:
        groups = weight.view(len(weight), -1, GROUP_SIZE)
        least, most = groups.aminmax(dim=2)
        scales, offsets = scales_offsets.unbind(dim=2)
        grid = _compute_grid(groups.abs().amax(dim=2), scales.dtype)
        steps = (most - least) / (LEVELS * grid)
        steps = torch.where(steps < FEW, steps.ceil(), steps.round()).clamp_(min=1)
        scales.copy_(steps * grid)
        first = (
            least + most - LEVELS * scales.float()
        ) / 2  # the steps end as far beyond the range, or within, as they begin
        offsets.copy_((first / grid).round_() * grid + MIDDLE * scales.float())
        steps = (groups - offsets.float()[..., None]) / scales.float()[..., None] + MIDDLE
        integers.copy_(steps.round_().clamp_(0, LEVELS).view(weight.shape))

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        if self._blocked is not None and len(x) <= INT4_MOST_DIRECT_ROWS:
            dtype = torch.float32 if x.dtype == torch.float16 else x.dtype
            return multiply_nibbles(*split_terms(x, NIBBLE_STEP), self._blocked, dtype).to(x.dtype)
        rows = x if self._blocked is not None else x.to(self._scales.dtype)
        if self._for_kernel is not None and len(x) <= INT4_MOST_DIRECT_ROWS:
            product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
                rows.contiguous(), self._for_kernel, GROUP_SIZE, self._scales_offsets
            )
        else:
            product = self._buffer.linear(rows, (self.out_features, x.shape[1]), self._unpack).to(rows.dtype)
        return (product if self._bias is None else product.add_(self._bias)).to(x.dtype)

    def dequantise(self) -> Tensor:
        """Return the matrix that is multiplied by, float32 [out_features, in_features]."""
        integers = torch.cat([self._nibbles << 4 >> 4, self._nibbles >> 4], dim=1).float()
        groups = integers.view(self.out_features, -1, GROUP_SIZE)
        return groups.mul(self._scales.float()[..., None]).add_(self._offsets.float()[..., None]).flatten(1)

    def _unpack(self, start: int, end: int, block: Tensor, half: Tensor) -> None:
        left, right = block.chunk(2, dim=1)
        torch.bitwise_left_shift(self._nibbles[start:end], 4, out=half)
        left.copy_(half.bitwise_right_shift_(4))  # an arithmetic shift: the sign of the lower nibble
        right.copy_(torch.bitwise_right_shift(self._nibbles[start:end], 4, out=half))
        groups = block.view(end - start, -1, GROUP_SIZE)
        groups.mul_(self._scales[start:end, :, None]).add_(self._offsets[start:end, :, None])


def _compute_grid(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a power of two for each group, float32: up to the largest weight, the dtype has every multiple of it.

    So an unpacked weight is exactly the number that torch's kernel multiplies by: many rows run the same model as few
    rows. In bf16, multiples up to 256 are exact; the largest weight is at 240 at most, since 15 steps, each rounded up
    to a multiple, may end 8 multiples beyond the largest weight.
    """
    info = torch.finfo(dtype)
    exponents = torch.log2(largest / (2 * LEVELS / (LEVELS + 1) / info.eps)).ceil_()
    return torch.exp2(exponents).clamp_(min=info.tiny)


def can_pack_int4(weight: Tensor) -> bool:
    """Return whether torch's int4 kernel supports a matrix of this shape."""
    out_features, in_features = weight.shape
    return out_features % OUT_MULTIPLE == 0 and in_features % GROUP_SIZE == 0


def _pack_halves(integers: Tensor) -> Tensor:
    """Pack two integers of -8..7 in a byte, int8 [out_features, in_features // 2]: the right half of each row in the
    upper nibbles.
    """
    left, right = integers.to(torch.int8).chunk(2, dim=1)
    return right.bitwise_left_shift(4).bitwise_or_(left & 0xF)


INT8_STEPS = (256, 128)
"""Values of a term of an activation. Where the CPU adds two products in 16 bits, which saturate (AVX2), a term of 7
bits is the most that is exact.
"""

INT8_BLOCK_ROWS = 128
"""Rows that are multiplied at a time: their terms and sums stay in the cache."""


class Int8:
    """y = (x @ q^T) * scale + bias, where q is the nearest of -127..127 times a scale for each row of the matrix.

    The products are of integers, by our kernel with AVX512-VNNI, else by oneDNN, which has AVX-VNNI and AMX, too: these
    have instructions for unsigned times signed bytes. An activation is an integer of 16 bits (14 on CPUs without these
    instructions) times a scale for each row of `x`. It is split into two terms of a byte, `upper * step + lower`, and
    all sums are exact. So a result has the same bits whatever the number of rows, and the only errors are those of
    rounding: with an outlier of 200 standard deviations in the row, 3e-4 of the result's norm (one term: 7e-2;
    activations in bf16: 1.6e-3).

    ms of two threads for 17920 x 1536 at 1, 16, 64 and 512 rows (AMD EPYC): 1.2, 2.6, 8.8, 75, by oneDNN 1.6, 2.9, 9.5,
    82; by `Blocked` in float32 2.2, 4.1, 16, 133.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, by_our_kernel: bool | None = None) -> None:
        """Quantise [out_features, in_features] (see `find_int8_step`); a NaN or infinity in it is one in the result.

        `by_our_kernel`: None chooses the quicker one.
        """
        step = find_int8_step()
        assert step is not None, "this CPU or this torch has no exact product of bytes"
        integers, self._scales, sums = quantise_rows(weight)
        self._step = step
        self._bias = None if bias is None else bias.float()
        self._blocked: ByteWeights | None = None
        if by_our_kernel is None:
            by_our_kernel = can_multiply_bytes(weight.shape[1]) and is_blocked_int8_faster()
        if by_our_kernel:
            self._blocked = pack_bytes(integers, step, self._scales, sums, self._bias)
        else:
            self._weight = torch.ops.onednn.qlinear_prepack(integers, None)  # opaque: has no storage
            self._zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.out_features = len(weight)
        self.num_bytes = integers.nbytes + self._scales.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        if len(x) <= INT8_BLOCK_ROWS:
            return self._multiply(x)
        out = torch.empty(len(x), self.out_features, dtype=x.dtype)
        for first in range(0, len(x), INT8_BLOCK_ROWS):
            out[first : first + INT8_BLOCK_ROWS] = self._multiply(x[first : first + INT8_BLOCK_ROWS])
        return out

    def _multiply(self, x: Tensor) -> Tensor:
        terms, scales = split_terms(x, self._step)
        if self._blocked is not None:
            dtype = torch.float32 if x.dtype == torch.float16 else x.dtype
            return multiply_terms(terms, scales, self._blocked, dtype).to(x.dtype)
        zero_point = self._step // 2
        products = torch.ops.onednn.qlinear_pointwise(
            terms, 1.0, zero_point, self._weight, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        uppers, lowers = products[: len(x)], products[len(x) :]
        whole: Tensor = lowers.add_(uppers, alpha=self._step).mul_(scales)
        if self._bias is not None:
            whole += self._bias
        return whole.to(x.dtype)


@cache
def is_blocked_int8_faster() -> bool:
    """As `is_blocked_faster`, for int8."""
    with torch.inference_mode():
        weight, x = torch.ones(2048, 1024), torch.ones(64, 1024)
        seconds = time_in_turns([partial(Int8(weight, None, by_our_kernel), x) for by_our_kernel in (True, False)])
    return seconds[0] <= MOST_TIMES_SLOWER * seconds[1]


@cache
def find_int8_step() -> int | None:
    """Return the largest of INT8_STEPS with which products of bytes are exact here, found by trying, or None."""
    with torch.inference_mode():
        weight = torch.full((32, 64), INT8_MOST, dtype=torch.int8)
        weight[::2] *= -1
        expected = weight.double().sum(dim=1)
        scales, zeros = torch.ones(32), torch.zeros(32, dtype=torch.int64)
        for step in INT8_STEPS:
            terms = torch.full((3, 64), step - 1, dtype=torch.uint8)
            try:
                packed = torch.ops.onednn.qlinear_prepack(weight, None)
                product = torch.ops.onednn.qlinear_pointwise(
                    terms, 1.0, step // 2, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
                )
            except (RuntimeError, AttributeError, NotImplementedError):  # no such op or instruction set
                return None
            if bool((product == expected * (step - 1 - step // 2)).all()):
                return step
    return None
