"""What a machine can multiply and read in a second: from the data file of cards, or measured here."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.device import get_free_bytes
from engine.errors import EngineError
from engine.layers.decoder_weights import build_fastest, build_quantiser
from engine.layers.linear import Quantization, UnpackingBuffer, find_int8_step
from engine.precision import Precision
from kernels.linear import GROUP_SIZE, can_multiply_nibbles

WEIGHT_BYTES: Mapping[str, float] = {"float32": 4.0, "bfloat16": 2.0, "fp8": 1.01, "int8": 1.01, "int4": 0.56}
"""Bytes that a pass reads of each weight, with its scales."""

FOLDER = Path(__file__).parent

CARDS: Mapping[str, Mapping[str, Any]] = json.loads((FOLDER / "cards.json").read_text(encoding="utf-8"))
"""Public figures of cards: memory, its rate, dense products by the dtype of the weights, and the link to other cards in
one direction.
"""

SHAPES: Mapping[str, Mapping[str, Any]] = json.loads((FOLDER / "shapes.json").read_text(encoding="utf-8"))
"""The `config.json` of public models, as far as sizes depend on it."""

SHAPE = (65_536, 1_024)
"""Of the matrix that is multiplied to measure a CPU: in bf16 134 MB, several times what its caches hold."""

NUM_PARTS = 64
"""Parts of the matrix that are multiplied one by one, which shows what a call costs beside its weights."""

MEASURED_ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 192)
READ_BYTES = 1 << 28
REPEATS = 2


@dataclass(frozen=True, slots=True)
class Machine:
    """One card, or this machine's CPU.

    read_bytes_s, link_bytes_s: bytes a second from memory, and to another card in one direction. flops_s: operations a
    second of products by the dtype of the weights. products: measured seconds of a product for each weight, by dtype
    and rows; a card's are computed. source: where the figures are from.
    """

    name: str
    memory_bytes: float
    read_bytes_s: float
    flops_s: Mapping[str, float]
    link_bytes_s: float
    source: str
    products: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    calls: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def multiply(self, num_rows: float, num_weights: float, weights: str) -> float:
        """Return the seconds of a product of rows with so many weights of a dtype."""
        if weights in self.products:
            return self.call(num_rows, weights) + num_weights * _interpolate(self.products[weights], num_rows)
        return max(self.read(num_weights * WEIGHT_BYTES[weights]), self.compute(2.0 * num_rows * num_weights, weights))

    def call(self, num_rows: float, weights: str) -> float:
        """Return the seconds that a call with so many rows takes beside its weights."""
        return _interpolate(self.calls[weights], num_rows) if weights in self.calls else 0.0

    def take_least(self, other: Machine) -> Machine:
        """Return this machine with the least times of two measurements, which other work can only have added to."""

        def merge(
            mine: Mapping[str, Mapping[int, float]], theirs: Mapping[str, Mapping[int, float]]
        ) -> dict[str, dict[int, float]]:
            return {
                name: {rows: min(seconds, theirs[name][rows]) for rows, seconds in each.items()}
                for name, each in mine.items()
            }

        return replace(
            self,
            read_bytes_s=max(self.read_bytes_s, other.read_bytes_s),
            flops_s={name: max(flops, other.flops_s[name]) for name, flops in self.flops_s.items()},
            products=merge(self.products, other.products),
            calls=merge(self.calls, other.calls),
        )

    def compute(self, flops: float, weights: str) -> float:
        """Return the seconds of so many operations of products with weights of a dtype."""
        return flops / self.flops_s[weights]

    def read(self, num_bytes: float) -> float:
        """Return the seconds in which so many bytes are read or written."""
        return num_bytes / self.read_bytes_s


def _interpolate(known: Mapping[int, float], num_rows: float) -> float:
    """Return the value on the lines between the known ones, and beyond the last on the line through the last two."""
    rows, values = list(known), list(known.values())
    slope = (values[-1] - values[-2]) / (rows[-1] - rows[-2])
    return float(np.interp(num_rows, rows, values)) + slope * max(0.0, num_rows - rows[-1])


def get_card(name: str) -> Machine:
    """Return a card of the data file; raises KeyError if it has none of this name."""
    card = CARDS[name]
    return Machine(
        card["title"],
        card["memory_gb"] * 1e9,
        card["read_gb_s"] * 1e9,
        {weights: tflops * 1e12 for weights, tflops in card["tflops"].items()},
        card["link_gb_s"] * 1e9,
        card["source"],
    )


@torch.inference_mode()
def measure_machine(name: str, precision: Precision) -> Machine:
    """Measure this machine's CPU, in some seconds: products in the given precision, and in the quantised forms that it
    multiplies quickly, and the rate of its memory.

    Raises EngineError if it has no memory for that.
    """
    activations, schemes = precision.activations, ["int8"] if find_int8_step() is not None else []
    schemes += ["int4"] if can_multiply_nibbles(GROUP_SIZE) else []
    plain = str(precision.stored).removeprefix("torch.")
    products, calls, flops_s = {}, {}, {}
    try:
        weight = torch.linspace(-1.0, 1.0, SHAPE[0] * SHAPE[1]).view(SHAPE).to(precision.stored)
        for scheme in (plain, *schemes):
            products[scheme], calls[scheme] = _measure_products(
                weight, None if scheme == plain else scheme, activations
            )
            flops_s[scheme] = 2.0 * MEASURED_ROWS[-1] / products[scheme][MEASURED_ROWS[-1]]
        del weight
        source = torch.zeros(READ_BYTES, dtype=torch.uint8).view(torch.int64)
        read_s = min(_time(source.sum) for _ in range(1 + REPEATS))
    except RuntimeError as error:
        raise EngineError(f"there is no memory to measure this machine: {error}") from error
    free = get_free_bytes(torch.device("cpu")) or 0
    return Machine(name, free, READ_BYTES / read_s, flops_s, READ_BYTES / read_s, "measured now", products, calls)


def _measure_products(
    weight: torch.Tensor, scheme: str | None, activations: torch.dtype
) -> tuple[dict[int, float], dict[int, float]]:
    """Return the seconds for each weight, and those of each call, by rows; more rows take no less."""
    quantization: Quantization | None = scheme if scheme in ("int8", "int4") else None  # type: ignore[assignment]
    if quantization is None:
        store = build_fastest(activations)
    else:
        store = build_quantiser(quantization, UnpackingBuffer(activations), activations)
    whole, parts = store(weight, None), [store(part, None) for part in torch.split(weight, len(weight) // NUM_PARTS)]
    x = torch.linspace(-1.0, 1.0, MEASURED_ROWS[-1] * weight.shape[1]).view(-1, weight.shape[1]).to(activations)
    products, calls = {}, {}
    for num_rows in MEASURED_ROWS:
        rows = x[:num_rows]
        at_once, one_by_one = (
            min(_time(lambda rows=rows, used=used: [each(rows) for each in used]) for _ in range(1 + REPEATS))
            for used in ([whole], parts)
        )
        calls[num_rows] = max(0.0, one_by_one - at_once) / (len(parts) - 1)
        products[num_rows] = max(at_once - calls[num_rows], 0.5 * at_once) / weight.numel()
    return _make_growing(products), _make_growing(calls)


def _make_growing(seconds: Mapping[int, float]) -> dict[int, float]:
    """Return the seconds by rows, each at least that of fewer rows: up to six take equally long, but for noise."""
    return dict(zip(seconds, accumulate(seconds.values(), max), strict=True))


def _time(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
