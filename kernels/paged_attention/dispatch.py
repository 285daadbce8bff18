"""Checks shapes and picks the implementation by device."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.backend import runs_triton
from kernels.op import Shape
from kernels.paged_attention import reference
from kernels.paged_attention.batch import PagedBatch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LEAST_HEAD_DIM = 16
"""What a product of matrices takes on a card at least."""


def paged_attention(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None = None
) -> Tensor:
    """Attend from a batch's queries to what each sees of its sequence.

    query: [num_tokens, num_heads, head_dim]; pool_keys, pool_values: [num_slots, num_kv_heads, head_dim], the query
    heads [g * group, (g + 1) * group) look at KV head g. Returns [num_tokens, num_heads, head_dim], contiguous. A row
    that sees nothing is NaN; what rows get that belong to no sequence is not said.

    The kernel waits for nothing of the device. Raises ValueError where shapes, dtypes or devices do not fit.
    """
    _check_tensors(query, pool_keys, pool_values)
    _check_batch(query, batch, window)
    if not runs_triton(query):
        return reference.paged_attention(query, pool_keys, pool_values, batch, window)
    from kernels.paged_attention.launch import attend
    from kernels.paged_attention.op import OP
    from kernels.tuning import variant_for

    _check_kernel_layout(query, pool_keys, pool_values, batch)
    shape = shape_of(query, pool_keys, batch, window)
    return attend(query, pool_keys, pool_values, batch, window, variant_for(OP, shape, query.device, query.dtype))


def shape_of(query: Tensor, pool_keys: Tensor, batch: PagedBatch, window: int | None) -> Shape:
    """What is known of a batch without asking the device."""
    num_kv_heads, head_dim = pool_keys.shape[1:]
    return {
        "num_seqs": batch.num_seqs,
        "num_rows": batch.most_queries,
        "num_keys": batch.most_keys,
        "num_kv_heads": num_kv_heads,
        "group": query.shape[1] // num_kv_heads,
        "head_dim": head_dim,
        "page_size": batch.page_size,
        "window": window or 0,
        "branches": int(batch.tree is not None),
    }


def _check_tensors(query: Tensor, pool_keys: Tensor, pool_values: Tensor) -> None:
    if query.dim() != 3 or pool_keys.dim() != 3:
        raise ValueError(
            "query is [num_tokens, num_heads, head_dim] and a pool [num_slots, num_kv_heads, head_dim], not "
            f"{list(query.shape)} and {list(pool_keys.shape)}"
        )
    if pool_keys.shape != pool_values.shape:
        raise ValueError(f"keys are {list(pool_keys.shape)} and values {list(pool_values.shape)}")
    num_heads, num_kv_heads = query.shape[1], pool_keys.shape[1]
    if num_kv_heads == 0 or num_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are no multiple of {num_kv_heads} KV heads")
    if query.shape[2] != pool_keys.shape[2]:
        raise ValueError(f"query heads are {query.shape[2]} wide and keys {pool_keys.shape[2]}")
    if not query.dtype == pool_keys.dtype == pool_values.dtype:
        raise ValueError(f"query is {query.dtype}, keys {pool_keys.dtype} and values {pool_values.dtype}")
    if not query.device == pool_keys.device == pool_values.device:
        raise ValueError(f"query is on {query.device}, keys on {pool_keys.device}, values on {pool_values.device}")


def _check_batch(query: Tensor, batch: PagedBatch, window: int | None) -> None:
    num_tokens, num_seqs = len(query), batch.num_seqs
    if batch.query_starts.shape != (num_seqs + 1,) or batch.page_table.shape[:1] != (num_seqs,):
        raise ValueError(
            f"of {num_seqs} sequences, query_starts is [{num_seqs + 1}] and page_table [{num_seqs}, most_pages], not "
            f"{list(batch.query_starts.shape)} and {list(batch.page_table.shape)}"
        )
    if batch.key_ends.shape != (num_tokens,):
        raise ValueError(f"{num_tokens} rows have as many key_ends, not {list(batch.key_ends.shape)}")
    if batch.page_table.dim() != 2 or batch.page_table.shape[1] * batch.page_size < batch.most_keys:
        raise ValueError(
            f"most_keys is {batch.most_keys}, and page_table {list(batch.page_table.shape)} of {batch.page_size} slots"
        )
    if (batch.tree is None) != (batch.tree_starts is None):
        raise ValueError("a batch has both tree and tree_starts, or neither")
    if batch.tree is not None and batch.tree_starts is not None:
        _check_tree(num_tokens, num_seqs, batch.tree, batch.tree_starts)
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} places shows nothing")


def _check_tree(num_tokens: int, num_seqs: int, tree: Tensor, tree_starts: Tensor) -> None:
    if tree.dim() != 2 or len(tree) != num_tokens or tree_starts.shape != (num_seqs,):
        raise ValueError(
            f"of {num_seqs} sequences and {num_tokens} rows, tree_starts is [{num_seqs}] and tree "
            f"[{num_tokens}, num_words], not {list(tree_starts.shape)} and {list(tree.shape)}"
        )


def _check_kernel_layout(query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch) -> None:
    """What only the kernel asks for."""
    head_dim = query.shape[2]
    if query.dtype not in DTYPES:
        raise ValueError(f"the kernel takes {', '.join(map(str, DTYPES))}, not {query.dtype}")
    if head_dim < LEAST_HEAD_DIM or head_dim & (head_dim - 1):
        raise ValueError(f"the kernel takes heads of a power of two from {LEAST_HEAD_DIM} on, not of {head_dim}")
    if query.stride(2) != 1 or pool_keys.stride(2) != 1 or pool_keys.stride() != pool_values.stride():
        raise ValueError("the numbers of a head are neighbours, and keys and values are laid out alike")
    for name in ("page_table", "query_starts", "seq_lens", "key_ends", "tree_starts", "tree"):
        tensor = getattr(batch, name)
        wanted = torch.int64 if name == "tree" else torch.int32
        if tensor is None:
            continue
        if tensor.dtype != wanted or tensor.device != query.device:
            raise ValueError(f"{name} is {wanted} on {query.device}, not {tensor.dtype} on {tensor.device}")
        if tensor.numel() and (tensor.stride(-1) != 1 or (name == "tree" and not tensor.is_contiguous())):
            raise ValueError(f"{name} is contiguous")
