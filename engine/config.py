"""The shape of a decoder: one config for every supported family, with a spec for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from engine.errors import WeightsError

LARGEST: Mapping[str, float] = {
    "num_layers": 1 << 10,
    "hidden_size": 1 << 20,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "ffn_size": 1 << 24,
    "vocab_size": 1 << 24,
    "max_positions": 1 << 24,
    "rms_norm_eps": 1.0,
    "embedding_scale": 1e6,
    "attention_scale": 1e3,
    "attention_cap": 1e6,
    "logit_cap": 1e6,
    "latent_rank": 1 << 16,
    "num_experts": 1 << 16,
    "num_experts_used": 1 << 10,
    "expert_ffn_size": 1 << 24,
    "sliding_window": 1 << 24,
    "rope_theta": 1e12,
    "rope_scale": 1e3,
}
"""Limits far beyond any model: a larger value, or one not above 0, comes from a damaged file."""

LARGEST_DIVISOR = 1e6
"""The same for RoPE scaling."""


def check_size(name: str, size: float | None) -> None:
    """Raise WeightsError for a size that no model has; None is no size."""
    most = LARGEST[name]
    if size is not None and not 0 < size <= most:
        raise WeightsError(f"{name} is {size}, outside (0, {most}]; the model's description is damaged")


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding. theta: the base of its frequencies. divisors: of each frequency, if there are any. scale:
    rotated queries and keys are multiplied by it (YaRN).
    """

    theta: float
    divisors: tuple[float, ...] | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_size("rope_theta", self.theta)
        check_size("rope_scale", self.scale)
        if self.divisors is not None and not all(0 < divisor <= LARGEST_DIVISOR for divisor in self.divisors):
            raise WeightsError(f"a RoPE factor is outside (0, {LARGEST_DIVISOR}]; the description is damaged")


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer has of its own. With a `window` of w, a token attends to itself and the w - 1 tokens before it;
    without one, to all before it. `has_experts`: a mixture of experts takes the place of the dense feed-forward part.
    """

    rope: Rope
    window: int | None = None
    has_experts: bool = False

    def __post_init__(self) -> None:
        check_size("sliding_window", self.window)


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: a router chooses `num_used` of `num_experts` for each token, and their results are weighted
    by the softmax over all experts; where `is_normalised`, over those that are used. All results are multiplied by
    `scale`.

    With a `scoring` by sigmoid (DeepSeek-V3, arXiv 2412.19437) weights are sigmoids, and the choice adds a number of
    each expert to them. Experts come from the best `num_groups_used` of `num_groups`; a group is as good as its best
    expert, by sigmoid as its best two together. shared_size: of a feed-forward part that every token goes through.
    """

    num_experts: int
    num_used: int
    ffn_size: int
    is_normalised: bool
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    num_groups: int = 1
    num_groups_used: int = 1
    scale: float = 1.0
    shared_size: int = 0

    def __post_init__(self) -> None:
        check_size("num_experts", self.num_experts)
        check_size("num_experts_used", self.num_used)
        check_size("expert_ffn_size", self.ffn_size)
        check_size("num_experts", self.num_groups)
        check_size("attention_scale", self.scale)
        if not 0 <= self.shared_size <= LARGEST["expert_ffn_size"]:
            raise WeightsError(f"shared experts have a size of {self.shared_size}; the model's description is damaged")
        if self.num_experts % self.num_groups or not 0 < self.num_groups_used <= self.num_groups:
            raise WeightsError(
                f"{self.num_experts} experts cannot be {self.num_groups_used} of {self.num_groups} groups"
            )
        if self.scoring == "sigmoid" and self.num_experts // self.num_groups < 2:
            raise WeightsError(f"{self.num_groups} groups of {self.num_experts} experts have fewer than two each")
        if self.num_used > self.num_experts // self.num_groups * self.num_groups_used:
            raise WeightsError(f"{self.num_used} of {self.num_experts} experts cannot be used for a token")


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434). Of a token, one vector of `rank` numbers is
    kept, from which keys and values of all heads are made, and the part of its keys with RoPE, which all heads share.

    key_dim, value_dim: numbers of each head's key that are not rotated, and of its value. query_rank: of the vector
    that queries are made from; None: they are made from the hidden state. is_interleaved: neighbours rotate together in
    the checkpoint's rows.
    """

    rank: int
    key_dim: int
    value_dim: int
    query_rank: int | None = None
    is_interleaved: bool = True

    def __post_init__(self) -> None:
        check_size("latent_rank", self.rank)
        check_size("latent_rank", self.query_rank)
        check_size("head_dim", self.key_dim)
        check_size("head_dim", self.value_dim)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one decoder; sizes are counts.

    architecture: the class of transformers. ffn_size: of dense layers. qk_norm: an RMSNorm of queries and keys before
    RoPE, of each "head" or of "all" heads together. norms_before, norms_after: RMSNorms of the inputs and results of
    attention and feed-forward part. norm_offset: is added to every norm's weights. rotary_dim: numbers of a head
    that are rotated, the first ones; None: all. embedding_scale: embeddings are multiplied by it. attention_scale: of
    scores; None: head_dim**-0.5. attention_cap, logit_cap: scores and logits x become cap * tanh(x / cap).

    kv_of_layer: the number of the keys and values that a layer attends to, from 0 on in the order of the layers that
    compute them; None: each layer its own. latent: then the one KV head holds a token's vector and the rotated part of
    its key, and no values are kept beside it.
    """

    architecture: str
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool = False
    attention_out_bias: bool = False
    ffn_bias: bool = False
    qk_norm: Literal["head", "all"] | None = None
    norms_before: bool = True
    norms_after: bool = False
    norm_offset: float = 0.0
    activation: Literal["silu", "gelu_tanh"] = "silu"
    rotary_dim: int | None = None
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    experts: ExpertsConfig | None = None
    kv_of_layer: tuple[int, ...] | None = None
    latent: LatentConfig | None = None

    def __post_init__(self) -> None:
        for name in LARGEST:
            if hasattr(self, name):
                check_size(name, getattr(self, name))
        if self.head_dim % 2:
            raise WeightsError(f"head_dim is {self.head_dim}; rotary embedding needs an even one")
        if self.num_heads % self.num_kv_heads:
            raise WeightsError(f"{self.num_heads} query heads do not divide into {self.num_kv_heads} KV heads")
        if self.rotary_dim is not None and not (0 < self.rotary_dim <= self.head_dim and self.rotary_dim % 2 == 0):
            raise WeightsError(f"{self.rotary_dim} numbers of a head of {self.head_dim} cannot be rotated")
        num_frequencies = (self.rotary_dim or self.head_dim) // 2
        for rope in self.ropes:
            if rope.divisors is not None and len(rope.divisors) != num_frequencies:
                raise WeightsError(f"{len(rope.divisors)} RoPE factors for {num_frequencies} frequencies")
        if self.experts is None and any(layer.has_experts for layer in self.layers):
            raise WeightsError("a layer has experts, and their sizes are not given")
        if self.kv_of_layer is not None:
            self._check_shared_kv(self.kv_of_layer)
        if self.latent is not None:
            rotary_dim, is_single = self.head_dim - self.latent.rank, self.num_kv_heads == 1
            if rotary_dim != self.rotary_dim or not is_single or self.kv_of_layer is not None:
                raise WeightsError(f"a latent vector of {self.latent.rank} does not fit a KV head of {self.head_dim}")

    def _check_shared_kv(self, kv_of_layer: tuple[int, ...]) -> None:
        if len(kv_of_layer) != self.num_layers:
            raise WeightsError(f"keys and values are named for {len(kv_of_layer)} of {self.num_layers} layers")
        num_known = 0
        for layer, kv_layer in enumerate(kv_of_layer):
            if not 0 <= kv_layer <= num_known:
                raise WeightsError(f"layer {layer} attends to keys and values {kv_layer}, which no layer has computed")
            if self.layers[layer].rope != self.layers[kv_of_layer.index(kv_layer)].rope:
                raise WeightsError(f"layer {layer} attends to keys that are rotated in another way than its queries")
            num_known = max(num_known, kv_layer + 1)

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @cached_property
    def ropes(self) -> tuple[Rope, ...]:
        """The rotary embeddings of the layers, each once."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers))

    @cached_property
    def window(self) -> int | None:
        """The tokens that have to be kept for the next one: the widest window, None if a layer has none."""
        windows = [layer.window for layer in self.layers]
        return None if None in windows else max(window for window in windows if window is not None)

    @cached_property
    def has_windows(self) -> bool:
        """Whether any layer has a window."""
        return any(layer.window is not None for layer in self.layers)

    @property
    def has_values(self) -> bool:
        """Whether values are kept beside keys; those of latent attention are a part of the keys."""
        return self.latent is None

    @cached_property
    def num_kv_layers(self) -> int:
        """The layers that compute keys and values."""
        return self.num_layers if self.kv_of_layer is None else max(self.kv_of_layer) + 1

    def get_kv_layer(self, layer: int) -> int:
        """Return the number of the keys and values that a layer attends to."""
        return layer if self.kv_of_layer is None else self.kv_of_layer[layer]

    def find_computing_layer(self, kv_layer: int) -> int:
        """Return the layer that computes these keys and values."""
        return kv_layer if self.kv_of_layer is None else self.kv_of_layer.index(kv_layer)

    def get_kv_layers(self, rope: Rope) -> list[int]:
        """Return the numbers of the keys and values whose keys are rotated so."""
        own = [layer for layer, spec in enumerate(self.layers) if spec.rope == rope and self.computes_kv(layer)]
        return [self.get_kv_layer(layer) for layer in own]

    def computes_kv(self, layer: int) -> bool:
        """Return whether a layer computes keys and values, or attends to those of an earlier one."""
        return self.kv_of_layer is None or self.kv_of_layer[layer] not in self.kv_of_layer[:layer]

    def get_qkv_sizes(self, layer: int) -> tuple[int, int, int]:
        """Return the rows of a layer's query, key and value projections. Of latent attention they are those of the
        queries, or of the vector that these are made from, and of the latent vector with the rotated part of the key.
        """
        if self.latent is not None:
            of_heads = self.num_heads * (self.latent.key_dim + self.head_dim - self.latent.rank)
            return self.latent.query_rank or of_heads, self.head_dim, 0
        kv_size = self.num_kv_heads * self.head_dim if self.computes_kv(layer) else 0
        return self.num_heads * self.head_dim, kv_size, kv_size
