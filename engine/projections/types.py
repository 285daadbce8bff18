"""What a linear map of the decoder looks like to the forward pass, however its weights are stored."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

Quantization = Literal["int8", "int4"]
"""Weight-only schemes: int8 with a scale for each output feature, int4 with a scale and an offset for each group."""


class Projection(Protocol):
    """A linear map with an optional bias."""

    @property
    def out_features(self) -> int:
        """Columns of the result."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the stored weights, scales and bias: what a pass over one row reads."""

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features], in the dtype of `x`."""
