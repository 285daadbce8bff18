"""What parity, tuner and benchmark need to know of paged attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kernels.op import Cost, Inputs, Shape, Variant
from kernels.paged_attention import layout, reference, variants
from kernels.paged_attention.batch import TREE_BITS
from kernels.paged_attention.dispatch import paged_attention

HEADS = {"0.5B": (2, 7, 64), "1.5B": (2, 6, 128), "7B": (4, 7, 128)}
"""KV heads, queries to each and their width in Qwen2.5."""

INT_BYTES, TREE_WORD_BYTES = 4, 8


def _shape(num_rows: int, num_keys: int, heads: tuple[int, int, int], **others: int) -> Shape:
    """One sequence over pages of 32 without window or tree, its rows its last tokens, but for what is said."""
    num_kv_heads, group, head_dim = heads
    shape = {"num_seqs": 1, "num_rows": num_rows, "num_keys": num_keys}
    shape |= {"num_kv_heads": num_kv_heads, "group": group, "head_dim": head_dim}
    return shape | {"page_size": 32, "window": 0, "places": 1, "branches": 0} | others


def _timed() -> list[Shape]:
    """A prefill chunk, verify passes, decodes, and 150 scattered rows, for each of the models' heads."""
    shapes = []
    for heads in HEADS.values():
        shapes += [_shape(1024, keys, heads) for keys in (1024, 8192, 32768)]
        shapes += [_shape(rows, keys, heads) for keys in (8192, 32768, 131072) for rows in (16, 64, 128, 512)]
        shapes += [_shape(1, keys, heads, num_seqs=seqs) for seqs in (1, 16, 64) for keys in (8192, 32768)]
        shapes += [_shape(1, 131072, heads)]
        shapes += [_shape(150, keys, heads, places=3) for keys in (8192, 32768)]
    return shapes


class PagedAttention:
    """The `Op`. A shape: num_seqs sequences of num_rows queries and num_keys keys, num_kv_heads heads of these and
    group queries to each, all head_dim wide; page_size; window, 0 for none; the places in which the rows stand, evenly
    spread, 1 for the end; the branches that they are on as a draft that forks, 0 for none; and, for parity, uneven: the
    rows that each sequence has fewer than the one before.
    """

    name = "paged_attention"
    space = variants.SPACE

    parity_shapes: Sequence[Shape] = (
        _shape(1, 1, (1, 1, 64), page_size=4),
        _shape(1, 33, (2, 7, 64)),
        _shape(5, 32, (1, 2, 128), page_size=16),
        _shape(11, 65, (2, 6, 64), page_size=8, num_seqs=3, uneven=4),
        _shape(3, 31, (1, 8, 256), page_size=5),
        _shape(7, 70, (1, 7, 64), page_size=16, window=20),
        _shape(9, 90, (2, 6, 64), page_size=16, places=3, num_seqs=2, uneven=2),
        _shape(8, 100, (1, 7, 64), page_size=16, places=2, window=17),
        _shape(13, 50, (1, 7, 64), page_size=16, branches=3, num_seqs=2, uneven=5),
        _shape(66, 80, (1, 1, 64), page_size=16, branches=2, window=9),
        _shape(1, 300, (1, 2, 64), page_size=16),  # cut in two chunks
    )
    timed_shapes: Sequence[Shape] = tuple(_timed())

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """As `variants.is_valid`."""
        return variants.is_valid(variant, shape)

    def default(self, shape: Shape) -> Variant:
        """As `variants.default`."""
        return variants.default(shape)

    def shape_class(self, shape: Shape) -> str:
        """As `variants.shape_class`."""
        return variants.shape_class(shape)

    def shared_bytes(self, variant: Variant, shape: Shape, dtype: torch.dtype) -> int:
        """What a block takes of the shared memory on a card that is no Hopper, where it is less."""
        return variants.shared_bytes(variant, shape["head_dim"], dtype, bool(shape["branches"]), on_hopper=False)

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Queries, and pools that are NaN where no sequence has a key."""
        batch, slots, num_slots = layout.batch_of(shape, device, generator)
        head_dim, num_kv_heads = shape["head_dim"], shape["num_kv_heads"]

        def randn(*sizes: int) -> Tensor:
            return torch.randn(*sizes, device=device, generator=generator).to(dtype)

        def pool() -> Tensor:
            empty = torch.full((num_slots, num_kv_heads, head_dim), torch.nan, dtype=dtype, device=device)
            return empty.index_copy_(0, slots, randn(len(slots), num_kv_heads, head_dim))

        query = randn(len(batch.key_ends), num_kv_heads * shape["group"], head_dim)
        return {
            "query": query,
            "pool_keys": pool(),
            "pool_values": pool(),
            "batch": batch,
            "window": shape["window"] or None,
        }

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        """The kernel."""
        from kernels.paged_attention.launch import attend

        return (paged_attention(**inputs) if variant is None else attend(**inputs, variant=variant),)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Plain torch."""
        return (reference.paged_attention(**inputs),)

    def torch_ways(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """SDPA and FlexAttention over keys that lie behind one another already, which they do not in a pool."""
        from kernels.paged_attention import peers

        return peers.ways(**inputs)

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Keys and values that any row sees, once for each KV head; queries and what they find; what says who sees
        what. Two products for each row, query head and key that it sees.
        """
        each, page_size = layout.layouts(shape), shape["page_size"]
        num_rows = sum(len(one.key_ends) for one in each)
        head_dim, num_kv_heads = shape["head_dim"], shape["num_kv_heads"]
        num_heads = num_kv_heads * shape["group"]
        moved = 2 * num_kv_heads * sum(one.num_keys for one in each) + 2 * num_heads * num_rows
        ints = num_rows + 2 * len(each) + 1 + sum(one.num_pages(page_size) for one in each)
        words = 0
        if shape["branches"]:
            ints += len(each)
            words = num_rows * -(-max(len(one.key_ends) for one in each) // TREE_BITS)
        num_bytes = moved * head_dim * dtype.itemsize + ints * INT_BYTES + words * TREE_WORD_BYTES
        return Cost(num_bytes, 4 * num_heads * head_dim * sum(one.num_seen for one in each))


OP = PagedAttention()
