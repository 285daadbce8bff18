"""Which implementation of an op runs: Triton's on a GPU, and on any device under its interpreter; else torch's."""

from __future__ import annotations

import os
from functools import cache

from torch import Tensor


def runs_triton(tensor: Tensor) -> bool:
    """Whether an op on this tensor goes to its Triton kernel.

    Triton reads `TRITON_INTERPRET` when it is imported: with it, kernels run on a CPU, thousands of times slower, which
    is how they are tested where there is no GPU.
    """
    return tensor.is_cuda or is_interpreting()


@cache
def is_interpreting() -> bool:
    """Whether Triton's interpreter stands for a GPU in this process."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"
