"""A kernel's constants: searched on the card that is there, kept in a file, looked up where a kernel is launched."""

from kernels.tuner.store import use_folder, variant_for

__all__ = ["use_folder", "variant_for"]
