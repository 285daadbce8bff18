"""Weight-only int4: a scale and an offset for each group of inputs of an output feature. 5 bits a weight are read.

Scales and offsets are multiples of a power of two, so that every stored weight is a number of the dtype (`_grid`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.projections.unpacking import UnpackingBuffer

GROUP_SIZE = 32
"""Inputs that share a scale; torch's kernel takes as long for 64 and 128, which lose more."""

OUT_MULTIPLE = 16
"""torch's kernel takes no other number of output features."""

LEVELS = 15
MIDDLE = 8
"""An integer of 0..15 stands for (integer - 8) * scale + offset: so torch's kernel has it."""

MOST_DIRECT_ROWS = 72
"""Up to here torch's int4 kernel is quicker, whose time grows with the rows; beyond, unpacking and a plain product.

One thread, 9728 x 896 in bf16: 0.10 ms a row, against 5 ms to unpack and 2.6 ms for the product of 64 rows.
"""

FEW = 8
"""Multiples of the grid: shorter steps are rounded up. Of longer ones, 15 that are rounded down end no further within
the range than half a step."""

ROWS_AT_A_TIME = 4096
"""Of a matrix that is quantised: bounds the float32 copies made on the way."""


class Int4:
    """Kept twice: as torch's kernel reads it, and as plain nibbles for many rows, whose order that kernel keeps to
    itself. Together they are half of bf16.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, buffer: UnpackingBuffer) -> None:
        """Quantise [out_features, in_features], which `fits_int4`; a NaN or an infinity in it is one in the result."""
        out_features, in_features = weight.shape
        num_groups = in_features // GROUP_SIZE
        integers = torch.empty(weight.shape, dtype=torch.int32)
        scales_offsets = torch.empty(out_features, num_groups, 2, dtype=weight.dtype)
        for start in range(0, out_features, ROWS_AT_A_TIME):
            rows = slice(start, start + ROWS_AT_A_TIME)
            self._quantise(weight[rows].float(), integers[rows], scales_offsets[rows])
        self._scales, self._offsets = scales_offsets.movedim(2, 0).contiguous()  # [out_features, num_groups]
        self._for_kernel = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
        self._scales_offsets = scales_offsets.transpose(0, 1).contiguous()  # [num_groups, out_features, 2]
        self._nibbles = _nibbles(integers - MIDDLE)
        self._bias = bias
        self._buffer = buffer
        self.out_features = out_features
        self.num_bytes = self._for_kernel.nbytes + self._scales_offsets.nbytes + (0 if bias is None else bias.nbytes)

    @staticmethod
    def _quantise(weight: Tensor, integers: Tensor, scales_offsets: Tensor) -> None:
        groups = weight.view(len(weight), -1, GROUP_SIZE)
        least, most = groups.aminmax(dim=2)
        scales, offsets = scales_offsets.unbind(dim=2)
        grid = _grid(groups.abs().amax(dim=2), scales.dtype)
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
        if len(x) <= MOST_DIRECT_ROWS:
            product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
                x.contiguous(), self._for_kernel, GROUP_SIZE, self._scales_offsets
            )
        else:
            product = self._buffer.linear(x, (self.out_features, x.shape[1]), self._unpack)
        return product if self._bias is None else product.add_(self._bias)

    def dequantised(self) -> Tensor:
        """The matrix that is multiplied by, float32 [out_features, in_features]."""
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


def _grid(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """A power of two for each group, float32: up to the largest weight, the dtype has every multiple of it.

    So an unpacked weight is exactly what torch's kernel multiplies by: many rows run the model that few rows run.
    In bf16, multiples up to 256 are exact; the largest weight is at 240 at most, since 15 steps, each rounded up to a
    multiple, may end 8 multiples beyond the largest weight.
    """
    info = torch.finfo(dtype)
    exponents = torch.log2(largest / (2 * LEVELS / (LEVELS + 1) / info.eps)).ceil_()
    return torch.exp2(exponents).clamp_(min=info.tiny)


def fits_int4(weight: Tensor) -> bool:
    """Whether torch's kernel takes a matrix of this shape."""
    out_features, in_features = weight.shape
    return out_features % OUT_MULTIPLE == 0 and in_features % GROUP_SIZE == 0


def _nibbles(integers: Tensor) -> Tensor:
    """Two of -8..7 a byte, int8 [out_features, in_features // 2]: the right half of each row in the upper nibbles."""
    left, right = integers.to(torch.int8).chunk(2, dim=1)
    return right.bitwise_left_shift(4).bitwise_or_(left & 0xF)
