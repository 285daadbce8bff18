"""Ragged batches of queries over paged keys, random batches for checks, and naive attention over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.kv_format import decode_heads
from kernels.attention.runs import cap_scores
from kernels.op import Shape


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The queries of several sequences, concatenated, and the pages that hold their keys.

    Position j of sequence i is token `j % page_size` of page `page_table[page_starts[i] + j // page_size]`, that is,
    slot `page * page_size + j % page_size` of the pool. Query row r of a sequence sees its positions [0, key_ends[r]),
    of these the last `window` if there is one.
    """

    page_table: Tensor  # int32 [num_entries]; entries after a sequence's last page are not its own
    page_starts: Tensor  # int32 [num_seqs]: a sequence's first entry
    query_starts: Tensor  # int32 [num_seqs + 1]: the rows of sequence i are [query_starts[i], query_starts[i + 1])
    seq_lens: Tensor  # int32 [num_seqs]: places that hold keys
    key_ends: Tensor  # int32 [num_tokens]
    page_size: int
    max_query_len: int
    """The largest number of rows of a sequence; the host knows it without asking the device."""
    max_seq_len: int
    """The largest number of positions of a sequence, or a bound of it."""

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)


SPARE_PAGES = 3
"""Pages of a pool that belong to no sequence and are NaN."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The length of one sequence, and the keys that each of its rows sees."""

    seq_len: int
    key_ends: tuple[int, ...]
    window: int

    @property
    def num_visible_pairs(self) -> int:
        """The number of pairs of a row and a key that it sees."""
        return sum(end - self._get_first_key(end) for end in self.key_ends)

    @property
    def visible_ranges(self) -> list[tuple[int, int]]:
        """Ranges of positions that any row sees, ascending and disjoint."""
        ranges = [(self._get_first_key(end), end) for end in sorted(self.key_ends)]
        apart = [ranges[0]]
        for first, last in ranges[1:]:  # the starts ascend with the ends
            if first <= apart[-1][1]:
                apart[-1] = (apart[-1][0], last)
            else:
                apart.append((first, last))
        return apart

    @property
    def num_keys(self) -> int:
        """The number of keys that any row sees."""
        return sum(last - first for first, last in self.visible_ranges)

    def num_pages(self, page_size: int) -> int:
        """Count the pages that hold a visible key."""
        return len(
            {page for first, last in self.visible_ranges for page in range(first // page_size, -(-last // page_size))}
        )

    def _get_first_key(self, end: int) -> int:
        return max(0, end - self.window) if self.window else 0


def make_layouts(shape: Shape) -> list[Layout]:
    """Return the sequences of a shape; with `uneven`, each has that many rows, and some keys, fewer than the next."""
    return [_make_layout(shape, index * shape.get("uneven", 0)) for index in range(shape["num_seqs"])]


def _make_layout(shape: Shape, less: int) -> Layout:
    num_rows = max(1, shape["num_rows"] - less)
    seq_len = max(num_rows, shape["num_keys"] - 7 * less)
    ends = _spread_key_ends(num_rows, seq_len, min(shape["places"], num_rows))
    return Layout(seq_len, tuple(ends), shape["window"])


def _spread_key_ends(num_rows: int, seq_len: int, num_places: int) -> list[int]:
    """Return the key ends of rows at the ends of `num_places` equal parts of the sequence."""
    borders = [num_rows * at // num_places for at in range(num_places + 1)]
    ends: list[int] = []
    for at, (first, last) in enumerate(pairwise(borders), start=1):
        end = max(last, seq_len * at // num_places)
        ends += range(end - (last - first) + 1, end + 1)
    return ends


def make_batch(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[PagedBatch, Tensor, int]:
    """Make the batch of a shape with its pages in random order.

    Returns the batch, the slots that hold its keys (int64), and the number of slots of the pool.
    """
    each, page_size = make_layouts(shape), shape["page_size"]
    num_pages = [-(-one.seq_len // page_size) for one in each]
    total = sum(num_pages) + SPARE_PAGES
    pages = torch.randperm(total, device=device, generator=generator).to(torch.int32)
    table, slots, first = [], [], 0
    for one, count in zip(each, num_pages, strict=True):
        own = pages[first : first + count]
        table += [own, pages[-1:]]  # an entry between two sequences, of a page that is NaN
        first += count
        places = own.to(torch.int64)[:, None] * page_size + torch.arange(page_size, device=device)
        slots.append(places.flatten()[: one.seq_len])

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    num_rows = [len(one.key_ends) for one in each]
    batch = PagedBatch(
        page_table=torch.cat(table),
        page_starts=ints([0, *accumulate(count + 1 for count in num_pages[:-1])]),
        query_starts=ints([0, *accumulate(num_rows)]),
        seq_lens=ints([one.seq_len for one in each]),
        key_ends=ints([end for one in each for end in one.key_ends]),
        page_size=page_size,
        max_query_len=max(num_rows),
        max_seq_len=max(one.seq_len for one in each),
    )
    return batch, torch.cat(slots), total * page_size


def naive_paged_attention(
    query: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    batch: PagedBatch,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Compute `run_paged_attention` with plain torch operations, in float32 or float64."""
    _, num_heads, head_dim = query.shape
    group = num_heads // pool_keys.shape[1]
    dtype = torch.promote_types(query.dtype, torch.float32)
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.empty_like(query)
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    for index, seq_len in enumerate(lens):
        rows = slice(starts[index], starts[index + 1])
        slots = get_slots(batch, index, seq_len)
        keys, values = (
            (decode_heads(pool[slots], dtype) if pool.dtype == torch.uint8 else pool[slots].to(dtype))
            for pool in (pool_keys, pool_values)
        )
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = cap_scores(torch.einsum("thd,shd->hts", query[rows].to(dtype), keys) * scale, cap)
        scores.masked_fill_(~make_mask(batch, index, rows, seq_len, window), float("-inf"))
        out[rows] = torch.einsum("hts,shd->thd", scores.softmax(dim=-1), values).to(query.dtype)
    return out


def get_slots(batch: PagedBatch, index: int, seq_len: int) -> Tensor:
    """Return the pool slots of a sequence's first `seq_len` positions: int64 [seq_len]."""
    places = torch.arange(seq_len, device=batch.page_table.device)
    pages = batch.page_table[batch.page_starts[index] + places // batch.page_size].to(torch.int64)
    return pages * batch.page_size + places % batch.page_size


def make_mask(batch: PagedBatch, index: int, rows: slice, seq_len: int, window: int | None) -> Tensor:
    """Return which positions each row sees: bool [num_rows, seq_len]."""
    places = torch.arange(seq_len, device=batch.key_ends.device)[None]
    ends = batch.key_ends[rows, None]
    seen = places < ends
    if window is not None:
        seen &= places >= ends - window
    return seen


Baseline = Callable[[], tuple[Tensor, ...]]


def make_baselines(
    query: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    batch: PagedBatch,
    window: int | None,
    scale: float | None = None,
    cap: float | None = None,
) -> Mapping[str, Baseline]:
    """Return SDPA, FlexAttention and, where it is installed, FlashInfer by name; nothing for sequences of different
    lengths, which would need padding, or for scores of another scale or with a cap.

    The first two get more than a service could give them: contiguous keys and values, and masks made once. FlashInfer
    reads the pages; it is for rows that are the last tokens, and its plan is made once.
    """
    num_rows, lens = batch.query_starts.diff().tolist(), batch.seq_lens.tolist()
    if len(set(num_rows)) > 1 or len(set(lens)) > 1 or scale is not None or cap is not None:
        return {}
    queries = (
        query.view(len(lens), -1, *query.shape[1:]).transpose(1, 2).contiguous()
    )  # [num_seqs, num_heads, num_rows, head_dim]
    keys, values = (_gather_pages(pool, batch, lens) for pool in (pool_keys, pool_values))
    found = {
        "sdpa": _make_sdpa(queries, keys, values, batch, window),
        "flex_attention": _make_flex_attention(queries, keys, values, batch, window),
    }
    if _has_last_rows(batch) and find_spec("flashinfer") is not None:
        found["flashinfer"] = _make_flashinfer(query, pool_keys, pool_values, batch, window)
    return found


def _make_sdpa(queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, window: int | None) -> Baseline:
    mask = _find_causal_mask(batch, window)
    bias = _make_batch_mask(batch, window)[:, None] if mask is None else mask

    def call() -> tuple[Tensor, ...]:
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, enable_gqa=True)
        return (_flatten_sequences(attended),)

    return call


def _make_flex_attention(
    queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, window: int | None
) -> Baseline:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    num_seqs, _, num_rows, _ = queries.shape
    ends = batch.key_ends.view(num_seqs, num_rows)

    def is_seen(seq: Tensor, head: Tensor, row: Tensor, place: Tensor) -> Tensor:
        end = ends[seq, row]
        return (place < end) & (place >= end - window) if window else place < end

    mask = create_block_mask(is_seen, num_seqs, None, num_rows, keys.shape[2], device=str(queries.device))
    compiled = torch.compile(flex_attention)

    def call() -> tuple[Tensor, ...]:
        return (_flatten_sequences(compiled(queries, keys, values, block_mask=mask, enable_gqa=True)),)

    return call


@cache
def _get_workspace(device: torch.device) -> Tensor:
    """Return the memory that FlashInfer asks for; one for all calls, which run one after the other."""
    return torch.empty(128 << 20, dtype=torch.uint8, device=device)


def _make_flashinfer(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None
) -> Baseline:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    page_size, (_, num_kv_heads, head_dim) = batch.page_size, pool_keys.shape
    counts = -(-batch.seq_lens // page_size)
    starts = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    entries = zip(batch.page_starts.tolist(), counts.tolist(), strict=True)
    pages = torch.cat([batch.page_table[first : first + count] for first, count in entries])
    pools = tuple(
        pool[: len(pool) // page_size * page_size].view(-1, page_size, num_kv_heads, head_dim)
        for pool in (pool_keys, pool_values)
    )
    wrapper = BatchPrefillWithPagedKVCacheWrapper(_get_workspace(query.device), "NHD")
    wrapper.plan(
        batch.query_starts,
        starts,
        pages,
        (batch.seq_lens - 1) % page_size + 1,
        query.shape[1],
        num_kv_heads,
        head_dim,
        page_size,
        causal=True,
        window_left=window - 1 if window else -1,
        q_data_type=query.dtype,
        kv_data_type=pool_keys.dtype,
    )
    return lambda: (wrapper.run(query, pools),)


def _has_last_rows(batch: PagedBatch) -> bool:
    """Return whether the rows of each sequence, all of one length, are its last tokens."""
    num_rows, seq_len = int(batch.query_starts[1]), int(batch.seq_lens[0])
    last = torch.arange(seq_len - num_rows + 1, seq_len + 1, device=batch.key_ends.device)
    return bool((batch.key_ends.view(-1, num_rows) == last).all())


def _find_causal_mask(batch: PagedBatch, window: int | None) -> Tensor | None:
    """Return the mask for which SDPA has a flash kernel, if each sequence's rows are its last tokens."""
    from torch.nn.attention.bias import causal_lower_right

    num_rows, seq_len = int(batch.query_starts[1]), int(batch.seq_lens[0])
    return causal_lower_right(num_rows, seq_len) if _has_last_rows(batch) and not window else None


def _gather_pages(pool: Tensor, batch: PagedBatch, lens: list[int]) -> Tensor:
    """Return contiguous keys or values: [num_seqs, num_kv_heads, seq_len, head_dim]."""
    each = [pool[get_slots(batch, index, seq_len)] for index, seq_len in enumerate(lens)]
    return torch.stack(each).transpose(1, 2).contiguous()


def _make_batch_mask(batch: PagedBatch, window: int | None) -> Tensor:
    """Return bool [num_seqs, num_rows, seq_len]."""
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    rows = [slice(first, last) for first, last in pairwise(starts)]
    return torch.stack([make_mask(batch, at, rows[at], seq_len, window) for at, seq_len in enumerate(lens)])


def _flatten_sequences(attended: Tensor) -> Tensor:
    """Reshape [num_seqs, num_heads, num_rows, head_dim] to [num_tokens, num_heads, head_dim]."""
    return attended.transpose(1, 2).flatten(0, 1)
