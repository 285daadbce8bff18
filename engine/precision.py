"""Chooses in which precision a model computes on this machine.

The choice names the dtype of the plain weights and of the KV, the dtype of the activations, and the scheme of quantised
weights. It decides the model's numbers, so it is made once, when a model is loaded, and is part of the fingerprint of
its KV. It follows from the times of three products of 64 rows, whose ratios are far from the limits on all CPUs that
were seen:

    relative to float32                   bf16     int8
    AMD EPYC with AVX512-BF16             0.52     0.56
    the same, limited to AVX512-VNNI      3.1      0.56
    the same, limited to AVX2             3.8      1.06

int8 moves the logits more than bf16 does, and costs no edit (docs/models.md). Its weights are half as large.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import torch

from engine.device import describe_build
from engine.layers.decoder_weights import build_fastest
from engine.layers.linear import Int8, Projection, Quantization, find_int8_step
from engine.weights.parameters import Parameters
from kernels.atomic_file import replace_file
from kernels.linear import GROUP_SIZE, can_multiply_nibbles
from kernels.native import time_in_turns

DtypeChoice = Literal["auto", "bfloat16", "float16", "float32"]
QuantizeChoice = Literal["auto", "none", "int8", "int4", "fp8"]

ROWS = 64
"""Rows of the timed products, about as many as a draft has."""

SHAPE = (1024, 1536)
"""Of the timed matrix: timed in a tenth of a second where bf16 is emulated."""

QUICK = 0.8
"""The largest share of float32's time with which bf16 is chosen, and int8 where bf16 is not."""

QUICKER_THAN_BF16 = 3.0
"""int8 is chosen only where bf16 takes at least so many times as long as int8."""


@dataclass(frozen=True, slots=True)
class Precision:
    """In which precision a model computes, and why."""

    stored: torch.dtype
    """Of plain weights and of the KV."""
    activations: torch.dtype
    quantize: Quantization | None = None
    reason: str = "as asked"
    kv_int8: bool = False

    def describe(self) -> str:
        """Return it in words: "int8 weights, float32 activations, bfloat16 KV"."""
        stored, activations = (str(each).removeprefix("torch.") for each in (self.stored, self.activations))
        return f"{self.quantize or stored} weights, {activations} activations, {'int8' if self.kv_int8 else stored} KV"


def compute_fingerprint(parameters: Parameters, precision: Precision) -> bytes:
    """Return the fingerprint of the KV that a model with these parameters computes in this precision; takes the layers
    that are left.
    """
    int8_step = None if precision.quantize is None else find_int8_step()
    kv = ("int8 KV, scales last",) if precision.kv_int8 else ()
    kernel = ("our kernel",) if precision.quantize == "int4" and can_multiply_nibbles(GROUP_SIZE) else ()
    return parameters.fingerprint((precision.quantize, int8_step, precision.activations, *kv, *kernel))


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """Seconds of a product of ROWS rows and a matrix of SHAPE, by the dtype of the activations, and with int8 weights.

    int8: infinite where its products are not exact.
    """

    bfloat16: float
    float32: float
    int8: float


def measure_products() -> ProductTimes:
    """Time the products on one core of this machine, in about 0.2 s."""
    with torch.inference_mode():
        weight = torch.linspace(-1.0, 1.0, SHAPE[0] * SHAPE[1]).view(SHAPE).bfloat16()
        rows = torch.linspace(-1.0, 1.0, ROWS * SHAPE[1]).view(ROWS, SHAPE[1])
        calls: list[tuple[Projection, torch.Tensor]] = [
            (build_fastest(torch.bfloat16)(weight, None), rows.bfloat16()),
            (build_fastest(torch.float32)(weight, None), rows),
        ]
        if find_int8_step() is not None:
            calls.append((Int8(weight, None), rows))
        seconds = time_in_turns([partial(projection, x) for projection, x in calls])
    return ProductTimes(*seconds, *[math.inf] * (3 - len(seconds)))


def load_or_measure_products(folder: Path | None) -> ProductTimes:
    """Return the times that the folder holds for this machine, or measure them and write them there."""
    if folder is None:
        return measure_products()
    machine = describe_build(torch.device("cpu"))
    path = folder / f"products-{blake2b(machine.encode(), digest_size=8).hexdigest()}.json"
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):  # whatever lies there
        kept = json.loads(path.read_text())
        times = ProductTimes(**{name: float(seconds) for name, seconds in kept["seconds"].items()})
        if (
            kept["machine"] == machine
            and times.int8 > 0.0
            and all(0.0 < each < math.inf for each in (times.bfloat16, times.float32))
        ):
            return times
    times = measure_products()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, [json.dumps({"machine": machine, "seconds": asdict(times)}).encode()])
    return times


def choose_draft_quantization(device: torch.device, times: ProductTimes) -> QuantizeChoice:
    """Return how a draft model's weights are stored: in as few bits as this CPU multiplies quickly, since each token
    reads all of them.
    """
    if device.type != "cpu":
        return "none"
    if can_multiply_nibbles(GROUP_SIZE):
        return "int4"
    return "int8" if times.int8 <= QUICK * times.float32 else "none"


def choose_precision(
    dtype: DtypeChoice, quantize: QuantizeChoice, device: torch.device, get_times: Callable[[], ProductTimes]
) -> Precision:
    """Return the precision for what was asked; `get_times` is called if that depends on the machine.

    `auto` as dtype takes bf16 where the CPU multiplies it quickly, and always on a card. Elsewhere weights and KV are
    in bf16, and the activations in float32; if `quantize` is `auto` too, the weights are in int8 where that is quick.
    With any other dtype, `auto` does not quantise.
    """
    scheme: Quantization | None = None if quantize == "auto" or quantize == "none" else quantize
    if dtype != "auto":
        stored = getattr(torch, dtype)
        return Precision(stored, stored, scheme)
    if device.type != "cpu":
        return Precision(torch.bfloat16, torch.bfloat16, scheme, f"bfloat16 on {device.type}")
    times = get_times()
    reason = f"{ROWS} rows take {times.bfloat16 / times.float32:.2g} times as long in bfloat16 as in float32"
    if times.bfloat16 <= QUICK * times.float32:
        return Precision(torch.bfloat16, torch.bfloat16, scheme, reason)
    reason += f", with int8 weights {times.int8 / times.float32:.2g} times"
    if quantize == "auto" and times.int8 <= min(times.bfloat16 / QUICKER_THAN_BF16, QUICK * times.float32):
        scheme = "int8"
    return Precision(torch.bfloat16, torch.float32, scheme, reason)
