"""Attention of ragged batches over a paged KV cache: prefill chunks, draft verification and decodes in one call."""

from kernels.paged_attention.batch import PagedBatch
from kernels.paged_attention.op import MIN_HEAD_DIM, OP, run_paged_attention

__all__ = ["MIN_HEAD_DIM", "OP", "PagedBatch", "run_paged_attention"]
