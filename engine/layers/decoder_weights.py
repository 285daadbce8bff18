"""The weights of a decoder as its forward pass uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import WeightsError
from engine.layers.experts import Experts, GroupedExperts
from engine.layers.latent import LatentProjections, order_halves
from engine.layers.linear import (
    Blocked,
    Dense,
    Fp8,
    Int4,
    Int8,
    Packed,
    Projection,
    Quantization,
    UnpackingBuffer,
    can_block,
    can_multiply_fp8,
    can_pack,
    can_pack_int4,
    find_int8_step,
    has_fp8_products,
    is_blocked_faster,
)
from engine.weights.memory import check_memory
from engine.weights.parameters import LayerParameters, Parameters
from kernels.accept import TILE
from kernels.attention import KVFormat

Store = Callable[[Tensor, Tensor | None], Projection]
"""Builds a projection from a weight [out_features, in_features] and a bias [out_features]."""


def build_fastest(activations: torch.dtype) -> Store:
    """Return a `Store` of weights as they are, in the fastest form for activations of this dtype: packed for our
    kernel, packed for oneDNN, or plain. It raises WeightsError if memory is short.

    If the dtypes differ and there is no kernel for that, the weights are converted to that of the activations.
    """

    def store(weight: Tensor, bias: Tensor | None = None) -> Projection:
        try:
            if can_block(weight, activations) and (activations != weight.dtype or is_blocked_faster()):
                return Blocked(weight, bias)
            weight, bias = weight.to(activations), None if bias is None else bias.to(activations)
            if can_pack(weight.device.type, weight.dtype):
                return Packed(weight, bias)
            return Dense(weight, bias)
        except RuntimeError as error:
            size_gb = weight.nbytes / 1e9
            raise WeightsError(f"there is no memory to pack {size_gb:.1f} GB; take a smaller model") from error

    return store


def build_quantiser(scheme: Quantization, buffer: UnpackingBuffer, activations: torch.dtype) -> Store:
    """Return a `Store` that quantises what the CPU kernel for the scheme supports; other weights go to
    `build_fastest`.
    """
    store_plain = build_fastest(activations)

    def store(weight: Tensor, bias: Tensor | None = None) -> Projection:
        if scheme == "int4" and can_pack_int4(weight):
            return Int4(weight, bias, buffer)
        return Int8(weight, bias) if scheme == "int8" else store_plain(weight, bias)

    return store


def build_fp8(activations: torch.dtype) -> Store:
    """Return a `Store` that quantises to fp8 what torch multiplies so; other weights go to `build_fastest`."""
    store_plain = build_fastest(activations)
    return lambda weight, bias: Fp8(weight, bias) if can_multiply_fp8(weight) else store_plain(weight, bias)


def cap_logits(store: Store, cap: float | None) -> Store:
    """Return a `Store` whose projections' results x become cap * tanh(x / cap)."""
    return store if cap is None else lambda weight, bias: Capped(store(weight, bias), cap)


class Capped:
    """A projection whose results x become cap * tanh(x / cap) (Gemma 2, arXiv 2408.00118)."""

    def __init__(self, projection: Projection, cap: float) -> None:
        self._projection = projection
        self._cap = cap
        self.out_features = projection.out_features
        self.num_bytes = projection.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        return self._projection(x).div_(self._cap).tanh_().mul_(self._cap)


class Tiled:
    """Several projections of the same rows whose results are joined."""

    def __init__(self, tiles: Sequence[Projection]) -> None:
        self.tiles = tuple(tiles)
        self.out_features = sum(tile.out_features for tile in tiles)
        self.num_bytes = sum(tile.num_bytes for tile in tiles)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        return torch.cat([tile(x) for tile in self.tiles], dim=1)


def split_tiles(weight: Tensor, store: Store, num_features: int) -> Projection:
    """Store [out_features, in_features] in tiles of `num_features` rows, the last one shorter; a single tile as it is.

    On other devices than a CPU it is one tile: there, memory for logits costs nothing and a further call costs more.
    """
    if weight.device.type != "cpu" or len(weight) <= num_features:
        return store(weight, None)
    return Tiled([store(weight[start : start + num_features], None) for start in range(0, len(weight), num_features)])


