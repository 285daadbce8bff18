"""Accepting a draft."""

from kernels.accept.reference import num_accepted

__all__ = ["num_accepted"]
