"""SwiGLU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.native import elementwise
from kernels.op import Cost, Inputs, Shape, Variant, runs_triton
from kernels.winners import get_variant

__all__ = ["swiglu"]


Activation = Literal["silu", "gelu_tanh"]
"""Of the gate: SiLU, or GELU as approximated by tanh."""


def swiglu(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """Return `silu(gate) * up` of a fused projection: [num_tokens, 2 * ffn_size] -> [num_tokens, ffn_size].

    Rows of gate_up may have gaps between them. With another activation it is GeGLU.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [num_tokens, 2 * ffn_size], not {list(gate_up.shape)}")
    if not runs_triton(gate_up):
        run = elementwise.swiglu if elementwise.can_run(gate_up) else naive_swiglu
        return run(gate_up, activation)
    if gate_up.stride(1) != 1:
        raise ValueError("each row must be contiguous")
    out: Tensor
    (out,) = OP.run({"gate_up": gate_up, "activation": activation})
    return out


def naive_swiglu(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """Return `silu(gate) * up` of a fused projection, or GeGLU (Shazeer 2020, arXiv 2002.05202)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up


MAX_PER_THREAD = 32
"""Columns of a thread: gate and up of each are in registers at once."""

FEW_TOKENS = 16
"""Up to this many tokens, blocks must be narrow to give every processor of a card work."""


class Swiglu:
    """The op. A shape has num_tokens, ffn_size, and is_gelu (1) where it is GeGLU."""

    name = "swiglu"

    parity_shapes: Sequence[Shape] = (
        {"num_tokens": 1, "ffn_size": 1},
        {"num_tokens": 3, "ffn_size": 256},
        {"num_tokens": 2, "ffn_size": 257},
        {"num_tokens": 17, "ffn_size": 80},
        {"num_tokens": 2, "ffn_size": 2500},
        {"num_tokens": 3, "ffn_size": 130, "is_gelu": 1},
    )
    benchmark_shapes: Sequence[Shape] = (
        *({"num_tokens": each, "ffn_size": 8960} for each in (1, 64, 256, 8192)),
        *({"num_tokens": each, "ffn_size": 18944} for each in (1, 64, 256, 8192)),
    )
    space: Mapping[str, Sequence[int]] = {
        "BLOCK": (128, 256, 512, 1024, 2048, 4096),
        "PER_PROCESSOR": (0, 2, 8),
        "num_warps": (1, 2, 4, 8),
        "num_stages": (1, 3),
    }

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """Require a column for each thread, no more than registers hold, and stages only in a persistent program."""
        num_threads, has_loop = 32 * variant["num_warps"], variant["PER_PROCESSOR"] > 0
        fits = num_threads <= variant["BLOCK"] <= MAX_PER_THREAD * num_threads
        return fits and (has_loop or variant["num_stages"] == 1)

    def default(self, shape: Shape) -> Variant:
        """Return a 16-byte load of each half a thread, with narrow blocks for few tokens."""
        block = 256 if shape["num_tokens"] <= FEW_TOKENS else 1024
        return {"BLOCK": block, "PER_PROCESSOR": 0, "num_warps": block // 256, "num_stages": 1}

    def shape_class(self, shape: Shape) -> str:
        """Name the width, and the number of tokens rounded up to a power of 4."""
        most = next((str(4**power) for power in range(8) if shape["num_tokens"] <= 4**power), "more")
        return f"ffn_size={shape['ffn_size']} tokens<={most}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Make rows with NaN between them."""
        num_tokens, width = shape["num_tokens"], 2 * shape["ffn_size"]
        wide = torch.full((num_tokens, width + 16), torch.nan, dtype=dtype, device=device)
        drawn = torch.randn(num_tokens, width, device=device, generator=generator) * 3
        activation = "gelu_tanh" if shape.get("is_gelu") else "silu"
        return {"gate_up": wide[:, 8:-8].copy_(drawn.to(dtype)), "activation": activation}

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        from kernels.swiglu.kernel import launch

        gate_up = inputs["gate_up"]
        if variant is None:
            shape = {"num_tokens": gate_up.shape[0], "ffn_size": gate_up.shape[1] // 2}
            variant = get_variant(self, shape, gate_up.device, gate_up.dtype)
        return (launch(gate_up, inputs["activation"], variant),)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return (naive_swiglu(**inputs),)

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Return the two operations, and both compiled into one."""

        def eager() -> tuple[Tensor, ...]:
            return (naive_swiglu(**inputs),)

        return {"eager": eager, "compile": torch.compile(eager)}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Count two numbers read and one written for each column of each token, and 5 operations."""
        num_numbers = shape["num_tokens"] * shape["ffn_size"]
        return Cost(3 * num_numbers * dtype.itemsize, 5 * num_numbers)


OP = Swiglu()
