"""Rotates the queries and keys of a pass to their positions, and writes keys and values into the pool."""

from kernels.rope_write.dispatch import rope_write
from kernels.rope_write.record import Record

__all__ = ["Record", "rope_write"]
