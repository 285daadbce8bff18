"""Weight-only int8: one scale for each output feature, symmetric. A row reads half the bytes of bf16."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.projections.unpacking import UnpackingBuffer

LARGEST = 127
HALF_UNIT = 2.0**-7
"""What an integer stands for within a product in float16, which would overflow with 1."""

FEATURES_MULTIPLE = 16
"""torch's kernel reads beyond its operands where either side of the matrix is no multiple of this."""

MOST_DIRECT_ROWS = 24
"""Up to here torch's int8 kernel is quicker, whose time grows with the rows; beyond, unpacking and a plain product.

One thread, 9728 x 896 in bf16: 0.11 ms a row, against 1.1 ms to unpack and 1.7 ms for the product of 24 rows.
"""

ROWS_AT_A_TIME = 4096
"""Of a matrix that is quantised: bounds the float32 copies made on the way."""


class Int8:
    """y = (x @ q^T) * scale + bias, with q the nearest of -127..127 times a scale for each row of the matrix.

    The product is rounded before it is scaled, for few rows as for many. torch's kernel could scale first, but a plain
    product cannot, and then many rows would run another model than few.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, buffer: UnpackingBuffer) -> None:
        """Quantise [out_features, in_features], which `fits_int8`; a NaN or an infinity in it is one in the result."""
        self._weight = torch.empty(weight.shape, dtype=torch.int8)
        self._scales = torch.empty(len(weight), dtype=weight.dtype)  # [out_features]
        for start in range(0, len(weight), ROWS_AT_A_TIME):
            rows = slice(start, start + ROWS_AT_A_TIME)
            self._quantise(weight[rows].float(), self._weight[rows], self._scales[rows])
        self._unit = HALF_UNIT if weight.dtype == torch.float16 else 1.0
        self._units = torch.full_like(self._scales, self._unit)
        self._scales /= self._unit
        self._bias = bias
        self._buffer = buffer
        self.out_features = len(weight)
        self.num_bytes = self._weight.nbytes + self._scales.nbytes + (0 if bias is None else bias.nbytes)

    @staticmethod
    def _quantise(weight: Tensor, integers: Tensor, scales: Tensor) -> None:
        scales.copy_(weight.abs().amax(dim=1) / LARGEST)
        scales[scales == 0] = 1.0  # a row of zeros; or one below what the dtype can divide by
        integers.copy_((weight / scales.float()[:, None]).round_().clamp_(-LARGEST, LARGEST))

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        if len(x) <= MOST_DIRECT_ROWS:
            product: Tensor = torch.ops.aten._weight_int8pack_mm(x.contiguous(), self._weight, self._units)
        else:
            product = self._buffer.linear(x, (self.out_features, x.shape[1]), self._unpack)
        product.mul_(self._scales)
        return product if self._bias is None else product.add_(self._bias)

    def dequantised(self) -> Tensor:
        """The matrix that is multiplied by, float32 [out_features, in_features]."""
        return self._weight.float() * (self._scales.float() * self._unit)[:, None]

    def _unpack(self, start: int, end: int, block: Tensor, half: Tensor) -> None:
        block.copy_(self._weight[start:end])  # integers up to 127 are exact in every dtype
        if self._unit != 1.0:
            block.mul_(self._unit)


def fits_int8(weight: Tensor) -> bool:
    """Whether torch's kernel takes a matrix of this shape."""
    return all(size % FEATURES_MULTIPLE == 0 for size in weight.shape)
