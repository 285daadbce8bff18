"""Where the keys and values of a pass are kept beside the pool: keys before RoPE, for any later position."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Record:
    """Rows of a store. A token whose slot is negative is not kept."""

    slots: Tensor  # int64 [num_tokens], no two the same
    keys: Tensor  # [num_stored, num_kv_heads, head_dim]
    values: Tensor
