"""Chooses Triton or torch for an op, and the number of programs of a launch."""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

from kernels.op import Variant


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


NAME = "PER_PROCESSOR"
"""Of the constant in a variant: programs of a processor that stay; 0: there is one for each block, which ends."""

INTERPRETED_PROCESSORS = 2
"""Few, so that programs go round where there is no card."""


def num_programs(num_blocks: int, variant: Variant, device: torch.device) -> int:
    """Programs of a launch over so many blocks; each takes those that are a multiple of this apart."""
    per_processor = variant[NAME]
    return num_blocks if not per_processor else min(num_blocks, per_processor * _num_processors(device))


def constants(variant: Variant) -> dict[str, int]:
    """What a kernel is compiled with."""
    return {name: value for name, value in variant.items() if name != NAME}


@cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
