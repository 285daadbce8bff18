"""Launches the Triton kernels of paged attention: the grid, the chunks' memory, the merge. It waits for no device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.backend import is_interpreting
from kernels.op import Variant
from kernels.paged_attention.batch import TREE_BITS, PagedBatch
from kernels.paged_attention.variants import fitted

LOG2_E = 1.4426950408889634
SEQS_AT_ONCE = 128
"""Sequences that a program looks through with one load for its own."""

CHUNKS_AT_ONCE = 32
"""Shares that the merge has in flight: 16 KB of a head of 128, 32 numbers a thread."""

HOPPER = 9
"""Of compute capabilities."""

SHARED_BYTES = 99 * 1024
"""Shared memory of a block where a card does not say: what the smallest cards have that multiply bfloat16."""


def attend(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None, variant: Variant
) -> Tensor:
    """As `kernels.paged_attention.paged_attention`, with a kernel of these constants."""
    from kernels.paged_attention import kernel

    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = pool_keys.shape[1]
    group = num_heads // num_kv_heads
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if num_tokens == 0:
        return out
    if not is_interpreting():
        on_hopper, most_bytes = _card(query.device)
        variant = fitted(variant, head_dim, query.dtype, batch.tree is not None, on_hopper, most_bytes)
    rows, num_chunks = variant["rows"], num_chunks_of(batch.most_keys, variant)
    shape = (num_chunks, num_tokens, num_heads)
    is_cut = num_chunks > 1
    shares = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device) if is_cut else out
    levels = torch.empty(shape, dtype=torch.float32, device=query.device) if is_cut else None
    one_block = batch.most_queries * group <= rows
    num_blocks = batch.num_seqs if one_block else num_tokens * group // rows + batch.num_seqs
    kernel.attend[(num_blocks, num_kv_heads, num_chunks)](
        shares,
        levels,
        query,
        pool_keys,
        pool_values,
        batch.page_table,
        batch.query_starts,
        batch.seq_lens,
        batch.key_ends,
        batch.tree_starts,
        batch.tree,
        batch.num_seqs,
        num_tokens,
        0 if batch.tree is None else batch.tree.shape[1],
        batch.page_table.stride(0),
        batch.page_table.shape[1] * batch.page_size,
        variant["chunk"],
        LOG2_E / head_dim**0.5,
        query.stride(0),
        query.stride(1),
        SLOT_STRIDE=pool_keys.stride(0),
        HEAD_STRIDE=pool_keys.stride(1),
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE_SIZE=batch.page_size,
        WINDOW=window or 0,
        TREE_BITS=0 if batch.tree is None else TREE_BITS,
        ROWS=rows,
        KEYS=variant["keys"],
        IS_CUT=is_cut,
        ONE_BLOCK=one_block,
        ONE_SEQ=batch.num_seqs == 1,
        LANES=SEQS_AT_ONCE,
        num_warps=variant["num_warps"],
        num_stages=variant["num_stages"],
        enable_fp_fusion=True,
    )
    if is_cut:
        num_rows = num_tokens * num_heads
        kernel.merge[(num_rows,)](
            out,
            shares,
            levels,
            num_chunks,
            num_rows,
            HEAD_DIM=head_dim,
            CHUNKS=CHUNKS_AT_ONCE,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


def num_chunks_of(num_keys: int, variant: Variant) -> int:
    """In how many chunks a kernel of these constants takes so many keys."""
    return -(-num_keys // variant["chunk"]) if variant["chunk"] else 1


@cache
def _card(device: torch.device) -> tuple[bool, int]:
    """Whether it is a Hopper, and the shared memory that a block may take."""
    properties = torch.cuda.get_device_properties(device)
    return properties.major == HOPPER, getattr(properties, "shared_memory_per_block_optin", SHARED_BYTES)
