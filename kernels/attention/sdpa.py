"""Causal grouped-query attention on torch's fused scaled-dot-product attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def causal_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """As `reference.causal_attention`; `mask` is `causal_mask(...)`, or None for a single query, which sees all.

    A sliding window is in the mask; keys that no query sees need not be given.

    One query is packed with its group into rows of one KV head: torch's CPU kernel is ten times slower in bf16 when
    it is given one row a head (0.16 ms against 1.5 ms over 1,500 keys).
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[0]
    if num_tokens == 1:
        packed = query.view(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(packed, keys[None], values[None])
        return out.reshape(1, num_heads, head_dim)
    heads_first = query.transpose(0, 1)[None]
    grouped = num_heads != num_kv_heads
    out = F.scaled_dot_product_attention(heads_first, keys[None], values[None], attn_mask=mask, enable_gqa=grouped)
    return out[0].transpose(0, 1)
