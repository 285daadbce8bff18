"""Rotary position embedding."""

from kernels.rope.reference import apply_rope, rope_table, rotate

__all__ = ["apply_rope", "rope_table", "rotate"]
