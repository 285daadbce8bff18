"""Many rows through quantised weights: unpacked a block at a time into one buffer, then multiplied as plain ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

BUFFER_ELEMENTS = 1 << 24
"""32 MB in bf16: most matrices of a 1.5B model in one or two blocks, and of no weight beside the model."""


class UnpackingBuffer:
    """The buffer, allocated once and shared by a model's projections: one thread at a time may use it."""

    def __init__(self, dtype: torch.dtype, num_elements: int = BUFFER_ELEMENTS) -> None:
        self._block = torch.empty(num_elements, dtype=dtype)
        self._bytes = torch.empty(num_elements // 2, dtype=torch.int8)

    def linear(self, x: Tensor, shape: tuple[int, int], unpack: Callable[[int, int, Tensor, Tensor], None]) -> Tensor:
        """`x` [num_rows, in_features] times a matrix of `shape` [out_features, in_features], without a bias.

        `unpack(start, end, block, half)` writes the matrix's rows [start, end) into `block`; `half` is int8, of half
        its size, for whatever it needs on the way.
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
            products.append(F.linear(x, block))
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)
