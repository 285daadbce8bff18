"""A search on a CUDA device: its parity, its timer, its versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from kernels import parity
from kernels.op import Shape, Variant
from kernels.tuning.admission import Check
from kernels.tuning.card import card_of
from kernels.tuning.cuda_timer import CudaTimer, launching
from kernels.tuning.record import Versions
from kernels.tuning.search import Budget, Search
from kernels.tuning.source import source_hash
from kernels.tuning.space import Target, valid
from kernels.tuning.store import Store


def search_on(device: torch.device, target: Target, folder: Path, budget: Budget, say: Callable[[str], None]) -> Search:
    """The search for a target's winner on this device, kept in this folder."""
    card, seed = card_of(device), parity.run_seed()
    return Search(
        target=target,
        variants=valid(target, card.shared_bytes),
        check=check_on(device, target, seed),
        bound=parity.BOUNDS[target.dtype],
        timer=CudaTimer(target, device, card.l2_bytes, seed),
        store=Store(folder, card.name),
        versions=Versions.of(card, source_hash(target.op.name)),
        budget=budget,
        seed=seed,
        say=say,
    )


def check_on(device: torch.device, target: Target, seed: int) -> Check:
    """`kernels.parity.check`, with a card's faults told apart."""

    def check(variant: Variant, shape: Shape) -> float:
        with launching():
            return parity.check(target.op, shape, target.dtype, device, variant, seed)

    return check