def order_rotary(rows: Tensor, config: ModelConfig, num_heads: int) -> Tensor:
    """Return rows of heads, [num_rows, ...], so that the first half of each of the first `num_heads` heads rotates with
    the second half.

    Where only the first `rotary_dim` numbers of a head are rotated, their halves go to the beginnings of the head's
    halves. The other numbers follow, and rotate by an angle of 0. Queries and keys are in the same order, so that their
    products stay what they are.
    """
    if config.rotary_dim is None or num_heads == 0:
        return rows
    half, num_rotated = config.head_dim // 2, config.rotary_dim // 2
    order = torch.arange(config.head_dim, device=rows.device)
    rotated, others = order[: 2 * num_rotated].view(2, -1), order[2 * num_rotated :].view(2, -1)
    of_head = torch.cat([rotated, others], dim=1).flatten()
    count = min(num_heads * 2 * half, len(rows))
    heads = rows[:count].view(-1, config.head_dim, *rows.shape[1:])[:, of_head].flatten(0, 1)
    return torch.cat([heads, rows[count:]])


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The dense feed-forward part of a layer."""

    gate_up: Projection  # hidden_size -> 2 * ffn_size
    down: Projection  # ffn_size -> hidden_size

    @property
    def num_bytes(self) -> int:
        """Bytes of the projections."""
        return self.gate_up.num_bytes + self.down.num_bytes


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer; the shapes of the projections are [in_features -> out_features]."""

    attention_norm: Tensor | None  # [hidden_size], as all norms in float32
    qkv: Projection  # hidden_size -> (num_heads + 2 * num_kv_heads) * head_dim, or `ModelConfig.get_qkv_sizes`
    latent: LatentProjections | None  # what makes heads of the rows of `qkv`, with latent attention
    head_norms: tuple[Tensor, ...]  # one [num_heads + num_kv_heads, head_dim], or one of queries and one of keys
    attention_out: Projection  # num_heads * head_dim, or of values, -> hidden_size
    attention_out_norm: Tensor | None  # [hidden_size]
    ffn_norm: Tensor | None  # [hidden_size]
    feed_forward: FeedForward | Experts  # hidden_size -> hidden_size
    ffn_out_norm: Tensor | None  # [hidden_size]
    key_bias: Tensor | None  # [num_kv_heads, head_dim], float32
    key_scales: Tensor | None  # the same; keys in int8 are divided by them, and queries multiplied

    @classmethod
    def from_parameters(
        cls, layer: LayerParameters, config: ModelConfig, stores: tuple[Store, Store], activations: torch.dtype
    ) -> LayerWeights:
        """Return the layer with its projections built by `stores`: the second is for those out of attention and of a
        dense feed-forward part. Heads are in the order of `order_rotary`.
        """
        store, store_output = stores

        def scale(weights: Tensor | None) -> Tensor | None:
            return None if weights is None else weights.float() + config.norm_offset

        num_rotated, bias = config.num_heads + config.num_kv_heads, layer.qkv_bias
        qkv_bias = None if bias is None else order_rotary(bias, config, num_rotated)
        key_bias = None if qkv_bias is None else _get_key_bias(qkv_bias, config)
        return cls(
            attention_norm=scale(layer.attention_norm),
            qkv=store(_order_qkv(layer.qkv, config, num_rotated), qkv_bias),
            latent=_build_latent(layer, config, store, activations),
            head_norms=_join_head_norms(scale(layer.query_norm), scale(layer.key_norm), config),
            attention_out=store_output(layer.attention_out, layer.attention_out_bias),
            attention_out_norm=scale(layer.attention_out_norm),
            ffn_norm=scale(layer.ffn_norm),
            feed_forward=_build_feed_forward(layer, config, stores, activations),
            ffn_out_norm=scale(layer.ffn_out_norm),
            key_bias=key_bias,
            key_scales=None if key_bias is None else find_key_scales(key_bias),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the projections: what a pass over one row reads of this layer, norms excluded."""
        latent = 0 if self.latent is None else self.latent.num_bytes
        return self.qkv.num_bytes + latent + self.attention_out.num_bytes + self.feed_forward.num_bytes


def _order_qkv(rows: Tensor, config: ModelConfig, num_rotated: int) -> Tensor:
    """Return the rows of a layer's first projections so that halves of heads rotate together."""
    if config.latent is None:
        return order_rotary(rows, config, num_rotated)
    queries, vector = torch.split(rows, list(config.get_qkv_sizes(0)[:2]))
    rotary_dim = config.head_dim - config.latent.rank
    if config.latent.query_rank is None:
        by_head = queries.view(config.num_heads, -1, config.hidden_size)
        queries = order_halves(by_head, config.latent, rotary_dim).flatten(0, 1)
    return torch.cat([queries, order_halves(vector[None], config.latent, rotary_dim)[0]])


def _build_latent(
    layer: LayerParameters, config: ModelConfig, store: Store, activations: torch.dtype
) -> LatentProjections | None:
    if config.latent is None or layer.latent_norm is None or layer.latent_up is None:
        return None
    query_up, query_norm = None, layer.query_latent_norm
    if layer.query_up is not None:
        rows = layer.query_up.view(config.num_heads, -1, layer.query_up.shape[1])
        query_up = store(order_halves(rows, config.latent, config.head_dim - config.latent.rank).flatten(0, 1), None)
    norms = None if query_norm is None else query_norm.float(), layer.latent_norm.float()
    return LatentProjections(config, config.latent, norms[0], query_up, norms[1], layer.latent_up.to(activations))


def _get_key_bias(qkv_bias: Tensor, config: ModelConfig) -> Tensor | None:
    """Return the bias of keys, [num_kv_heads, head_dim], of a layer that computes any."""
    first, size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    bias = qkv_bias[first : first + size].float()
    return bias.view(config.num_kv_heads, config.head_dim) if len(bias) else None


LARGE_BIAS = 8.0
"""Of a key: numbers that a larger bias carries would leave the others of their head few of the 255 integers."""


def find_key_scales(bias: Tensor) -> Tensor:
    """Return powers of two that divide keys with this bias, [num_kv_heads, head_dim], so that none is far larger than
    the others. Both numbers that rotate together have one.

    Qwen2.5-Coder has biases of up to 354, and a median below 0.5.
    """
    most = bias.abs().unflatten(1, (2, -1)).amax(dim=1)  # type: ignore[no-untyped-call]
    return torch.exp2((most / LARGE_BIAS).clamp_min(1.0).log2().round()).repeat(1, 2)


def _build_feed_forward(
    layer: LayerParameters, config: ModelConfig, stores: tuple[Store, Store], activations: torch.dtype
) -> FeedForward | Experts:
    store, store_output = stores
    if layer.router is not None and layer.expert_gate_up is not None and layer.expert_down is not None:
        assert config.experts is not None, "the config was checked"
        router = build_fastest(activations)(layer.router, None)  # quantised, it would choose other experts
        matrices = layer.expert_gate_up, layer.expert_down
        shared = [store(each, None) for each in (layer.shared_gate_up, layer.shared_down) if each is not None]
        correction = layer.router_correction
        if layer.router.device.type == "cpu":
            projections = ([store(each, None) for each in part] for part in matrices)
            return Experts(config.experts, router, *projections, correction=correction, shared=shared)
        whole = (part.to(activations) for part in matrices)
        return GroupedExperts(config.experts, router, *whole, correction=correction, shared=shared)
    assert layer.gate_up is not None, "a layer without experts is dense"
    assert layer.down is not None, "a layer without experts is dense"
    return FeedForward(store(layer.gate_up, layer.gate_up_bias), store_output(layer.down, layer.down_bias))


def _join_head_norms(query: Tensor | None, key: Tensor | None, config: ModelConfig) -> tuple[Tensor, ...]:
    norms = [each for each in (query, key) if each is not None]
    if config.qk_norm == "all":
        return tuple(order_rotary(norm, config, len(norm) // config.head_dim) for norm in norms)
    counts = (config.num_heads, config.num_kv_heads)
    joined = [order_rotary(norm, config, 1).expand(count, -1) for norm, count in zip(norms, counts, strict=False)]
    return (torch.cat(joined),) if joined else ()


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder. A tied LM head is stored separately from the embedding, which stays plain for the
    lookup: 57 MB more for SmolLM2-135M, and logits of one row in at most two thirds of the time.
    """

    config: ModelConfig
    dtype: torch.dtype
    """The dtype of the activations."""
    embedding: Tensor  # [vocab_size, hidden_size], in the dtype of the parameters
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden_size]
    lm_head: Projection  # hidden_size -> vocab_size
    kv_format: KVFormat

    @classmethod
    def from_parameters(
        cls,
        parameters: Parameters,
        quantize: Quantization | None = None,
        activations: torch.dtype | None = None,
        *,
        kv_int8: bool = False,
        store_output: Callable[[Store], Store] = lambda store: store,
    ) -> DecoderWeights:
        """Take the layers out of `parameters`; each is freed when it is packed, so that no two models are in memory.

        All projections are quantised, the LM head to int8 with int4, and not at all with fp8. int8 and int4 are for
        CPUs, fp8 for cards. `activations` is the dtype of the activations, if it is not that of the parameters.
        kv_int8: keys and values are stored in int8. store_output: returns the store of the projections out of attention
        and of dense feed-forward parts. Raises WeightsError if memory runs out, or if the device has no products for
        `quantize`.
        """
        config, dtype = parameters.config, activations or parameters.dtype
        device, held = parameters.embedding.device, parameters.embedding.nbytes
        check_memory(config, parameters.dtype, quantize, device, held)
        store, store_head = _choose_stores(parameters, quantize, dtype)
        stores = store, store_output(store)
        layers = (LayerWeights.from_parameters(layer, config, stores, dtype) for layer in parameters.take_layers())
        return cls(
            config=config,
            dtype=dtype,
            embedding=parameters.embedding,
            layers=tuple(layers),
            final_norm=parameters.final_norm.float() + config.norm_offset,
            lm_head=split_tiles(parameters.lm_head, cap_logits(store_head, config.logit_cap), TILE),
            kv_format=KVFormat(parameters.dtype, kv_int8),
        )

    @property
    def lm_head_tiles(self) -> tuple[Projection, ...]:
        """The LM head, a part of the vocabulary at a time, in the order of the token ids."""
        return self.lm_head.tiles if isinstance(self.lm_head, Tiled) else (self.lm_head,)

    @property
    def device(self) -> torch.device:
        """The device of the weights and the activations."""
        return self.embedding.device

    @property
    def kv_dtype(self) -> torch.dtype:
        """The dtype of stored keys and values."""
        return self.kv_format.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the projections and the LM head: what a pass over one row reads, norms and KV excluded."""
        return sum(layer.num_bytes for layer in self.layers) + self.lm_head.num_bytes


def _choose_stores(
    parameters: Parameters, quantize: Quantization | None, activations: torch.dtype
) -> tuple[Store, Store]:
    """Return the stores for the layers' projections and for the LM head."""
    if quantize is None:
        return build_fastest(activations), build_fastest(activations)
    device = parameters.embedding.device
    if quantize == "fp8":
        if not has_fp8_products(device):
            raise WeightsError(
                f"{device} has no products in fp8, which need a card of the generation Ada, Hopper or later; load the "
                "model unquantised"
            )
        return build_fp8(activations), build_fastest(activations)
    if device.type != "cpu":
        raise WeightsError(f"{quantize} weights are for CPUs; take fp8, or load the model unquantised on {device.type}")
    if find_int8_step() is None:
        raise WeightsError(f"{quantize} weights need a torch with oneDNN, which this one lacks; load them unquantised")
    buffer = UnpackingBuffer(activations)
    return build_quantiser(quantize, buffer, activations), build_quantiser("int8", buffer, activations)
