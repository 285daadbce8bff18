"""Placing stored keys and values written out: what the fast way is compared with."""

from __future__ import annotations

from torch import Tensor

from kernels.rope import apply_rope


def place(
    keys: Tensor,
    values: Tensor,
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    target_slots: Tensor,
) -> None:
    """As `kernels.span_placement.place`, what is stored on any device."""
    pool_keys[target_slots] = apply_rope(keys[source_slots].to(pool_keys.device), cos, sin)
    pool_values[target_slots] = values[source_slots].to(pool_values.device)
