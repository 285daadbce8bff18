"""SwiGLU in plain PyTorch (Shazeer 2020, arXiv 2002.05202)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of a fused projection: [num_tokens, 2 * ffn_size] -> [num_tokens, ffn_size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
