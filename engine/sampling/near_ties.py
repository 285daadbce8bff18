"""Greedy choices that are so near a tie that the last bits decide them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.accept import Likeliest

NOISE = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 2.0**-18}
"""How far two logits of a row move against one another, relative to the largest, when it runs among other rows."""


def is_near_tie(found: Likeliest, dtype: torch.dtype) -> NDArray[np.bool_]:
    """For each row, whether another one than the likeliest token might be chosen beside other rows: bool [num_rows].

    dtype: of the model's activations. It is a bound that was measured, not one that was proved (docs/engine.md).
    """
    return found.gaps <= NOISE[dtype] * np.abs(found.largest)
