"""Attention of ragged batches over a paged KV cache: prefill chunks, draft verification and decodes in one call."""

from kernels.paged_attention.batch import PagedBatch
from kernels.paged_attention.op import OP, can_split_head, run_paged_attention

__all__ = ["OP", "PagedBatch", "can_split_head", "run_paged_attention"]
