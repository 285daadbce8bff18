"""Arithmetic of one forward pass: its floating-point operations, the bytes that it must move, the least time for both.

The roofline model (Williams, Waterman, Patterson, CACM 2009): a pass takes at least its operations over the machine's
best rate, and at least its bytes over the rate at which memory is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import ModelConfig


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
        """All operations."""
        return self.linear_flops + self.attention_flops + self.lm_head_flops

    @property
    def num_bytes(self) -> int:
        """All bytes."""
        return self.weight_bytes + self.kv_bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured of the machine: the best matrix product, operations a second, and bytes read a second."""

    flops_s: float
    read_bytes_s: float

    def least_seconds(self, work: Work) -> float:
        """The roofline: no pass with this work is faster."""
        return max(work.flops / self.flops_s, work.num_bytes / self.read_bytes_s)


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """The four matrices of a layer as they are multiplied, fused, [out_features, in_features]."""
    query_size = config.num_heads * config.head_dim
    return {
        "qkv": (sum(config.qkv_sizes), config.hidden_size),
        "attention_out": (config.hidden_size, query_size),
        "gate_up": (2 * config.ffn_size, config.hidden_size),
        "down": (config.hidden_size, config.ffn_size),
    }


def layer_weights(config: ModelConfig) -> int:
    """Numbers in the matrices of all layers."""
    return config.num_layers * sum(rows * columns for rows, columns in layer_shapes(config).values())


def kv_token_bytes(config: ModelConfig, itemsize: int) -> int:
    """Bytes of one token's keys and values in all layers."""
    return config.num_layers * 2 * config.num_kv_heads * config.head_dim * itemsize


def work(config: ModelConfig, batch: Sequence[Rows], itemsize: int = 2) -> Work:
    """The work of one ragged batch; `itemsize` is that of a weight and of a cached number, in bytes."""
    lm_head = config.vocab_size * config.hidden_size
    pairs = sum(_query_key_pairs(config, rows) for rows in batch)
    moved = sum(_keys_seen(config, rows) + rows.num_tokens for rows in batch)
    num_tokens = sum(rows.num_tokens for rows in batch)
    return Work(
        linear_flops=2 * num_tokens * layer_weights(config),
        attention_flops=4 * pairs * config.num_layers * config.num_heads * config.head_dim,  # scores, then values
        lm_head_flops=2 * sum(rows.num_logits for rows in batch) * lm_head,
        weight_bytes=(layer_weights(config) + lm_head) * itemsize,
        kv_bytes=moved * kv_token_bytes(config, itemsize),
    )


def _query_key_pairs(config: ModelConfig, rows: Rows) -> int:
    """How many keys the tokens see in all: each itself and what is before it, no further back than the window."""
    window = config.sliding_window or rows.start + rows.num_tokens
    return sum(min(position + 1, window) for position in range(rows.start, rows.start + rows.num_tokens))


def _keys_seen(config: ModelConfig, rows: Rows) -> int:
    """How many different keys any of the tokens sees."""
    first = max(0, rows.start + 1 - config.sliding_window) if config.sliding_window else 0
    return rows.start + rows.num_tokens - first
