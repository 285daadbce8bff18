"""Attention of ragged batches over paged keys and values: prefill chunks, verify passes and decodes in one call."""

from kernels.paged_attention.batch import TREE_BITS, PagedBatch, causal_key_ends
from kernels.paged_attention.op import paged_attention

__all__ = ["TREE_BITS", "PagedBatch", "causal_key_ends", "paged_attention"]
