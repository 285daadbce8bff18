"""Rotates the queries and keys of a pass to their positions, and writes keys and values into the pool."""

from kernels.rope_write.dispatch import rope_write

__all__ = ["rope_write"]
