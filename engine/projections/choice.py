"""Chooses how one projection's weights are stored on the device that they lie on."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.errors import WeightsError
from engine.projections.dense import Dense
from engine.projections.int4 import Int4, fits_int4
from engine.projections.int8 import Int8, fits_int8
from engine.projections.packed import Packed, packs
from engine.projections.types import Projection, Quantization
from engine.projections.unpacking import UnpackingBuffer

Store = Callable[[Tensor, Tensor | None], Projection]
"""Makes a projection of a weight [out_features, in_features] and a bias [out_features]."""


def fastest(weight: Tensor, bias: Tensor | None = None) -> Projection:
    """Packed where the device can, else plain; raises WeightsError where there is no memory for the packed copy."""
    if not packs(weight.device.type, weight.dtype):
        return Dense(weight, bias)
    try:
        return Packed(weight, bias)
    except RuntimeError as error:
        raise WeightsError(f"there is no memory to pack {weight.nbytes / 1e9:.1f} GB; take a smaller model") from error


def quantised(scheme: Quantization, buffer: UnpackingBuffer) -> Store:
    """Stores quantised what torch's CPU kernel for the scheme takes, the rest as `fastest` has it."""

    def store(weight: Tensor, bias: Tensor | None = None) -> Projection:
        if scheme == "int4" and fits_int4(weight):
            return Int4(weight, bias, buffer)
        if scheme == "int8" and fits_int8(weight):
            return Int8(weight, bias, buffer)
        return fastest(weight, bias)

    return store
