"""What this machine gives: its best matrix product over a model's own layer shapes, and how fast it reads memory.

It is asked like a contestant, in a process of its own, so that its memory is not counted as theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.engine.roofline import layer_shapes
from benchmarks.peers.serving import serve, take_stdout
from engine.config import ModelConfig
from engine.layers.linear import packs

ROW_COUNTS = (128, 512, 1024, 2048)
SECONDS_EACH = 0.15
LEAST_RUNS = 3
READ_BYTES = 1 << 29
"""Far beyond any cache."""


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product, [num_rows, in] by a weight of the layer, and its rate in operations a second."""

    shape: str
    num_rows: int
    prepacked: bool
    flops_s: float


@torch.inference_mode()
def gemm_rates(config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> list[Product]:
    """The rate of every layer shape at several row counts, with plain and with prepacked weights."""
    return [
        Product(name, num_rows, prepacked, 2 * num_rows * shape[0] * shape[1] / median_seconds(product))
        for name, shape in layer_shapes(config).items()
        for num_rows in ROW_COUNTS
        for prepacked, product in _products(torch.randn(num_rows, shape[1]).to(dtype), torch.randn(shape).to(dtype))
    ]


@torch.inference_mode()
def read_rate() -> float:
    """Bytes a second: the better of a sum and a dot product over one long vector, as a decode step streams weights."""
    numbers = torch.ones(READ_BYTES // 4)
    return max(
        numbers.nbytes / median_seconds(numbers.sum),
        numbers.nbytes / median_seconds(lambda: torch.dot(numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :])),
    )


def median_seconds(work: Callable[[], object]) -> float:
    """The median time of one call, after one to warm up."""
    work()
    seconds: list[float] = []
    ends = time.perf_counter() + SECONDS_EACH
    while len(seconds) < LEAST_RUNS or time.perf_counter() < ends:
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _products(rows: Tensor, weight: Tensor) -> Iterator[tuple[bool, Callable[[], Tensor]]]:
    """rows [num_rows, in], weight [out, in]. oneDNN packs a weight for the row count that it is told."""
    yield False, lambda: F.linear(rows, weight)
    if packs(weight.device.type, weight.dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(rows))
        yield True, lambda: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")


def main() -> None:
    """Serve the ceilings of one model's shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="a config.json")
    options = parser.parse_args()
    channel = take_stdout()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = ModelConfig.from_hf(json.loads(options.config.read_text(encoding="utf-8")))

    def measure(_: object) -> dict[str, Any]:
        return {"products": [asdict(product) for product in gemm_rates(config)], "read_bytes_s": read_rate()}

    serve(channel, {"measure": measure}, {"version": f"torch {torch.__version__}", "abilities": []})


if __name__ == "__main__":
    main()
