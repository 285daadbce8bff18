"""Causal attention over a contiguous KV cache."""

from kernels.attention.reference import causal_mask
from kernels.attention.sdpa import causal_attention

__all__ = ["causal_attention", "causal_mask"]
