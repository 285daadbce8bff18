"""Devices that kernels are tested on: Triton's interpreter on a CPU, and a card."""

from __future__ import annotations

import warnings

import pytest
import torch

from kernels.op import is_interpreting

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
INTERPRETED = [
    pytest.mark.interpreted,
    pytest.mark.skipif(not is_interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported"),
]
ON_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(is_interpreting() or not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ON_EACH = [pytest.param(CPU, marks=INTERPRETED), pytest.param(CUDA, marks=ON_CARD)]


def set_sync_mode(mode: str) -> None:
    """Set what torch does where the host waits for the card: "error" or "default". Tests end with the default."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this is a prototype
        torch.cuda.set_sync_debug_mode(mode)
