"""Paged attention as an op: checks of shapes, the launch, and the spec for parity checks, tuner and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from kernels.attention.kv_format import SCALE_BYTES, encode_heads, view_rows
from kernels.op import (
    Cost,
    Inputs,
    Shape,
    Variant,
    count_processors,
    is_interpreting,
    round_up_to_power_of_2,
    runs_triton,
)
from kernels.paged_attention import variants
from kernels.paged_attention.batch import PagedBatch, make_baselines, make_batch, make_layouts, naive_paged_attention
from kernels.paged_attention.variants import fit_to_card


def can_split_head(head_dim: int) -> bool:
    """Return whether the kernel takes heads of this width."""
    main, tail = split_head(head_dim)
    return main >= MIN_HEAD_DIM and (tail == 0 or (tail >= MIN_HEAD_DIM and tail & (tail - 1) == 0))


def split_head(head_dim: int) -> tuple[int, int]:
    """Return the largest power of two that is not above a head's width, and the rest."""
    main = 1 << (head_dim.bit_length() - 1)
    return main, head_dim - main


DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MIN_HEAD_DIM = 16
"""The smallest operand of a matrix product on a card."""


def run_paged_attention(
    query: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor | None,
    batch: PagedBatch,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attend from a batch's queries to the keys that each sees of its sequence.

    query: [num_tokens, num_heads, head_dim]. pool_keys, pool_values: [num_slots, num_kv_heads, head_dim], or in int8
    uint8 [num_slots, num_kv_heads, head_dim + 2] (`kernels.attention.KVFormat`); the query heads [g * group,
    (g + 1) * group) use KV head g. Without pool_values the keys are values, too (latent attention). Scores are
    multiplied by `scale`, or head_dim**-0.5; with a `cap`, a score x becomes cap * tanh(x / cap). Returns [num_tokens,
    num_heads, head_dim], contiguous. A row that sees nothing is NaN; rows that belong to no sequence are undefined.

    The kernel does not wait for the device. Raises ValueError if shapes, dtypes or devices do not fit.
    """
    _check_tensors(query, pool_keys, pool_keys if pool_values is None else pool_values)
    _check_batch(query, batch, window)
    if not runs_triton(query):
        values = pool_keys if pool_values is None else pool_values
        return naive_paged_attention(query, pool_keys, values, batch, window, scale, cap)
    from kernels.winners import get_variant

    _check_kernel_layout(query, pool_keys, pool_keys if pool_values is None else pool_values, batch)
    shape = get_shape(query, pool_keys, pool_values, batch, window)
    variant = get_variant(OP, shape, query.device, query.dtype)
    return launch(query, pool_keys, pool_values, batch, window, variant, scale, cap)


def get_shape(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor | None, batch: PagedBatch, window: int | None
) -> Shape:
    """Return the shape of a batch, without asking the device."""
    num_kv_heads, head_dim = pool_keys.shape[1], query.shape[2]
    shape = {
        "num_seqs": batch.num_seqs,
        "num_tokens": len(query),
        "num_rows": batch.max_query_len,
        "num_keys": batch.max_seq_len,
        "num_kv_heads": num_kv_heads,
        "group": query.shape[1] // num_kv_heads,
        "head_dim": head_dim,
        "page_size": batch.page_size,
        "window": window or 0,
    }
    shape |= {"int8": 1} if pool_keys.dtype == torch.uint8 else {}
    shape |= {"latent": 1} if pool_values is None else {}
    return shape | {"processors": count_processors(query.device)} if query.is_cuda else shape


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
        raise ValueError(f"{num_heads} query heads are not a multiple of {num_kv_heads} KV heads")
    is_int8 = pool_keys.dtype == torch.uint8
    if query.shape[2] + (SCALE_BYTES if is_int8 else 0) != pool_keys.shape[2]:
        raise ValueError(f"query heads are {query.shape[2]} wide and keys {pool_keys.shape[2]}")
    if pool_keys.dtype != pool_values.dtype or (query.dtype != pool_keys.dtype and not is_int8):
        raise ValueError(f"query is {query.dtype}, keys {pool_keys.dtype} and values {pool_values.dtype}")
    if not query.device == pool_keys.device == pool_values.device:
        raise ValueError(f"query is on {query.device}, keys on {pool_keys.device}, values on {pool_values.device}")


def _check_batch(query: Tensor, batch: PagedBatch, window: int | None) -> None:
    num_tokens, num_seqs = len(query), batch.num_seqs
    if batch.query_starts.shape != (num_seqs + 1,) or batch.page_starts.shape != (num_seqs,):
        raise ValueError(
            f"of {num_seqs} sequences, query_starts is [{num_seqs + 1}] and page_starts [{num_seqs}], not "
            f"{list(batch.query_starts.shape)} and {list(batch.page_starts.shape)}"
        )
    if batch.key_ends.shape != (num_tokens,):
        raise ValueError(f"{num_tokens} rows need as many key_ends, not {list(batch.key_ends.shape)}")
    if batch.page_table.dim() != 1 or len(batch.page_table) * batch.page_size < batch.max_seq_len:
        raise ValueError(
            f"max_seq_len is {batch.max_seq_len}, and page_table {list(batch.page_table.shape)} has pages of "
            f"{batch.page_size} slots"
        )
    if window is not None and window < 1:
        raise ValueError(f"a window must be at least 1, not {window}")


def _check_kernel_layout(query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch) -> None:
    """Check the requirements that only the kernel has."""
    head_dim = query.shape[2]
    if query.dtype not in DTYPES:
        raise ValueError(f"the kernel takes {', '.join(map(str, DTYPES))}, not {query.dtype}")
    if not can_split_head(head_dim):
        raise ValueError(
            f"head_dim must be a power of two or the sum of two, each at least {MIN_HEAD_DIM}, not {head_dim}"
        )
    if query.stride(2) != 1 or pool_keys.stride(2) != 1 or pool_keys.stride() != pool_values.stride():
        raise ValueError("heads must be contiguous, and keys and values have the same strides")
    if pool_keys.dtype == torch.uint8 and not pool_keys.is_contiguous():
        raise ValueError("keys and values in int8 must be contiguous")
    for name in ("page_table", "page_starts", "query_starts", "seq_lens", "key_ends"):
        tensor = getattr(batch, name)
        if tensor.dtype != torch.int32 or tensor.device != query.device:
            raise ValueError(f"{name} is torch.int32 on {query.device}, not {tensor.dtype} on {tensor.device}")
        if tensor.numel() and tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous")


LOG2_E = 1.4426950408889634
SEQS_AT_ONCE = 128
"""Sequences that a program searches with one load to find its own."""

NUMBERS_AT_ONCE = 8192
"""Numbers of partial results that the merge has in flight: 64 a thread."""

HOPPER = 9
"""The major compute capability of Hopper."""

SHARED_BYTES = 99 * 1024
"""Shared memory of a block if a card does not report it: that of the smallest cards that multiply bfloat16."""


def launch(
    query: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor | None,
    batch: PagedBatch,
    window: int | None,
    variant: Variant,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Run `kernels.paged_attention.run_paged_attention` by a kernel with these constants, on checked arguments."""
    from kernels.paged_attention import kernel

    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = pool_keys.shape[1]
    group = num_heads // num_kv_heads
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if num_tokens == 0:
        return out
    if not is_interpreting():
        on_hopper, most_bytes = _get_card_limits(query.device)
        variant = fit_to_card(variant, head_dim, query.dtype, on_hopper, most_bytes)
    scale = head_dim**-0.5 if scale is None else scale
    main, tail = split_head(head_dim)
    rows, num_chunks = variant["rows"], count_chunks(batch.max_seq_len, variant)
    shape = (num_chunks, num_tokens, num_heads)
    is_cut = num_chunks > 1
    shares = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device) if is_cut else out
    levels = torch.empty(shape, dtype=torch.float32, device=query.device) if is_cut else None
    pools: Sequence[Tensor] = (pool_keys, pool_keys if pool_values is None else pool_values)
    scales: Sequence[Tensor | None] = (None, None)
    head_stride, scale_stride = pool_keys.stride(1), 0
    if pool_keys.dtype == torch.uint8:
        pools, halves = zip(*map(view_rows, pools), strict=True)
        scales = [each[:, num_kv_heads * head_dim // SCALE_BYTES :] for each in halves]
        head_stride, scale_stride = head_dim, halves[0].stride(0)
    one_block = batch.max_query_len * group <= rows
    num_blocks = batch.num_seqs if one_block else num_tokens * group // rows + batch.num_seqs
    kernel.attention_kernel[(num_blocks, num_kv_heads, num_chunks)](
        shares,
        levels,
        query,
        *pools,
        *scales,
        batch.page_table,
        batch.page_starts,
        batch.query_starts,
        batch.seq_lens,
        batch.key_ends,
        batch.num_seqs,
        num_tokens,
        variant["chunk"],
        LOG2_E * scale,
        0.0 if cap is None else cap / scale,
        query.stride(0),
        query.stride(1),
        SLOT_STRIDE=pool_keys.stride(0),
        HEAD_STRIDE=head_stride,
        GROUP=group,
        HEAD_DIM=main,
        TAIL=tail,
        KEYS_ARE_VALUES=pool_values is None,
        PAGE_SIZE=batch.page_size,
        WINDOW=window or 0,
        CAPS=cap is not None,
        ROWS=rows,
        KEYS=variant["keys"],
        IS_CUT=is_cut,
        ONE_BLOCK=one_block,
        ONE_SEQ=batch.num_seqs == 1,
        LANES=SEQS_AT_ONCE,
        SCALE_STRIDE=scale_stride,
        num_warps=variant["num_warps"],
        num_stages=variant["num_stages"],
        enable_fp_fusion=True,
    )
    if is_cut:
        num_rows = num_tokens * num_heads
        kernel.merge_chunks_kernel[(num_rows,)](
            out,
            shares,
            levels,
            num_chunks,
            num_rows,
            WINDOW=bool(window),
            HEAD_DIM=head_dim,
            BLOCK_DIM=main if tail == 0 else 2 * main,
            CHUNKS=count_chunks_at_once(head_dim),
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


def count_chunks_at_once(head_dim: int) -> int:
    """Return how many partial results of a row the merge has in flight."""
    return min(32, NUMBERS_AT_ONCE // round_up_to_power_of_2(head_dim))


def count_chunks(num_keys: int, variant: Variant) -> int:
    """Return the most chunks into which a kernel with these constants cuts the keys of a sequence."""
    return min(variant["splits"], -(-num_keys // variant["chunk"]))


@cache
def _get_card_limits(device: torch.device) -> tuple[bool, int]:
    """Return whether the card is a Hopper, and the shared memory that a block may take."""
    properties = torch.cuda.get_device_properties(device)
    return properties.major == HOPPER, getattr(properties, "shared_memory_per_block_optin", SHARED_BYTES)


HEADS = {"0.5B": (2, 7, 64), "1.5B": (2, 6, 128), "7B": (4, 7, 128)}
"""KV heads, query heads for each, and head_dim of Qwen2.5."""

INT_BYTES = 4


def _make_shape(num_rows: int, num_keys: int, heads: tuple[int, int, int], **others: int) -> Shape:
    """Make a shape of one sequence with pages of 32, no window, and rows at the end, changed by `others`."""
    num_kv_heads, group, head_dim = heads
    shape = {"num_seqs": 1, "num_rows": num_rows, "num_keys": num_keys}
    shape |= {"num_kv_heads": num_kv_heads, "group": group, "head_dim": head_dim}
    return shape | {"page_size": 32, "window": 0, "places": 1} | others


def _make_benchmark_shapes() -> list[Shape]:
    """Make a prefill chunk, draft verifications, decodes, and 150 scattered rows, for the heads of each model; for one
    of them a decode, a verification and many decodes over keys in int8.
    """
    shapes = []
    for heads in HEADS.values():
        shapes += [_make_shape(1024, keys, heads) for keys in (1024, 8192, 32768)]
        shapes += [_make_shape(rows, keys, heads) for keys in (8192, 32768, 131072) for rows in (16, 64, 128, 512)]
        shapes += [_make_shape(1, keys, heads, num_seqs=seqs) for seqs in (1, 16, 64) for keys in (8192, 32768)]
        shapes += [_make_shape(1, 131072, heads)]
        shapes += [_make_shape(150, keys, heads, places=3) for keys in (8192, 32768)]
    int8 = [_make_shape(rows, 32768, HEADS["7B"], int8=1) for rows in (1, 64)]
    return [*shapes, *int8, _make_shape(1, 8192, HEADS["7B"], num_seqs=64, int8=1)]


class PagedAttention:
    """The op. A shape has `num_seqs` sequences of `num_rows` queries and `num_keys` keys; `num_kv_heads`, `group` query
    heads for each, and `head_dim`; `page_size`; `window`, 0 for none; `places`, the number of places at which the rows
    stand, evenly spread, 1 for the end; and for parity checks `uneven`, the number of rows that each sequence has fewer
    than the one before, `caps` (1) where scores have a cap and a scale of their own, and `int8` (1) where keys and
    values are stored so. `latent` (1): values are the keys.
    """

    name = "paged_attention"
    space = variants.SPACE

    parity_shapes: Sequence[Shape] = (
        _make_shape(1, 1, (1, 1, 64), page_size=4),
        _make_shape(1, 33, (2, 7, 64)),
        _make_shape(5, 32, (1, 2, 128), page_size=16),
        _make_shape(11, 65, (2, 6, 64), page_size=8, num_seqs=3, uneven=4),
        _make_shape(3, 31, (1, 8, 256), page_size=5),
        _make_shape(7, 70, (1, 7, 64), page_size=16, window=20),
        _make_shape(9, 90, (2, 6, 64), page_size=16, places=3, num_seqs=2, uneven=2),
        _make_shape(8, 100, (1, 7, 64), page_size=16, places=2, window=17),
        _make_shape(1, 300, (1, 2, 64), page_size=16),  # cut in two chunks
        _make_shape(6, 40, (2, 2, 64), page_size=16, window=9, caps=1),
        _make_shape(5, 70, (2, 3, 64), page_size=16, num_seqs=2, uneven=2, int8=1),
        _make_shape(1, 300, (1, 2, 64), page_size=16, int8=1),
        _make_shape(6, 40, (2, 2, 128), page_size=16, window=9, caps=1, int8=1),
        _make_shape(5, 70, (1, 6, 48), page_size=16, num_seqs=2, uneven=2, latent=1),
        _make_shape(1, 300, (1, 2, 80), page_size=16),
        _make_shape(6, 300, (1, 4, 96), page_size=16, window=30),
        _make_shape(3, 40, (2, 2, 96), page_size=8, int8=1, latent=1),
        _make_shape(2, 33, (1, 16, 576), latent=1),
    )
    benchmark_shapes: Sequence[Shape] = tuple(_make_benchmark_shapes())

    is_valid = staticmethod(variants.is_valid)
    default = staticmethod(variants.default)
    shape_class = staticmethod(variants.shape_class)

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Make queries, and pools that are NaN wherever no sequence has a key."""
        batch, slots, num_slots = make_batch(shape, device, generator)
        head_dim, num_kv_heads = shape["head_dim"], shape["num_kv_heads"]

        def randn(*sizes: int) -> Tensor:
            return torch.randn(*sizes, device=device, generator=generator).to(dtype)

        def pool() -> Tensor:
            if shape.get("int8"):  # the scales of other slots are NaN
                rows = torch.full(
                    (num_slots, num_kv_heads, head_dim + SCALE_BYTES), 255, dtype=torch.uint8, device=device
                )
                return rows.index_copy_(0, slots, encode_heads(randn(len(slots), num_kv_heads, head_dim)))
            empty = torch.full((num_slots, num_kv_heads, head_dim), torch.nan, dtype=dtype, device=device)
            return empty.index_copy_(0, slots, randn(len(slots), num_kv_heads, head_dim))

        query = randn(len(batch.key_ends), num_kv_heads * shape["group"], head_dim)
        return {
            "query": query,
            "pool_keys": pool(),
            "pool_values": None if shape.get("latent") else pool(),
            "batch": batch,
            "window": shape["window"] or None,
            "scale": 0.3 if shape.get("caps") else None,
            "cap": 2.5 if shape.get("caps") else None,
        }

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        return (run_paged_attention(**inputs) if variant is None else launch(**inputs, variant=variant),)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        values = inputs["pool_keys"] if inputs["pool_values"] is None else inputs["pool_values"]
        return (naive_paged_attention(**{**inputs, "pool_values": values}),)

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Return SDPA and FlexAttention over contiguous keys, which a paged pool does not have; nothing of int8."""
        if inputs["pool_keys"].dtype == torch.uint8:
            return {}
        values = inputs["pool_keys"] if inputs["pool_values"] is None else inputs["pool_values"]
        return make_baselines(**{**inputs, "pool_values": values})

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Count the bytes and operations.

        Bytes: visible keys and values once for each KV head, queries and results, and the arrays of the batch.
        Operations: two products for each row, query head and visible key.
        """
        each, page_size = make_layouts(shape), shape["page_size"]
        num_rows = sum(len(one.key_ends) for one in each)
        head_dim, num_kv_heads = shape["head_dim"], shape["num_kv_heads"]
        num_heads = num_kv_heads * shape["group"]
        num_read = (1 if shape.get("latent") else 2) * num_kv_heads * sum(one.num_keys for one in each)
        head_bytes = head_dim + SCALE_BYTES if shape.get("int8") else head_dim * dtype.itemsize
        ints = num_rows + 3 * len(each) + 1 + sum(one.num_pages(page_size) for one in each)
        num_bytes = num_read * head_bytes + 2 * num_heads * num_rows * head_dim * dtype.itemsize + ints * INT_BYTES
        return Cost(num_bytes, 4 * num_heads * head_dim * sum(one.num_visible_pairs for one in each))


OP = PagedAttention()
