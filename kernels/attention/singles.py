"""Attention of one query in each of many sequences, at once."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def single_queries(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend from each sequence's last token to all of it.

    query: [num_seqs, num_heads, head_dim]; keys, values: [num_seqs, seq_len, num_kv_heads, head_dim], of which shorter
    sequences hide some; bias: [num_seqs, 1, 1, seq_len] in the query's dtype, 0, or -inf where a key is hidden (hidden
    values must be finite all the same). Returns [num_seqs, num_heads, head_dim].
    """
    num_seqs, num_heads, head_dim = query.shape
    packed = query.reshape(num_seqs, keys.shape[2], -1, head_dim)
    out = F.scaled_dot_product_attention(packed, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=bias)
    return out.reshape(num_seqs, num_heads, head_dim)
