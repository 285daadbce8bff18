"""Rotates the queries and keys of a step, and writes keys and values to the KV pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.attention.kv_format import SCALE_BYTES, encode_heads
from kernels.op import Cost, Inputs, Shape, Variant, round_up_to_power_of_2, runs_triton
from kernels.rope import Record, apply_rope, fusible_rope
from kernels.winners import get_variant

__all__ = ["Record", "rope_write"]


def rope_write(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor | None,
    num_heads: int,
    record: Record | None = None,
    key_bias: Tensor | None = None,
    key_scales: Tensor | None = None,
) -> Tensor:
    """Rotate a layer's queries and keys, write keys and values to the pool, and return the queries.

    heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], the fused projection: queries, keys, values. cos, sin:
    float32 [num_tokens, head_dim // 2], the table's rows for the tokens' positions. slots: int64 [num_tokens], distinct
    rows of pool_keys and pool_values, [num_slots, num_kv_heads, head_dim]; tokens with a negative slot are not written,
    which pads a captured graph. record: also keeps values and the keys before RoPE. All tensors are contiguous; heads,
    pools and record have one dtype. Queries and keys are rotated in float32 and rounded once, with the bits of
    `kernels.rope.apply_rope`.

    Pools and record in int8 are uint8 [num_slots, num_kv_heads, head_dim + 2] (`kernels.attention.KVFormat`). key_bias,
    key_scales: float32 [num_kv_heads, head_dim], for int8 alone: keys with RoPE are divided by the scales and queries
    multiplied, and recorded keys are stored without the bias. Both numbers of a pair have one scale, a power of two.

    With latent attention there are no values: pool_values is None, the record's, too, and heads are queries and keys.

    Returns [num_tokens, num_heads, head_dim]. `heads` is not changed.
    """
    _check(heads, cos, sin, slots, pool_keys, pool_values, num_heads)
    if record is not None:
        _check(heads, cos, sin, record.slots, record.keys, record.values, num_heads)
    if not runs_triton(heads):
        return naive_rope_write(heads, cos, sin, slots, pool_keys, pool_values, num_heads, record, key_bias, key_scales)
    query: Tensor
    query, *_ = OP.run(
        {
            "heads": heads,
            "cos": cos,
            "sin": sin,
            "slots": slots,
            "pool_keys": pool_keys,
            "pool_values": pool_values,
            "num_heads": num_heads,
            "record": record,
            "key_bias": key_bias,
            "key_scales": key_scales,
        }
    )
    return query


def _check(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor | None,
    num_heads: int,
) -> None:
    num_tokens, num_all, head_dim = heads.shape
    num_kv_heads, is_int8 = pool_keys.shape[1], pool_keys.dtype == torch.uint8
    pools = [pool_keys] if pool_values is None else [pool_keys, pool_values]
    if any(each.shape != (*pool_keys.shape[:2], head_dim + (SCALE_BYTES if is_int8 else 0)) for each in pools):
        raise ValueError(
            f"heads of {head_dim} do not fit pools {' and '.join(str(list(each.shape)) for each in pools)}"
        )
    if num_all != num_heads + len(pools) * num_kv_heads:
        raise ValueError(f"{num_all} heads are not {num_heads} queries and {num_kv_heads} keys and values")
    if not cos.shape == sin.shape == (num_tokens, head_dim // 2):
        raise ValueError(f"angles {list(cos.shape)} and {list(sin.shape)} do not fit heads {list(heads.shape)}")
    if slots.shape != (num_tokens,):
        raise ValueError(f"{num_tokens} tokens need as many slots, not {list(slots.shape)}")
    if pools[-1].dtype != pool_keys.dtype or (heads.dtype != pool_keys.dtype and not is_int8):
        raise ValueError(f"heads are {heads.dtype}, the pools {pool_keys.dtype} and {pools[-1].dtype}")
    if not all(each.is_contiguous() for each in (heads, cos, sin, slots, *pools)):
        raise ValueError("heads, angles, slots and pools must be contiguous")


def naive_rope_write(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor | None,
    num_heads: int,
    record: Record | None = None,
    key_bias: Tensor | None = None,
    key_scales: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.rope_write.rope_write` with plain torch operations."""
    is_int8, num_kv_heads = pool_keys.dtype == torch.uint8, pool_keys.shape[1]
    num_rotated = num_heads + num_kv_heads
    wide = heads.float() if is_int8 else heads
    rotated = apply_rope(wide[:, :num_rotated], cos, sin)
    query, keys = rotated[:, :num_heads], rotated[:, num_heads:]
    before_rope, values = wide[:, num_heads:num_rotated], wide[:, num_rotated:]
    if is_int8:
        if key_scales is not None:
            query, keys = query * key_scales.repeat_interleave(num_heads // num_kv_heads, dim=0), keys / key_scales
        before_rope = before_rope if key_bias is None else before_rope - key_bias
        keys, before_rope = map(encode_heads, (keys, before_rope))
        values = values if pool_values is None else encode_heads(values)
    _write(pool_keys, slots, keys)
    _write(pool_values, slots, values)
    if record is not None:
        _write(record.keys, record.slots, before_rope)
        _write(record.values, record.slots, values)
    return query.to(heads.dtype).contiguous()


def _write(rows: Tensor | None, slots: Tensor, values: Tensor) -> None:
    if rows is not None:
        written = slots >= 0
        rows[slots[written]] = values[written]


SPARE_SLOTS = 5
"""Slots of the pool that no token is written to."""

MAX_PAIRS = 8192
"""The most pairs that a program rotates: 64 a thread of 4 warps, which registers hold together with the angles."""


class RopeWrite:
    """The op. A shape has num_tokens, num_heads, num_kv_heads, head_dim and is_recorded (0 or 1); `int8` (1) where keys
    and values are stored so; `latent` (1) where there are no values.
    """

    name = "rope_write"

    parity_shapes: Sequence[Shape] = (
        {"num_tokens": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 64, "is_recorded": 0},
        {"num_tokens": 5, "num_heads": 7, "num_kv_heads": 1, "head_dim": 128, "is_recorded": 1},
        {"num_tokens": 9, "num_heads": 6, "num_kv_heads": 3, "head_dim": 64, "is_recorded": 0},
        {"num_tokens": 17, "num_heads": 4, "num_kv_heads": 2, "head_dim": 24, "is_recorded": 1},
        {"num_tokens": 3, "num_heads": 2, "num_kv_heads": 2, "head_dim": 256, "is_recorded": 1},
        {"num_tokens": 7, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "is_recorded": 1, "int8": 1},
        {"num_tokens": 3, "num_heads": 3, "num_kv_heads": 3, "head_dim": 24, "is_recorded": 0, "int8": 1},
        {"num_tokens": 5, "num_heads": 4, "num_kv_heads": 1, "head_dim": 576, "is_recorded": 1, "latent": 1},
        {"num_tokens": 4, "num_heads": 3, "num_kv_heads": 1, "head_dim": 48, "is_recorded": 1, "int8": 1, "latent": 1},
    )
    benchmark_shapes: Sequence[Shape] = tuple(
        {"num_tokens": each, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": 128, "is_recorded": kept}
        for num_heads, num_kv_heads in ((12, 2), (28, 4))
        for each, kept in ((1, 0), (64, 0), (64, 1), (256, 0), (8192, 0), (8192, 1))
    ) + tuple(
        {"num_tokens": each, "num_heads": 28, "num_kv_heads": 4, "head_dim": 128, "is_recorded": 1, "int8": 1}
        for each in (64, 8192)
    )
    space: Mapping[str, Sequence[int]] = {
        "block_tokens": (1, 2, 4, 8, 16, 32),
        "block_heads": (1, 2, 4, 8),
        "num_warps": (1, 2, 4, 8),
        "num_stages": (1,),
    }

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """Require no more pairs than registers hold, and no more threads than pairs."""
        num_pairs = variant["block_tokens"] * variant["block_heads"] * _block_half(shape)
        return 32 * variant["num_warps"] <= num_pairs <= MAX_PAIRS

    def default(self, shape: Shape) -> Variant:
        """Return 2,048 pairs a program for a prefill and 1,024 otherwise, so that only two kernels are compiled."""
        num_pairs = 2048 if shape["num_tokens"] > 512 else 1024
        block_heads = min(4, round_up_to_power_of_2(shape["num_kv_heads"]))
        token_pairs = block_heads * _block_half(shape)
        block_tokens = max(1, min(32, num_pairs // token_pairs))
        num_warps = max(1, min(4, block_tokens * token_pairs // 256))  # 8 numbers a thread: loads of 16 bytes
        return {"block_tokens": block_tokens, "block_heads": block_heads, "num_warps": num_warps, "num_stages": 1}

    def shape_class(self, shape: Shape) -> str:
        """Name the heads, and the number of tokens rounded up to a power of 4."""
        tokens = next(each for each in (1, 4, 16, 64, 256, 1024, 4096, 1 << 62) if shape["num_tokens"] <= each)
        most = "more" if tokens == 1 << 62 else str(tokens)
        heads = f"heads={shape['num_heads']}+{shape['num_kv_heads']} head_dim={shape['head_dim']}"
        return f"{heads} recorded={shape['is_recorded']} tokens<={most}" + "".join(
            f" {name}" for name in ("int8", "latent") if shape.get(name)
        )

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Make angles of any positions; from three tokens on, one token is not written and another one not recorded."""
        num_tokens, num_kv_heads, head_dim = shape["num_tokens"], shape["num_kv_heads"], shape["head_dim"]
        is_latent = bool(shape.get("latent"))
        num_all = shape["num_heads"] + (1 if is_latent else 2) * num_kv_heads
        angles = torch.randn(num_tokens, head_dim // 2, device=device, generator=generator) * 100
        num_slots = num_tokens + SPARE_SLOTS
        slots, record_slots = (
            torch.randperm(num_slots, device=device, generator=generator)[:num_tokens] for _ in range(2)
        )
        if num_tokens > 2:
            slots[1] = record_slots[2] = -1
        is_int8, sizes = bool(shape.get("int8")), (4, num_slots, num_kv_heads)
        key_bias = key_scales = None
        if is_int8:
            pools = torch.full((*sizes, head_dim + SCALE_BYTES), 255, dtype=torch.uint8, device=device)
            key_bias = torch.randn(num_kv_heads, head_dim, device=device, generator=generator) * 30
            powers = torch.randint(4, (num_kv_heads, head_dim // 2), device=device, generator=generator)
            key_scales = torch.exp2(powers.float()).repeat(1, 2)
        else:
            pools = torch.full((*sizes, head_dim), torch.nan, dtype=dtype, device=device)
        return {
            "heads": torch.randn(num_tokens, num_all, head_dim, device=device, generator=generator).to(dtype),
            "cos": angles.cos(),
            "sin": angles.sin(),
            "slots": slots,
            "pool_keys": pools[0],
            "pool_values": None if is_latent else pools[1],
            "num_heads": shape["num_heads"],
            "record": Record(record_slots, pools[2], None if is_latent else pools[3]) if shape["is_recorded"] else None,
            "key_bias": key_bias,
            "key_scales": key_scales,
        }

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        from kernels.rope_write.kernel import launch

        heads, pool_keys = inputs["heads"], inputs["pool_keys"]
        if variant is None:
            shape = {
                "num_tokens": heads.shape[0],
                "num_heads": inputs["num_heads"],
                "num_kv_heads": pool_keys.shape[1],
                "head_dim": heads.shape[2],
                "is_recorded": int(inputs["record"] is not None),
                "int8": int(pool_keys.dtype == torch.uint8),
                "latent": int(inputs["pool_values"] is None),
            }
            variant = get_variant(self, shape, heads.device, heads.dtype)
        return _list_outputs(launch(**inputs, variant=variant), inputs)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        if inputs["pool_keys"].dtype == torch.uint8:
            return self._reference_int8(inputs)
        return _list_outputs(naive_rope_write(**inputs), inputs)

    def _reference_int8(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Compute in float32 on a CPU: integers are to be equal, so roundings are to be the same."""

        def move(value: Any) -> Any:
            if isinstance(value, Record):
                return Record(*map(move, (value.slots, value.keys, value.values)))
            if not isinstance(value, Tensor):
                return value
            return value.cpu().float() if value.is_floating_point() else value.cpu()

        own, device = {name: move(value) for name, value in inputs.items()}, inputs["heads"].device
        return tuple(each.to(device) for each in _list_outputs(naive_rope_write(**own), own))

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Return the operations one by one, and compiled; which tokens are written is known beforehand. Of int8 there
        are none.
        """
        if inputs["pool_keys"].dtype == torch.uint8:
            return {}
        heads, cos, sin, num_heads = (inputs[name] for name in ("heads", "cos", "sin", "num_heads"))
        num_rotated = num_heads + inputs["pool_keys"].shape[1]
        written, slots = _find_written_rows(inputs["slots"])
        record: Record | None = inputs["record"]
        recorded, record_slots = _find_written_rows(inputs["slots"] if record is None else record.slots)

        def make_baseline(rope: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
            def call() -> tuple[Tensor, ...]:
                rotated = rope(heads[:, :num_rotated], cos, sin)
                inputs["pool_keys"].index_copy_(0, slots, rotated[written, num_heads:])
                if inputs["pool_values"] is not None:
                    inputs["pool_values"].index_copy_(0, slots, heads[written, num_rotated:])
                if record is not None:
                    record.keys.index_copy_(0, record_slots, heads[recorded, num_heads:num_rotated])
                    if record.values is not None:
                        record.values.index_copy_(0, record_slots, heads[recorded, num_rotated:])
                return _list_outputs(rotated[:, :num_heads].contiguous(), inputs)

            return call

        return {"eager": make_baseline(apply_rope), "compile": torch.compile(make_baseline(fusible_rope))}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Count every head read and written (recorded keys and values twice), and angles and slots read.

        A pair takes four products and two sums.
        """
        num_heads, num_kv_heads, is_recorded = (shape[name] for name in ("num_heads", "num_kv_heads", "is_recorded"))
        num_parts = 1 if shape.get("latent") else 2
        num_moved = (
            2 * num_heads + num_parts * num_kv_heads
        )  # numbers of heads; keys and values are written as they are stored
        head_bytes = shape["head_dim"] + SCALE_BYTES if shape.get("int8") else shape["head_dim"] * dtype.itemsize
        stored_bytes = num_parts * num_kv_heads * (1 + is_recorded) * head_bytes
        angle_bytes = shape["head_dim"] * torch.float32.itemsize
        slot_bytes = (1 + is_recorded) * torch.int64.itemsize
        token_bytes = num_moved * shape["head_dim"] * dtype.itemsize + stored_bytes + angle_bytes + slot_bytes
        token_flops = 6 * (num_heads + num_kv_heads) * (shape["head_dim"] // 2)
        return Cost(shape["num_tokens"] * token_bytes, shape["num_tokens"] * token_flops)


def _list_outputs(query: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
    record: Record | None = inputs["record"]
    recorded = () if record is None else (record.keys, record.values)
    written = query, inputs["pool_keys"], inputs["pool_values"], *recorded
    return tuple(each for each in written if each is not None)


def _find_written_rows(slots: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that are written, and their slots."""
    rows = (slots >= 0).nonzero().flatten()
    return rows, slots[rows]


def _block_half(shape: Shape) -> int:
    return round_up_to_power_of_2(shape["head_dim"] // 2)


OP = RopeWrite()
