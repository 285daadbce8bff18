"""A kernel's constants: searched on the card that is there, kept in a file, looked up where a kernel is launched."""

from kernels.tuning.winners import variant_for

__all__ = ["variant_for"]
