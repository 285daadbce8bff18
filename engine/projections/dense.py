"""A projection whose weights lie as a checkpoint has them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class Dense:
    """`torch.nn.functional.linear`: every device and dtype, and what the other projections are tested against."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight  # [out_features, in_features]
        self._bias = bias  # [out_features]
        self.out_features = weight.shape[0]
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        return F.linear(x, self._weight, self._bias)
