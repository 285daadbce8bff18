"""How fast a card copies and multiplies: measured in the same run, or stated where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.ops.timing import Timer
from kernels.op import Cost

COPY_BYTES = 1 << 32
"""Far beyond any cache."""

GEMM_SIZE = 8192
GEMM_PAIRS = 3
"""Matrix products over as many pairs of random matrices, in turns."""


class NoCard(Exception):
    """There is no CUDA device; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """copy_bytes_s: bytes read plus bytes written a second, by a large copy. flops_s: of a large bfloat16 product."""

    name: str
    copy_bytes_s: float
    flops_s: float

    def floor_s(self, cost: Cost) -> float:
        """The time that no version is below."""
        return cost.floor_s(self.copy_bytes_s, self.flops_s)

    def __str__(self) -> str:
        return f"{self.name}: copies {self.copy_bytes_s / 1e12:.2f} TB/s, multiplies {self.flops_s / 1e12:.0f} TFLOP/s"


STATED = Ceilings("one H200, leads and not measured here", 4.3e12, 788e12)
"""What the floors of docs/kernels.md are counted with."""


def cuda_device() -> torch.device:
    """The card to measure on; raises NoCard."""
    if not torch.cuda.is_available():
        raise NoCard(
            "there is no CUDA device, so nothing can be measured here; --count-only prints what is counted without one"
        )
    return torch.device("cuda", torch.cuda.current_device())


def measured(device: torch.device, timer: Timer) -> Ceilings:
    """Measure a card: a copy of gigabytes, and a product of large matrices of random numbers (zeros run faster)."""
    return Ceilings(torch.cuda.get_device_name(device), _copy_bytes_s(device, timer), _flops_s(device, timer))


def _copy_bytes_s(device: torch.device, timer: Timer) -> float:
    source = torch.empty(COPY_BYTES // 2, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return COPY_BYTES / timer.time([partial(target.copy_, source)]).median_s


def _flops_s(device: torch.device, timer: Timer) -> float:
    pairs = [torch.randn(2, GEMM_SIZE, GEMM_SIZE, device=device).bfloat16() for _ in range(GEMM_PAIRS)]
    out = torch.empty(GEMM_SIZE, GEMM_SIZE, dtype=torch.bfloat16, device=device)
    return 2 * GEMM_SIZE**3 / timer.time([partial(torch.mm, *pair, out=out) for pair in pairs]).median_s
