"""The constants that a kernel is launched with: the tuner's winner for this card, or the op's default.

Nothing is measured here, and nothing is read but once for each card: a look-up in a dict.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import torch

from kernels.op import Op, Shape, Variant
from kernels.tuning.card import triton_version
from kernels.tuning.source import source_hash
from kernels.tuning.space import winner_key
from kernels.tuning.store import Store, StoreError

log = logging.getLogger(__name__)


class Winners:
    """What was tuned for one card: the winners that hold for the kernels and the Triton of this process."""

    def __init__(self, folder: Path, card_name: str, triton: str) -> None:
        self._card_name = card_name
        self._variants = _holding(Store(folder, card_name), triton)
        self._missing: set[str] = set()

    def variant_for(self, op: Op, shape: Shape, dtype: torch.dtype) -> Variant:
        """The winner of the shape's class; where there is none or it cannot run this shape, the op's default."""
        found = self._variants.get(winner_key(op.name, dtype, op.shape_class(shape)))
        if found is not None and found.keys() == op.space.keys() and op.is_valid(found, shape):
            return found
        self._say_once(op.name)
        return op.default(shape)

    def _say_once(self, op_name: str) -> None:
        if op_name not in self._missing:
            self._missing.add(op_name)
            log.info(
                "%s runs by default for shapes that were not tuned on %s; python -m kernels.tune %s does that",
                op_name,
                self._card_name,
                op_name,
            )


def use_folder(folder: Path | None) -> None:
    """Take winners from this folder from now on; None, which is how a process starts: the defaults, everywhere."""
    global _folder
    _folder = folder
    _on.cache_clear()


_folder: Path | None = None


def variant_for(op: Op, shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Variant:
    """What a wrapper launches its kernel with where it was given no variant."""
    winners = _on(device)
    return op.default(shape) if winners is None else winners.variant_for(op, shape, dtype)


@cache
def _on(device: torch.device) -> Winners | None:
    if _folder is None or device.type != "cuda":
        return None
    return Winners(_folder, torch.cuda.get_device_name(device), triton_version())


def _holding(store: Store, triton: str) -> dict[str, Variant]:
    """By key. A kernel that has changed, or another Triton, makes another program of the same constants."""
    try:
        found = store.winners()
    except StoreError as error:
        log.warning("%s", error)
        return {}
    sources = {op_name: source_hash(op_name) for op_name in {winner.op for winner in found.values()}}
    holding = {
        key: winner.best.variant
        for key, winner in found.items()
        if winner.versions.hold_for(sources[winner.op], triton)
    }
    if len(holding) < len(found):
        num_outdated = len(found) - len(holding)
        log.warning(
            "%d of %d winners in %s were measured with another kernel or Triton: tune again (python -m kernels.tune)",
            num_outdated,
            len(found),
            store.path,
        )
    return holding
