"""The ways to compute an op that are compared: its kernel tuned and by default, torch's, and FlashInfer's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.ops import flash_infer
from kernels import parity
from kernels.op import Inputs, Op, Shape, Variant
from kernels.tuner import variant_for

Outputs = tuple[Tensor, ...]
Call = Callable[[], Outputs]

TUNED, DEFAULT = "tuned", "default"


def variants(op: Op, shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Variant]:
    """The kernel's constants by name: what the tuner has chosen for this card, if it is another, and the default."""
    default, tuned = op.default(shape), variant_for(op, shape, device, dtype)
    return ({} if tuned == default else {TUNED: tuned}) | {DEFAULT: default}


def own_calls(op: Op, variant: Variant, sets: Sequence[Inputs]) -> list[Call]:
    """The kernel on each set of inputs."""
    return [partial(op.run, inputs, variant) for inputs in sets]


def other_calls(op: Op, sets: Sequence[Inputs]) -> Mapping[str, list[Call]]:
    """What others have for it, on each set of inputs."""
    found: dict[str, list[Call]] = {}
    for inputs in sets:
        for name, call in {**op.torch_ways(inputs), **flash_infer.ways(op, inputs)}.items():
            found.setdefault(name, []).append(call)
    return found


def input_sets(op: Op, shape: Shape, dtype: torch.dtype, device: torch.device, num_sets: int) -> list[Inputs]:
    """Equal inputs in memory of their own, so that a call finds nothing in a cache that another one left there."""
    first = op.inputs(shape, dtype, device, torch.Generator(device).manual_seed(parity.run_seed()))
    return [first, *(copy.deepcopy(first) for _ in range(num_sets - 1))]
