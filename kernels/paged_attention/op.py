"""Paged attention as an op: checks shapes, picks the implementation, and serves parity, tuner and benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from kernels.backend import runs_triton
from kernels.op import Cost, Inputs, Shape, Variant
from kernels.paged_attention import reference, variants
from kernels.paged_attention.batch import TREE_BITS, PagedBatch

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
    from kernels.tuner import variant_for

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


SPARE_PAGES = 3
"""Pages of a pool that belong to nobody, and are NaN."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One sequence: its length, and what each of its rows sees.

    Rows of a draft with `branches` stand behind one another from `tree_start` on; row r is on branch `r % branches` and
    sees itself and what came before it there.
    """

    seq_len: int
    key_ends: tuple[int, ...]
    window: int
    branches: int

    @property
    def tree_start(self) -> int:
        return self.seq_len - len(self.key_ends) if self.branches else self.seq_len

    @property
    def num_seen(self) -> int:
        """Pairs of a row and a key that it sees."""
        ahead = sum(row // self.branches + 1 for row in range(len(self.key_ends))) if self.branches else 0
        return sum(end - self._low(end) for end in self.key_ends) + ahead

    @property
    def seen(self) -> list[tuple[int, int]]:
        """Ranges of places that any row sees, ascending and apart."""
        ranges = [(self._low(end), end) for end in sorted(self.key_ends)]
        if self.branches:
            ranges.append((self.tree_start, self.seq_len))
        apart = [ranges[0]]
        for first, last in ranges[1:]:  # the lower ends ascend with the upper ones
            if first <= apart[-1][1]:
                apart[-1] = (apart[-1][0], last)
            else:
                apart.append((first, last))
        return apart

    @property
    def num_keys(self) -> int:
        """Keys that any row sees."""
        return sum(last - first for first, last in self.seen)

    def num_pages(self, page_size: int) -> int:
        """Pages that hold one of these."""
        return len({page for first, last in self.seen for page in range(first // page_size, -(-last // page_size))})

    def tree_words(self, num_words: int) -> list[list[int]]:
        """The rows' tree masks, [num_rows][num_words]."""
        words = [[0] * num_words for _ in self.key_ends]
        for row, own in enumerate(words):
            for seen in range(row % self.branches, row + 1, self.branches):
                own[seen // TREE_BITS] |= 1 << seen % TREE_BITS
        return words

    def _low(self, end: int) -> int:
        return max(0, end - self.window) if self.window else 0


def layouts(shape: Shape) -> list[Layout]:
    """The sequences of a shape; where it is `uneven`, each has so many rows fewer than the last one, and keys."""
    return [_layout(shape, index * shape.get("uneven", 0)) for index in range(shape["num_seqs"])]


def _layout(shape: Shape, less: int) -> Layout:
    num_rows = max(1, shape["num_rows"] - less)
    seq_len = max(num_rows, shape["num_keys"] - 7 * less)
    branches = shape["branches"]
    if branches:
        ends = [seq_len - num_rows] * num_rows
    else:
        ends = _scattered_ends(num_rows, seq_len, min(shape["places"], num_rows))
    return Layout(seq_len, tuple(ends), shape["window"], branches)


def _scattered_ends(num_rows: int, seq_len: int, num_places: int) -> list[int]:
    """What rows in so many places see: as many neighbours at the end of each of as many parts of the sequence."""
    borders = [num_rows * at // num_places for at in range(num_places + 1)]
    ends: list[int] = []
    for at, (first, last) in enumerate(pairwise(borders), start=1):
        end = max(last, seq_len * at // num_places)
        ends += range(end - (last - first) + 1, end + 1)
    return ends


def batch_of(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[PagedBatch, Tensor, int]:
    """The batch of a shape, its pages in random order; the slots that hold its keys, int64; and the pool's slots."""
    each, page_size = layouts(shape), shape["page_size"]
    num_pages = [-(-one.seq_len // page_size) for one in each]
    total = sum(num_pages) + SPARE_PAGES
    pages = torch.randperm(total, device=device, generator=generator).to(torch.int32)
    table = pages[-1].repeat(len(each), max(num_pages))
    slots, first = [], 0
    for row, one, count in zip(table, each, num_pages, strict=True):
        row[:count] = own = pages[first : first + count]
        first += count
        places = own.to(torch.int64)[:, None] * page_size + torch.arange(page_size, device=device)
        slots.append(places.flatten()[: one.seq_len])

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    num_rows = [len(one.key_ends) for one in each]
    batch = PagedBatch(
        page_table=table,
        query_starts=ints([0, *accumulate(num_rows)]),
        seq_lens=ints([one.seq_len for one in each]),
        key_ends=ints([end for one in each for end in one.key_ends]),
        page_size=page_size,
        most_queries=max(num_rows),
        most_keys=max(one.seq_len for one in each),
        tree_starts=ints([one.tree_start for one in each]) if shape["branches"] else None,
        tree=_tree(each, device) if shape["branches"] else None,
    )
    return batch, torch.cat(slots), total * page_size


def _tree(each: list[Layout], device: torch.device) -> Tensor:
    num_words = -(-max(len(one.key_ends) for one in each) // TREE_BITS)
    words = [own for one in each for own in one.tree_words(num_words)]
    return torch.tensor(words, dtype=torch.int64, device=device)


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
        batch, slots, num_slots = batch_of(shape, device, generator)
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
        each, page_size = layouts(shape), shape["page_size"]
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
