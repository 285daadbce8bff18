"""Checks shapes and picks the implementation by device."""

from __future__ import annotations

from torch import Tensor

from kernels.paged_attention import reference
from kernels.paged_attention.batch import PagedBatch


def paged_attention(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None = None
) -> Tensor:
    """Attend from a batch's queries to what each sees of its sequence.

    query: [num_tokens, num_heads, head_dim]; pool_keys, pool_values: [num_slots, num_kv_heads, head_dim], the query
    heads [g * group, (g + 1) * group) look at KV head g. Returns [num_tokens, num_heads, head_dim]. A row that sees
    nothing is NaN.
    """
    return reference.paged_attention(query, pool_keys, pool_values, batch, window)
