"""The op `span_placement` for parity checks, tuner and benchmarks, and its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.attention.kv_format import SCALE_BYTES, decode_heads, encode_heads
from kernels.op import Cost, Inputs, Shape, Variant, round_up_to_power_of_2
from kernels.rope import apply_rope, fusible_rope
from kernels.winners import get_variant


def naive_place(
    keys: Tensor,
    values: Tensor | None,
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor | None,
    target_slots: Tensor,
    key_bias: Tensor | None = None,
    key_scales: Tensor | None = None,
) -> None:
    """Compute `kernels.span_placement.place` with plain torch operations; keys and values may be on any device.

    key_bias, key_scales: of the layer, [num_kv_heads, head_dim], as `kernels.span_placement.place_layers` takes them.
    """
    if pool_keys.dtype == torch.uint8:
        wide = decode_heads(keys[source_slots], torch.float32)
        rotated = apply_rope(wide if key_bias is None else wide + key_bias, cos, sin)
        pool_keys.index_copy_(0, target_slots, encode_heads(rotated if key_scales is None else rotated / key_scales))
    else:
        pool_keys[target_slots] = apply_rope(keys[source_slots].to(pool_keys.device), cos, sin)
    if values is not None and pool_values is not None:
        pool_values[target_slots] = values[source_slots].to(pool_values.device)


SPARE_SLOTS = 5
"""Slots of the pool that nothing is written to, and of the store that nothing is read from."""

MAX_PAIRS = 8192
"""Pairs of a program, of keys and of values: 64 of each a thread of 4 warps."""


def _get_layer(tensors: Sequence[Tensor], layer: int) -> Tensor | None:
    return tensors[layer] if len(tensors) else None


class SpanPlacement:
    """The op. A shape has num_tokens, num_layers, num_kv_heads and head_dim; `int8` (1) where all is stored so, and
    `latent` (1) where there are no values.
    """

    name = "span_placement"

    parity_shapes: Sequence[Shape] = (
        {"num_tokens": 1, "num_layers": 1, "num_kv_heads": 1, "head_dim": 64},
        {"num_tokens": 5, "num_layers": 3, "num_kv_heads": 2, "head_dim": 128},
        {"num_tokens": 17, "num_layers": 2, "num_kv_heads": 3, "head_dim": 24},
        {"num_tokens": 3, "num_layers": 5, "num_kv_heads": 1, "head_dim": 256},
        {"num_tokens": 6, "num_layers": 3, "num_kv_heads": 2, "head_dim": 64, "int8": 1},
        {"num_tokens": 5, "num_layers": 2, "num_kv_heads": 1, "head_dim": 576, "latent": 1},
        {"num_tokens": 7, "num_layers": 3, "num_kv_heads": 1, "head_dim": 48, "int8": 1, "latent": 1},
    )
    benchmark_shapes: Sequence[Shape] = (
        *({"num_tokens": each, "num_layers": 28, "num_kv_heads": 2, "head_dim": 128} for each in (512, 8192, 32768)),
        *({"num_tokens": each, "num_layers": 28, "num_kv_heads": 4, "head_dim": 128} for each in (512, 8192, 32768)),
        {"num_tokens": 8192, "num_layers": 28, "num_kv_heads": 4, "head_dim": 128, "int8": 1},
    )
    space: Mapping[str, Sequence[int]] = {
        "block_tokens": (1, 2, 4, 8, 16, 32),
        "block_heads": (1, 2, 4, 8),
        "block_layers": (1, 2, 4, 8),
        "num_warps": (1, 2, 4, 8),
        "num_stages": (1,),
    }

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """Require no more pairs than registers hold, no more threads than pairs, and no more heads than exist."""
        num_pairs = variant["block_tokens"] * variant["block_heads"] * round_up_to_power_of_2(shape["head_dim"] // 2)
        fits = 32 * variant["num_warps"] <= num_pairs <= MAX_PAIRS
        return fits and variant["block_heads"] <= round_up_to_power_of_2(shape["num_kv_heads"])

    def default(self, shape: Shape) -> Variant:
        """Return about 1,024 pairs a program with all heads, and several layers if there are many tokens."""
        block_heads = min(8, round_up_to_power_of_2(shape["num_kv_heads"]))
        token_pairs = block_heads * round_up_to_power_of_2(shape["head_dim"] // 2)
        block_tokens = max(1, min(32, 1024 // token_pairs))
        return {
            "block_tokens": block_tokens,
            "block_heads": block_heads,
            "block_layers": 4 if shape["num_tokens"] > 1024 else 1,
            "num_warps": max(1, min(4, block_tokens * token_pairs // 256)),  # 8 numbers a thread: loads of 16 bytes
            "num_stages": 1,
        }

    def shape_class(self, shape: Shape) -> str:
        """Name the size of a token, and whether there are more than 1,024 tokens."""
        num_layers, num_kv_heads, head_dim = (shape[name] for name in ("num_layers", "num_kv_heads", "head_dim"))
        tokens = "tokens<=1024" if shape["num_tokens"] <= 1024 else "tokens>1024"
        kind = "".join(f" {name}" for name in ("int8", "latent") if shape.get(name))
        return f"layers={num_layers} kv_heads={num_kv_heads} head_dim={head_dim} {tokens}{kind}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Make stacked layers of a store and a pool with random slots; all other slots are NaN."""
        num_tokens, num_layers = shape["num_tokens"], shape["num_layers"]
        num_slots, head_dim = num_tokens + SPARE_SLOTS, shape["head_dim"]
        heads = shape["num_kv_heads"], head_dim
        source, target = (torch.randperm(num_slots, device=device, generator=generator)[:num_tokens] for _ in range(2))
        key_bias = key_scales = None
        if shape.get("int8"):
            rows = torch.full((4, num_layers, num_slots, heads[0], head_dim + SCALE_BYTES), 255, dtype=torch.uint8)
            key_bias = torch.randn(num_layers, *heads, device=device, generator=generator) * 30
            powers = torch.randint(4, (num_layers, heads[0], head_dim // 2), device=device, generator=generator)
            key_scales = torch.exp2(powers.float()).repeat(1, 1, 2)
        else:
            rows = torch.full((4, num_layers, num_slots, *heads), torch.nan, dtype=dtype)
        keys, values, pool_keys, pool_values = rows.to(device)
        if shape.get("latent"):
            values, pool_values = values[:0], pool_values[:0]
        for layer in (*keys, *values):
            drawn = torch.randn(num_tokens, *heads, device=device, generator=generator)
            layer[source] = encode_heads(drawn) if shape.get("int8") else drawn.to(dtype)
        angles = torch.randn(num_tokens, head_dim // 2, device=device, generator=generator) * 100
        return {
            "keys": keys,
            "values": values,
            "source_slots": source,
            "cos": angles.cos(),
            "sin": angles.sin(),
            "pool_keys": pool_keys,
            "pool_values": pool_values,
            "target_slots": target,
            "key_bias": key_bias,
            "key_scales": key_scales,
        }

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        """Run the kernel on stacked layers, or on a sequence of tensors."""
        from kernels.span_placement.kernel import launch

        pool = inputs["pool_keys"][0]
        if variant is None:
            shape = {
                "num_tokens": len(inputs["source_slots"]),
                "num_layers": len(inputs["keys"]),
                "num_kv_heads": pool.shape[1],
                "head_dim": 2 * inputs["cos"].shape[1],
                "int8": int(pool.dtype == torch.uint8),
                "latent": int(not len(inputs["values"])),
            }
            variant = get_variant(self, shape, pool.device, pool.dtype)
        launch(**inputs, variant=variant)
        return inputs["pool_keys"], inputs["pool_values"]

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        if inputs["pool_keys"][0].dtype == torch.uint8:
            return self._reference_int8(inputs)
        own = ("keys", "values", "pool_keys", "pool_values")
        shared = {name: value for name, value in inputs.items() if name not in own}
        for layer in range(len(inputs["keys"])):
            tensors: dict[str, Any] = {name: _get_layer(inputs[name], layer) for name in own}
            naive_place(**shared, **tensors)
        return inputs["pool_keys"], inputs["pool_values"]

    def _reference_int8(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Compute in float32 on a CPU: integers are to be equal, so roundings are to be the same."""
        own = {name: (each.float() if each.is_floating_point() else each).cpu() for name, each in inputs.items()}
        by_layer = ("keys", "values", "pool_keys", "pool_values", "key_bias", "key_scales")
        shared = {name: value for name, value in own.items() if name not in by_layer}
        for layer in range(len(own["keys"])):
            tensors: dict[str, Any] = {name: _get_layer(own[name], layer) for name in by_layer}
            naive_place(**shared, **tensors)
        device = inputs["pool_keys"].device
        return own["pool_keys"].to(device), own["pool_values"].to(device)

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Return one gather, rotation and scatter over all layers, which must be stacked, and the same compiled. Of
        int8 there are none.
        """
        if inputs["pool_keys"][0].dtype == torch.uint8:
            return {}
        keys, values, source = inputs["keys"], inputs["values"], inputs["source_slots"]
        pool_keys, pool_values, target = inputs["pool_keys"], inputs["pool_values"], inputs["target_slots"]
        cos, sin = (inputs[name].repeat(len(keys), 1) for name in ("cos", "sin"))

        def make_baseline(rope: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
            def call() -> tuple[Tensor, ...]:
                found = keys.index_select(1, source)
                pool_keys.index_copy_(1, target, rope(found.flatten(0, 1), cos, sin).view(found.shape))
                if len(values):
                    pool_values.index_copy_(1, target, values.index_select(1, source))
                return pool_keys, pool_values

            return call

        return {"eager": make_baseline(apply_rope), "compile": torch.compile(make_baseline(fusible_rope))}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Count keys and values of every layer, angles and slots once; a pair takes four products and two sums."""
        row_size = shape["num_kv_heads"] * shape["head_dim"]
        head_bytes = shape["head_dim"] + SCALE_BYTES if shape.get("int8") else shape["head_dim"] * dtype.itemsize
        angle_bytes = shape["head_dim"] * torch.float32.itemsize
        moved_bytes = (2 if shape.get("latent") else 4) * shape["num_layers"] * shape["num_kv_heads"] * head_bytes
        token_bytes = moved_bytes + angle_bytes + 2 * torch.int64.itemsize
        token_flops = 6 * shape["num_layers"] * (row_size // 2)
        return Cost(shape["num_tokens"] * token_bytes, shape["num_tokens"] * token_flops)


OP = SpanPlacement()
