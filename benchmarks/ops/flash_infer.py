"""The door to FlashInfer, a peer for attention over pages, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kernels.op import Inputs, Op
from kernels.paged_attention import PagedBatch

NAME = "flashinfer"
WORKSPACE_BYTES = 256 << 20


def absence() -> str | None:
    """Why it does not take part; None where it does."""
    if find_spec(NAME) is None:
        return "FlashInfer is not installed and takes no part; `pip install flashinfer-python` brings it"
    return None


def ways(op: Op, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
    """Batch prefill with a paged KV cache; nothing for other ops or drafts that fork, or where it is absent."""
    if op.name != "paged_attention" or absence() is not None:
        return {}
    batch: PagedBatch = inputs["batch"]
    if batch.tree is not None:
        return {}
    query, keys, values = inputs["query"], inputs["pool_keys"], inputs["pool_values"]
    prepared = _planned(query, keys, batch, inputs.get("window"))
    paged = tuple(_by_page(pool, batch.page_size) for pool in (keys, values))
    return {NAME: lambda: (prepared.run(query, paged),)}


def _planned(query: Tensor, keys: Tensor, batch: PagedBatch, window: int | None) -> Any:
    """A wrapper that knows the batch; scattered queries take a mask of every query and key."""
    prepared = import_module(NAME).BatchPrefillWithPagedKVCacheWrapper(_workspace(query.device), "NHD")
    is_causal = torch.equal(batch.key_ends.cpu(), _causal_ends(batch))
    prepared.plan(
        batch.query_starts,
        *page_index(batch),
        num_qo_heads=query.shape[1],
        num_kv_heads=keys.shape[1],
        head_dim_qk=query.shape[2],
        page_size=batch.page_size,
        causal=is_causal,
        custom_mask=None if is_causal else mask(batch),
        window_left=-1 if window is None else window - 1,
        q_data_type=query.dtype,
        kv_data_type=keys.dtype,
    )
    return prepared


def page_index(batch: PagedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """The pages of all sequences behind one another, as FlashInfer takes them.

    int32: where each sequence's begin, [num_seqs + 1]; the pages; how many tokens its last one holds, [num_seqs].
    """
    num_pages = -(-batch.seq_lens // batch.page_size)
    starts = torch.cat([torch.zeros_like(num_pages[:1]), num_pages.cumsum(0)]).to(torch.int32)
    pages = [row[:count] for row, count in zip(batch.page_table, num_pages.tolist(), strict=True)]
    return starts, torch.cat(pages), (batch.seq_lens - (num_pages - 1) * batch.page_size).to(torch.int32)


def mask(batch: PagedBatch) -> Tensor:
    """Whether a query sees a key, bool, [num_queries, num_keys] of each sequence, flattened and behind one another."""
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    parts = [
        torch.arange(seq_len, device=batch.key_ends.device)[None] < batch.key_ends[starts[at] : starts[at + 1], None]
        for at, seq_len in enumerate(lens)
    ]
    return torch.cat([part.flatten() for part in parts])


def _causal_ends(batch: PagedBatch) -> Tensor:
    """`key_ends` if each sequence's queries are its last tokens."""
    starts = batch.query_starts.tolist()
    spans = zip(batch.seq_lens.tolist(), starts, starts[1:], strict=True)
    return torch.cat([torch.arange(end - last + first + 1, end + 1, dtype=torch.int32) for end, first, last in spans])


def _by_page(pool: Tensor, page_size: int) -> Tensor:
    """[num_slots, num_kv_heads, head_dim] as [num_pages, page_size, num_kv_heads, head_dim]."""
    return pool.view(-1, page_size, *pool.shape[1:])


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
