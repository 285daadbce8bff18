"""Chooses how one projection's weights are stored on the device that they lie on."""

from __future__ import annotations

from torch import Tensor

from engine.errors import WeightsError
from engine.projections.dense import Dense
from engine.projections.packed import Packed, packs
from engine.projections.types import Projection


def fastest(weight: Tensor, bias: Tensor | None = None) -> Projection:
    """Packed where the device can, else plain; raises WeightsError where there is no memory for the packed copy."""
    if not packs(weight.device.type, weight.dtype):
        return Dense(weight, bias)
    try:
        return Packed(weight, bias)
    except RuntimeError as error:
        raise WeightsError(f"there is no memory to pack {weight.nbytes / 1e9:.1f} GB; take a smaller model") from error
