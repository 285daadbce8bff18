"""What parity, tuner and benchmark need to know of SwiGLU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kernels.op import Cost, Inputs, Shape, Variant
from kernels.swiglu import reference
from kernels.tuner import variant_for

MOST_PER_THREAD = 32
"""Columns of a thread: gate and up of each are in registers at once."""

FEW_TOKENS = 16
"""Of so many, a narrow block of each is needed for every processor of a card to have work."""


class Swiglu:
    """The `Op`. A shape: num_tokens and ffn_size."""

    name = "swiglu"

    parity_shapes: Sequence[Shape] = (
        {"num_tokens": 1, "ffn_size": 1},
        {"num_tokens": 3, "ffn_size": 256},
        {"num_tokens": 2, "ffn_size": 257},
        {"num_tokens": 17, "ffn_size": 80},
        {"num_tokens": 2, "ffn_size": 2500},
    )
    timed_shapes: Sequence[Shape] = (
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
        """A column for each thread, and not more than registers hold; stages where a program takes several tokens."""
        num_threads, has_loop = 32 * variant["num_warps"], variant["PER_PROCESSOR"] > 0
        fits = num_threads <= variant["BLOCK"] <= MOST_PER_THREAD * num_threads
        return fits and (has_loop or variant["num_stages"] == 1)

    def default(self, shape: Shape) -> Variant:
        """A 16-byte load of each half a thread; narrow blocks for few tokens."""
        block = 256 if shape["num_tokens"] <= FEW_TOKENS else 1024
        return {"BLOCK": block, "PER_PROCESSOR": 0, "num_warps": block // 256, "num_stages": 1}

    def shape_class(self, shape: Shape) -> str:
        """The width, and the number of tokens up to its next power of 4."""
        most = next((str(4**power) for power in range(8) if shape["num_tokens"] <= 4**power), "more")
        return f"ffn_size={shape['ffn_size']} tokens<={most}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Rows with NaN between them."""
        num_tokens, width = shape["num_tokens"], 2 * shape["ffn_size"]
        wide = torch.full((num_tokens, width + 16), torch.nan, dtype=dtype, device=device)
        drawn = torch.randn(num_tokens, width, device=device, generator=generator) * 3
        return {"gate_up": wide[:, 8:-8].copy_(drawn.to(dtype))}

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        """The kernel."""
        from kernels.swiglu.kernel import launch

        gate_up = inputs["gate_up"]
        if variant is None:
            shape = {"num_tokens": gate_up.shape[0], "ffn_size": gate_up.shape[1] // 2}
            variant = variant_for(self, shape, gate_up.device, gate_up.dtype)
        return (launch(gate_up, variant),)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Plain torch."""
        return (reference.swiglu(inputs["gate_up"]),)

    def torch_ways(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Its two operations, and both compiled into one."""
        gate_up = inputs["gate_up"]

        def eager() -> tuple[Tensor, ...]:
            return (reference.swiglu(gate_up),)

        return {"eager": eager, "compile": torch.compile(eager)}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Two numbers in and one out for each column of each token, by 5 operations."""
        num_numbers = shape["num_tokens"] * shape["ffn_size"]
        return Cost(3 * num_numbers * dtype.itemsize, 5 * num_numbers)


OP = Swiglu()
