"""Operations, bytes and the least seconds of a model's passes on a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from engine.config import LatentConfig, ModelConfig
from engine.roofline.machine import WEIGHT_BYTES, Machine

ACTIVATION_BYTES = 4
"""Bytes of an activation that goes through memory between two products, beside its products: read and written in 16
bits on a card, about as much in float32 on a CPU, whose caches keep a part."""

OTHER_CALLS = 6
"""Operations of a layer that are no products: two norms, RoPE, writing and reading KV, the activation. On a CPU each
takes about what a product's call takes beside its weights."""

KV_SHARE = 0.9
"""The share of the memory beside the weights that holds keys and values."""

LATENT, LATENT_ROTATED = 512, 64
"""Numbers of a token and layer that MLA keeps, and those of them beside that carry positions (DeepSeek-V2, arXiv
2405.04434)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """What attention keeps and computes.

    numbers: of keys and values of a token and layer. num_layers: layers that keep their own. pair_flops: operations of
    a layer for each query token and key. windows: of each layer; None: it attends to all tokens. can_split: into how
    many parts the keys and values of a layer can go, one for each card.
    """

    numbers: int
    num_layers: int
    pair_flops: int
    windows: tuple[int | None, ...]
    can_split: int

    @classmethod
    def from_config(cls, config: ModelConfig) -> Attention:
        """Return the attention of a model."""
        numbers = (1 + config.has_values) * config.num_kv_heads * config.head_dim
        pair_flops = 4 * config.num_heads * config.head_dim
        windows = tuple(layer.window for layer in config.layers)
        return cls(numbers, config.num_kv_layers, pair_flops, windows, config.num_kv_heads)

    def count_keys(self, context: float) -> float:
        """Return how many keys a token behind so many others attends to, over all layers."""
        return sum(context if window is None else min(context, window) for window in self.windows)

    def count_numbers(self, context: int) -> float:
        """Return how many numbers are kept of so many tokens."""
        most = None if None in self.windows else max(window for window in self.windows if window is not None)
        return self.num_layers * self.numbers * (context if most is None else min(context, most))


@dataclass(frozen=True, slots=True)
class Product:
    """The products of one kind in a pass. num_weights: of each. count: how many there are. share: of the rows that go
    through each, and of the weights that one row needs: 1 but for experts.
    """

    name: str
    num_weights: int
    count: int
    share: float = 1.0


def list_products(config: ModelConfig) -> Iterator[Product]:
    """Yield the products of a pass, layer by layer together, the LM head last."""
    hidden, head_dim, layers = config.hidden_size, config.head_dim, config.num_layers
    if config.latent is not None:
        yield from _list_latent_products(config, config.latent)
    else:
        own_kv = 2 * config.num_kv_heads * head_dim
        yield Product("qkv", hidden * (config.num_heads * head_dim + own_kv), config.num_kv_layers)
        if config.num_kv_layers < layers:
            yield Product("q", hidden * config.num_heads * head_dim, layers - config.num_kv_layers)
        yield Product("attention out", config.num_heads * head_dim * hidden, layers)
    experts, num_experts_layers = config.experts, sum(layer.has_experts for layer in config.layers)
    if experts is not None:
        yield Product("router", hidden * experts.num_experts, num_experts_layers)
        share, count = experts.num_used / experts.num_experts, num_experts_layers * experts.num_experts
        yield Product("expert gate and up", 2 * hidden * experts.ffn_size, count, share)
        yield Product("expert down", experts.ffn_size * hidden, count, share)
        if experts.shared_size:
            yield Product("shared gate and up", 2 * hidden * experts.shared_size, num_experts_layers)
            yield Product("shared down", experts.shared_size * hidden, num_experts_layers)
    if num_experts_layers < layers:
        yield Product("gate and up", 2 * hidden * config.ffn_size, layers - num_experts_layers)
        yield Product("down", config.ffn_size * hidden, layers - num_experts_layers)
    yield Product(LM_HEAD, hidden * config.vocab_size, 1)


def _list_latent_products(config: ModelConfig, latent: LatentConfig) -> Iterator[Product]:
    hidden, heads, layers = config.hidden_size, config.num_heads, config.num_layers
    rotary_dim = config.head_dim - latent.rank
    yield Product("query and latent", hidden * sum(config.get_qkv_sizes(0)), layers)
    if latent.query_rank is not None:
        yield Product("query up", latent.query_rank * heads * (latent.key_dim + rotary_dim), layers)
    yield Product("latent keys", heads * latent.key_dim * latent.rank, layers)
    yield Product("latent values", heads * latent.rank * latent.value_dim, layers)
    yield Product("attention out", heads * latent.value_dim * hidden, layers)


LM_HEAD = "LM head"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model as it is run: the dtype of its weights, bytes of a number of keys and values, and how many cards share
    each layer (tensor parallel).
    """

    config: ModelConfig
    machine: Machine
    attention: Attention
    weights: str = "bfloat16"
    kv_bytes: float = 2.0
    num_cards: int = 1

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights on each card; a row of the embedding is read for each token, so it is in 16 bits."""
        total = sum(each.num_weights * each.count for each in list_products(self.config)) * WEIGHT_BYTES[self.weights]
        own_embedding = not self.config.tied_embeddings or self.weights not in ("bfloat16", "float32")
        embedding = self.config.hidden_size * self.config.vocab_size * WEIGHT_BYTES["bfloat16"] * own_embedding
        return (total + embedding) / self.num_cards

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of a token's keys and values on each card."""
        return self.attention.num_layers * self.attention.numbers * self.kv_bytes / self._kv_parts

    @property
    def pool_bytes(self) -> float:
        """Bytes for keys and values on each card; 0 if the weights do not fit."""
        return max(0.0, KV_SHARE * (self.machine.memory_bytes - self.weight_bytes))

    @property
    def _kv_parts(self) -> int:
        return min(self.num_cards, self.attention.can_split)

    def count_users(self, context: int) -> int:
        """Return how many sequences of so many tokens fit into the pool."""
        return int(self.pool_bytes / (self.attention.count_numbers(context) * self.kv_bytes / self._kv_parts))

    def cost_pass(self, num_seqs: int, num_rows: int, context: int, *, scored: int | None = None) -> PassCost:
        """Return the cost of a pass over `num_rows` rows of each sequence, the last of which have `context` tokens
        with their own.

        scored: rows of each sequence whose logits are computed; None: all.
        """
        rows, machine, flops, weight_bytes, seconds = num_seqs * num_rows, self.machine, 0.0, 0.0, 0.0
        num_scored = num_seqs * (num_rows if scored is None else scored)
        is_memory_bound = 0.0
        for each in list_products(self.config):
            own_rows = num_scored if each.name == LM_HEAD else rows
            used = each.count * (1.0 - (1.0 - each.share) ** own_rows)  # experts that some row takes
            through, num_weights = own_rows * each.share * each.count / used, each.num_weights / self.num_cards
            product_s = used * machine.multiply(through, num_weights, self.weights)  # in as many calls
            flops += used * 2.0 * through * num_weights
            weight_bytes += used * num_weights * WEIGHT_BYTES[self.weights]
            seconds += product_s
            compute_s = used * machine.compute(2.0 * through * num_weights, self.weights)
            is_memory_bound += product_s if compute_s < product_s else 0.0
        keys = self.attention.count_keys(context - (num_rows - 1) / 2)
        pair_flops = rows * keys * self.attention.pair_flops / self.num_cards
        kv_bytes = num_seqs * self.attention.count_keys(context) * self.attention.numbers * self.kv_bytes
        kv_bytes /= self._kv_parts
        kv_s = machine.read(kv_bytes)
        attention_s = max(kv_s, machine.compute(pair_flops, self._plain))
        is_memory_bound += attention_s if attention_s == kv_s else 0.0
        moved = rows * ACTIVATION_BYTES * self._count_activations() / self.num_cards
        moved_s = machine.read(moved) + OTHER_CALLS * self.config.num_layers * machine.call(rows, self._plain)
        wire_s = self._count_wire_bytes(rows) / machine.link_bytes_s
        return PassCost(
            rows,
            flops + pair_flops,
            weight_bytes,
            kv_bytes,
            seconds + attention_s + moved_s + wire_s,
            wire_s,
            "memory" if is_memory_bound > (seconds + attention_s) / 2 else "compute",
        )

    def count_free_rows(self, context: int, share: float = 1.1) -> int:
        """Return how many rows of one sequence a pass may have before it takes `share` times as long as with one."""
        single, rows = self.cost_pass(1, 1, context).seconds, 1
        while rows < 4096 and self.cost_pass(1, rows + 1, context).seconds <= share * single:
            rows += 1
        return rows

    def _count_activations(self) -> int:
        """Numbers of a token between the products of all layers: the inputs and results of each part."""
        config = self.config
        heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        experts = config.experts
        each_ffn = [
            3 * (experts.num_used * experts.ffn_size + experts.shared_size)
            if layer.has_experts and experts
            else 3 * config.ffn_size
            for layer in config.layers
        ]
        return config.num_layers * (6 * config.hidden_size + heads) + sum(each_ffn)

    def _count_wire_bytes(self, rows: int) -> float:
        """Bytes that each card sends for the two all-reduces of each layer, in a ring, of hidden states in 16 bits."""
        ring = 2.0 * (self.num_cards - 1) / self.num_cards
        return ring * 2.0 * self.config.num_layers * rows * self.config.hidden_size * 2.0

    @property
    def _plain(self) -> str:
        """The dtype in which attention computes: that of weights that are not quantised."""
        return next(name for name in ("bfloat16", "float32", *self.machine.flops_s) if name in self.machine.flops_s)


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a pass costs on each card. bound: what takes most of its time."""

    rows: int
    flops: float
    weight_bytes: float
    kv_bytes: float
    seconds: float
    wire_s: float
    bound: Literal["memory", "compute"]


def list_variants(deployment: Deployment, window: int = 4096) -> Mapping[str, Deployment]:
    """Return what could be changed, each alone: weights, keys and values, and the number of cards.

    GQA, MLA and CLA (arXiv 2405.12981) are other models: they say what such a one of this size would take.
    """
    kept = deployment.attention
    shorter = tuple(window if own is None else min(own, window) for own in kept.windows)
    heads = deployment.config.num_heads
    latent = 2 * heads * (2 * LATENT + LATENT_ROTATED)  # absorbed: a key is 576 numbers, a value the first 512
    variants = {
        f"{weights} weights": replace(deployment, weights=weights)
        for weights in deployment.machine.flops_s
        if weights != deployment.weights
    }
    variants["int8 KV"] = replace(deployment, kv_bytes=1.0)
    variants[f"windows of {window}"] = replace(deployment, attention=replace(kept, windows=shorter))
    if kept.can_split % 2 == 0:
        fewer = replace(kept, numbers=kept.numbers // 2, can_split=kept.can_split // 2)
        variants["GQA, half the KV heads"] = replace(deployment, attention=fewer)
    if deployment.config.latent is None:
        mla = replace(kept, numbers=LATENT + LATENT_ROTATED, pair_flops=latent, can_split=1)
        variants["MLA, 512 + 64"] = replace(deployment, attention=mla)
    cla = replace(kept, num_layers=-(-kept.num_layers // 2))
    variants["CLA, two layers a KV"] = replace(deployment, attention=cla)
    if not deployment.machine.products:
        for num_cards in (2 * deployment.num_cards, 4 * deployment.num_cards):
            if deployment.config.num_heads % num_cards == 0:
                variants[f"{num_cards} cards"] = replace(deployment, num_cards=num_cards)
    return variants
