"""Small batches for tests of attention over pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernels import parity
from kernels.paged_attention.op import OP

CPU = torch.device("cpu")

TINY: dict[str, int] = {"rows": 16, "keys": 16, "chunk": 0, "num_warps": 4, "num_stages": 2}
CUT: dict[str, int] = TINY | {"chunk": 32}
ONE: dict[str, int] = {
    "num_seqs": 1,
    "num_rows": 3,
    "num_keys": 40,
    "num_kv_heads": 1,
    "group": 2,
    "head_dim": 16,
    "page_size": 8,
    "window": 0,
    "places": 1,
}


def inputs_of(
    shape: Mapping[str, int], dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> dict[str, Any]:
    return dict(OP.inputs(shape, dtype, device, torch.Generator(device).manual_seed(parity.get_run_seed())))


def assert_near(actual: Tensor, expected: Tensor, bound: float) -> None:
    error = parity.compute_error_ratio(actual, expected)
    assert error <= bound, f"error {error:.3g}; {parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
