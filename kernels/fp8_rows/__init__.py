"""Rows quantised to fp8 (e4m3), each with a scale of its own: the activations of a product with fp8 weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kernels.op import Cost, Inputs, Shape, Variant, round_up_to_power_of_2, runs_triton
from kernels.winners import get_variant

__all__ = ["quantise_to_fp8"]

FP8 = torch.float8_e4m3fn
FP8_MOST = 448.0
"""The largest number of the format."""
LEAST_SCALE = 1e-12
"""The scale of a row of zeros."""


def quantise_to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [num_rows, size] as fp8 times a scale for each row, float32 [num_rows, 1].

    A scale is the row's largest absolute value / 448; quotients are rounded to the nearest, ties to even. A row that
    holds a NaN or an infinity is NaN. Rows may have gaps between them.
    """
    if x.dim() != 2:
        raise ValueError(f"rows must be [num_rows, size], not {list(x.shape)}")
    if not runs_triton(x):
        return naive_quantise_to_fp8(x)
    if x.stride(1) != 1:
        raise ValueError("each row must be contiguous")
    values, scales = OP.run({"x": x})
    return values, scales


def naive_quantise_to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise by torch's operations."""
    x = x.float()
    scales = (x.abs().amax(dim=1, keepdim=True) / FP8_MOST).clamp_(min=LEAST_SCALE)
    return (x / scales).to(FP8), scales


MAX_PER_THREAD = 64
"""Numbers of a row that a thread keeps in registers."""


class Fp8Rows:
    """The op. A shape has num_rows and size."""

    name = "fp8_rows"

    parity_shapes: Sequence[Shape] = (
        {"num_rows": 1, "size": 1},
        {"num_rows": 3, "size": 256},
        {"num_rows": 2, "size": 257},
        {"num_rows": 17, "size": 80},
        {"num_rows": 2, "size": 4864},
    )
    benchmark_shapes: Sequence[Shape] = tuple(
        {"num_rows": num_rows, "size": size} for size in (3584, 18944) for num_rows in (1, 64, 1024)
    )
    space: Mapping[str, Sequence[int]] = {"num_warps": (1, 2, 4, 8, 16, 32)}

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """Require a number for each thread, and no more than registers hold."""
        return 1 <= max(32, round_up_to_power_of_2(shape["size"])) // (32 * variant["num_warps"]) <= MAX_PER_THREAD

    def default(self, shape: Shape) -> Variant:
        """Return 8 numbers a thread, a load of 16 bytes, as far as a block has threads for that."""
        return {"num_warps": min(32, max(1, round_up_to_power_of_2(shape["size"]) // (32 * 8)))}

    def shape_class(self, shape: Shape) -> str:
        """Name the size, and the number of rows rounded up to a power of 4."""
        most = next((str(4**power) for power in range(8) if shape["num_rows"] <= 4**power), "more")
        return f"size={shape['size']} rows<={most}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Make rows with NaN between them, one of them zero, and of others one number far above the rest."""
        num_rows, size = shape["num_rows"], shape["size"]
        wide = torch.full((num_rows, size + 16), torch.nan, dtype=dtype, device=device)
        drawn = torch.randn(num_rows, size, device=device, generator=generator) * 3
        drawn[1::2, -1] *= 500
        drawn[2::3] = 0
        return {"x": wide[:, 8:-8].copy_(drawn.to(dtype))}

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        from kernels.fp8_rows.kernel import launch

        x = inputs["x"]
        if variant is None:
            variant = get_variant(self, {"num_rows": x.shape[0], "size": x.shape[1]}, x.device, x.dtype)
        return launch(x, FP8_MOST, LEAST_SCALE, variant)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return float32's result whatever the dtype of the inputs: rounding to 8 bits shows every other one."""
        values, scales = naive_quantise_to_fp8(inputs["x"])
        return values.float(), scales

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Return the operations, and all compiled into one."""
        x = inputs["x"]

        def eager() -> tuple[Tensor, ...]:
            return naive_quantise_to_fp8(x)

        return {"eager": eager, "compile": torch.compile(eager)}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Count each number read once and written in a byte, and 3 operations."""
        num_numbers = shape["num_rows"] * shape["size"]
        return Cost(num_numbers * (dtype.itemsize + 1) + 4 * shape["num_rows"], 3 * num_numbers)


OP = Fp8Rows()
