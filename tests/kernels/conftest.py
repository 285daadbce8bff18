"""Random numbers that differ from run to run."""

from __future__ import annotations

import pytest
import torch

from kernels import parity


@pytest.fixture
def generator() -> torch.Generator:
    """Seeded anew in each run; a failure names the seed."""
    return torch.Generator().manual_seed(parity.get_run_seed())
