"""Tuning of a kernel's constants: searched on the installed card, stored in a file, looked up at launch."""

from kernels.tuner.store import get_variant, use_folder

__all__ = ["get_variant", "use_folder"]
