"""The ops that have a Triton kernel, by name."""

from __future__ import annotations

from importlib import import_module

from kernels.op import Op

NAMES = ("paged_attention", "rope_write", "span_placement", "accept", "rms_norm", "swiglu")


def op_named(name: str) -> Op:
    """One op; raises ValueError with the names that there are."""
    if name not in NAMES:
        raise ValueError(f"there is no op {name!r}; there are {', '.join(NAMES)}")
    found: Op = import_module(f"kernels.{name}.op").OP
    return found
