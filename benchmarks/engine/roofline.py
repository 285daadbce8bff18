"""The roofline of a forward pass: its operations and bytes, and the rates of this machine.

The roofline model (Williams, Waterman, Patterson, CACM 2009): a pass takes at least its operations over the machine's
best rate, and at least its bytes over the rate at which memory is read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.protocol import serve, take_stdout
from engine.config import ModelConfig
from engine.families import parse_config
from engine.layers.linear import can_pack


@dataclass(frozen=True, slots=True)
class Rows:
    """One sequence's part of a pass: tokens [start, start + num_tokens), of which the last `num_logits` get logits."""

    start: int
    num_tokens: int
    num_logits: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """What one pass has to do. A multiply and an add are two operations.

    `linear_flops`: the layers' matrices. `weight_bytes`: those matrices and the LM head, each read once. `kv_bytes`:
    keys and values read, by each sequence once, and written. Norms, biases and activations are left out: they are
    below a hundredth.
    """

    linear_flops: int
    attention_flops: int
    lm_head_flops: int
    weight_bytes: int
    kv_bytes: int

    @property
    def flops(self) -> int:
        return self.linear_flops + self.attention_flops + self.lm_head_flops

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured of the machine: the best matrix product, operations a second, and bytes read a second."""

    flops_s: float
    read_bytes_s: float


def list_layer_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the four matrices of a dense layer as they are multiplied, fused, [out_features, in_features]."""
    query_size = config.num_heads * config.head_dim
    return {
        "qkv": (sum(config.get_qkv_sizes(0)), config.hidden_size),
        "attention_out": (config.hidden_size, query_size),
        "gate_up": (2 * config.ffn_size, config.hidden_size),
        "down": (config.hidden_size, config.ffn_size),
    }


def count_layer_weights(config: ModelConfig) -> int:
    """Return numbers in the matrices of all layers."""
    return config.num_layers * sum(rows * columns for rows, columns in list_layer_shapes(config).values())


def count_kv_token_bytes(config: ModelConfig, itemsize: int) -> int:
    """Return bytes of one token's keys and values in all layers."""
    return config.num_layers * 2 * config.num_kv_heads * config.head_dim * itemsize


def count_work(config: ModelConfig, batch: Sequence[Rows], itemsize: int = 2) -> Work:
    """Return the work of one ragged batch; `itemsize` is that of a weight and of a cached number, in bytes."""
    lm_head = config.vocab_size * config.hidden_size
    pairs = sum(_count_pairs(config, rows) for rows in batch)
    moved = sum(_count_keys(config, rows) + rows.num_tokens for rows in batch)
    num_tokens = sum(rows.num_tokens for rows in batch)
    return Work(
        linear_flops=2 * num_tokens * count_layer_weights(config),
        attention_flops=4 * pairs * config.num_layers * config.num_heads * config.head_dim,  # scores, then values
        lm_head_flops=2 * sum(rows.num_logits for rows in batch) * lm_head,
        weight_bytes=(count_layer_weights(config) + lm_head) * itemsize,
        kv_bytes=moved * count_kv_token_bytes(config, itemsize),
    )


def _count_pairs(config: ModelConfig, rows: Rows) -> int:
    """How many keys the tokens see in all: each itself and what is before it, no further back than the window."""
    window = config.window or rows.start + rows.num_tokens
    return sum(min(position + 1, window) for position in range(rows.start, rows.start + rows.num_tokens))


def _count_keys(config: ModelConfig, rows: Rows) -> int:
    """Return how many different keys any of the tokens sees."""
    first = max(0, rows.start + 1 - config.window) if config.window else 0
    return rows.start + rows.num_tokens - first


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
def measure_gemm_rates(config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> list[Product]:
    """Return the rate of every layer shape at several row counts, with plain and with prepacked weights."""
    return [
        Product(name, num_rows, prepacked, 2 * num_rows * shape[0] * shape[1] / measure_median_seconds(product))
        for name, shape in list_layer_shapes(config).items()
        for num_rows in ROW_COUNTS
        for prepacked, product in _make_products(
            torch.randn(num_rows, shape[1]).to(dtype), torch.randn(shape).to(dtype)
        )
    ]


@torch.inference_mode()
def measure_read_rate() -> float:
    """Bytes a second: the better of a sum and a dot product over one long vector, as a decode step streams weights."""
    numbers = torch.ones(READ_BYTES // 4)
    return max(
        numbers.nbytes / measure_median_seconds(numbers.sum),
        numbers.nbytes
        / measure_median_seconds(lambda: torch.dot(numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :])),
    )


def measure_median_seconds(work: Callable[[], object]) -> float:
    """Return the median time of one call, after one to warm up."""
    work()
    seconds: list[float] = []
    ends = time.perf_counter() + SECONDS_EACH
    while len(seconds) < LEAST_RUNS or time.perf_counter() < ends:
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _make_products(rows: Tensor, weight: Tensor) -> Iterator[tuple[bool, Callable[[], Tensor]]]:
    """rows [num_rows, in], weight [out, in]. oneDNN packs a weight for the given row count."""
    yield False, lambda: F.linear(rows, weight)
    if can_pack(weight.device.type, weight.dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(rows))
        yield True, lambda: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")


def main() -> None:
    """Serve the ceilings of one model's shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="a config.json")
    options = parser.parse_args()
    channel = take_stdout()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = parse_config(json.loads(options.config.read_text(encoding="utf-8")))

    def measure(_: object) -> dict[str, Any]:
        return {
            "products": [asdict(product) for product in measure_gemm_rates(config)],
            "read_bytes_s": measure_read_rate(),
        }

    serve(channel, {"measure": measure}, {"version": f"torch {torch.__version__}", "abilities": []})


if __name__ == "__main__":
    main()
