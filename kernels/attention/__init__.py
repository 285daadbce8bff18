"""Attention over keys and values that lie in several pieces of memory."""

from kernels.attention.dispatch import causal_attention, scattered_attention
from kernels.attention.invariant import invariant_attention
from kernels.attention.runs import Run, first_keys
from kernels.attention.scratch import Scratch
from kernels.attention.singles import single_queries

__all__ = [
    "Run",
    "Scratch",
    "causal_attention",
    "first_keys",
    "invariant_attention",
    "scattered_attention",
    "single_queries",
]
