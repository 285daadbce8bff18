"""Attention over pages: the reference equals a loop, the kernel equals the reference."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import parity
from kernels.op import Shape, Variant, is_interpreting
from kernels.paged_attention import (
    PagedBatch,
    run_paged_attention,
    variants,
)
from kernels.paged_attention.batch import Layout, get_slots, make_layouts, naive_paged_attention
from kernels.paged_attention.op import OP, count_chunks_at_once
from tests.kernels.devices import CPU, CUDA, INTERPRETED, ON_CARD, ON_EACH, set_sync_mode

TINY: dict[str, int] = {"rows": 16, "keys": 16, "splits": 1, "chunk": 32, "num_warps": 4, "num_stages": 2}
CUT: dict[str, int] = TINY | {"splits": 64}
HALVED: dict[str, int] = TINY | {"splits": 2}
"""Its chunks grow with the sequence."""
ONE: dict[str, int] = {
    "num_seqs": 1,
    "num_rows": 3,
    "num_keys": 40,
    "num_kv_heads": 1,
    "group": 2,
    "head_dim": 16,
    "page_size": 8,
    "window": 0,
    "places": 1,
}


def inputs_of(
    shape: Mapping[str, int], dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> dict[str, Any]:
    return dict(OP.inputs(shape, dtype, device, torch.Generator(device).manual_seed(parity.get_run_seed())))


def assert_near(actual: Tensor, expected: Tensor, bound: float) -> None:
    error = parity.compute_error_ratio(actual, expected)
    assert error <= bound, f"error {error:.3g}; {parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"


# The reference, what it costs, and which variants of the kernel run it.


def places_seen(batch: PagedBatch, row: int, window: int | None) -> list[int]:
    """By the words of `PagedBatch`."""
    end = int(batch.key_ends[row])
    seen = set(range(max(0, end - window) if window else 0, end))
    return sorted(seen)


def by_loop(
    query: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    batch: PagedBatch,
    window: int | None,
    scale: float | None,
    cap: float | None,
) -> Tensor:
    """Each row and head by itself, in float64."""
    out = torch.full(query.shape, torch.nan, dtype=torch.float64)
    group = query.shape[1] // pool_keys.shape[1]
    for seq in range(batch.num_seqs):
        for row in range(int(batch.query_starts[seq]), int(batch.query_starts[seq + 1])):
            pages = [divmod(place, batch.page_size) for place in places_seen(batch, row, window)]
            own = batch.page_table[int(batch.page_starts[seq]) :]
            slots = [int(own[page]) * batch.page_size + slot for page, slot in pages]
            for head in range(query.shape[1] if slots else 0):
                keys, values = (pool[slots, head // group].double() for pool in (pool_keys, pool_values))
                factor = 1.0 / math.sqrt(query.shape[2]) if scale is None else scale
                scores = [float(query[row, head].double() @ key) * factor for key in keys]
                scores = scores if cap is None else [cap * math.tanh(score / cap) for score in scores]
                shares = [math.exp(score - max(scores)) for score in scores]
                found = sum(share * value for share, value in zip(shares, values, strict=True))
                out[row, head] = found / sum(shares)
    return out


REFERENCE_SHAPES: tuple[dict[str, int], ...] = (
    ONE,
    ONE | {"num_seqs": 3, "num_rows": 9, "uneven": 3, "num_kv_heads": 2},
    ONE | {"num_rows": 7, "places": 3, "window": 6},
    ONE | {"num_rows": 7, "caps": 1},
)


@pytest.mark.parametrize("shape", REFERENCE_SHAPES, ids=str)
def test_the_reference_is_the_loop_over_what_each_row_sees(shape: Shape) -> None:
    inputs = inputs_of(shape, torch.float64)
    assert_near(naive_paged_attention(**inputs), by_loop(**inputs), 1e-12)


@pytest.mark.skipif(is_interpreting(), reason="the interpreter runs the kernel on a CPU")
def test_a_cpu_runs_the_reference() -> None:
    inputs = inputs_of(ONE)
    assert torch.equal(run_paged_attention(**inputs), naive_paged_attention(**inputs))


@pytest.mark.parametrize("shape", [*OP.parity_shapes, *REFERENCE_SHAPES], ids=str)
def test_the_cost_counts_what_rows_see(shape: Shape) -> None:
    inputs = inputs_of(shape, torch.float16)
    batch, num_pairs, num_keys, num_pages = inputs["batch"], 0, 0, 0
    for seq in range(batch.num_seqs):
        rows = range(int(batch.query_starts[seq]), int(batch.query_starts[seq + 1]))
        seen = [places_seen(batch, row, inputs["window"]) for row in rows]
        num_pairs += sum(map(len, seen))
        num_keys += len(set().union(*seen))
        num_pages += len({place // batch.page_size for each in seen for place in each})
    head_numbers = shape["num_kv_heads"] * shape["head_dim"]
    cost = OP.cost(shape, torch.float16)
    assert cost.num_flops == 4 * shape["group"] * head_numbers * num_pairs
    num_pools = 1 if inputs["pool_values"] is None else 2
    of_floats = num_pools * num_keys * inputs["pool_keys"][0].nbytes + 2 * inputs["query"].nbytes
    others = (batch.query_starts, batch.page_starts, batch.seq_lens, batch.key_ends)
    assert cost.num_bytes == of_floats + 4 * num_pages + sum(each.nbytes for each in others)


def test_scattered_rows_end_each_part_of_a_sequence() -> None:
    (layout,) = make_layouts(ONE | {"num_rows": 6, "num_keys": 30, "places": 3})
    assert layout == Layout(30, (9, 10, 19, 20, 29, 30), window=0)
    assert (layout.num_visible_pairs, layout.num_keys) == (117, 30)


@pytest.mark.parametrize("at", range(len(OP.benchmark_shapes)))
def test_defaults_are_sane(at: int) -> None:
    shape = OP.benchmark_shapes[at]
    assert OP.is_valid(OP.default(shape), shape)


@given(st.integers(1, 1500), st.integers(1, 200_000), st.integers(1, 100), st.data())
def test_a_class_of_shapes_has_one_default(num_rows: int, num_keys: int, num_seqs: int, data: st.DataObject) -> None:
    """What a row finds depends on its batch by the class alone."""
    shape = {**OP.benchmark_shapes[0], "num_rows": num_rows, "num_keys": num_keys, "num_seqs": num_seqs}
    shape["num_tokens"] = data.draw(st.integers(num_rows + num_seqs - 1, num_rows * num_seqs))
    other = dict(shape)
    for name, largest in {"num_rows": 1500, "num_keys": 200_000, "num_seqs": 100}.items():
        other[name] = data.draw(st.integers(1, largest))
        least = other["num_rows"] + other["num_seqs"] - 1
        fits = least <= other["num_tokens"] <= other["num_rows"] * other["num_seqs"]
        if not fits or OP.shape_class(other) != OP.shape_class(shape):
            other[name] = shape[name]
    assert OP.default(other) == OP.default(shape)


BIG = {"num_kv_heads": 2, "group": 6, "head_dim": 128, "page_size": 32, "window": 0}


def test_short_drafts_of_many_users_are_cut_as_their_own_rows_ask() -> None:
    """Not as those of one prompt of so many rows."""
    shape = BIG | {"num_seqs": 16, "num_rows": 4, "num_tokens": 64, "num_keys": 8192}
    assert OP.default(shape) == {"rows": 32, "keys": 64, "splits": 8, "chunk": 256, "num_warps": 4, "num_stages": 3}
    assert OP.default(shape | {"num_rows": 16, "num_tokens": 256, "num_keys": 32768})["splits"] == 4


@pytest.mark.parametrize(("num_rows", "num_seqs"), [(1, 1), (64, 1), (512, 2), (1024, 64)])
def test_no_program_walks_a_long_context_alone(num_rows: int, num_seqs: int) -> None:
    """However many rows are beside it."""
    tokens = num_rows + num_seqs - 1
    shape = BIG | {"num_seqs": num_seqs, "num_rows": num_rows, "num_tokens": tokens, "num_keys": 131072}
    variant = OP.default(shape)
    assert OP.is_valid(variant, shape)
    assert -(-131072 // variant["splits"]) <= variants.LONG_CHUNK


def test_partial_results_take_no_more_memory_than_they_may() -> None:
    shape = BIG | {"num_kv_heads": 4, "group": 7, "num_seqs": 2, "num_rows": 4096, "num_tokens": 8192}
    assert OP.default(shape | {"num_keys": 131072})["splits"] == variants.MAX_PARTIAL_BYTES // (8192 * 28 * 128 * 4)


def test_a_long_prompt_alone_is_not_cut_where_it_fills_the_card() -> None:
    """All its programs take equally long."""
    shape = BIG | {"num_seqs": 1, "num_rows": 4096, "num_keys": 131072}
    assert OP.default(shape)["splits"] == 1
    assert OP.default(shape | {"num_rows": 1024})["splits"] == 1
    assert OP.default(shape | {"num_rows": 512})["splits"] == 2


def test_classes_are_told_apart_by_their_ends() -> None:
    shape = dict(OP.benchmark_shapes[0])
    names = [
        OP.shape_class(shape | {"num_rows": rows}).partition("rows=")[2].split()[0] for rows in (1, 4, 5, 64, 1025)
    ]
    assert names == ["1", "2..4", "5..16", "33..64", "1025..2048"]


def test_a_launch_fits_the_shared_memory_of_its_card() -> None:
    large = TINY | {"rows": 128, "keys": 128, "num_stages": 3}
    for most, on_hopper in ((227, True), (163, False), (99, False), (64, False)):
        for head_dim, dtype in product((64, 128, 256), (torch.bfloat16, torch.float32)):
            fit = variants.fit_to_card(large, head_dim, dtype, on_hopper, most * 1024)
            needed = variants.count_shared_bytes(fit, head_dim, dtype, on_hopper)
            assert needed <= most * 1024 or (fit["keys"], fit["num_stages"]) == (16, 1)
    assert variants.fit_to_card(large, 64, torch.bfloat16, True, 227 * 1024) == large
    assert variants.fit_to_card(large, 128, torch.bfloat16, False, 99 * 1024) == large | {
        "keys": 64,
        "num_stages": 1,
    }


BROKEN: dict[str, dict[str, Any]] = {
    "query is": {"query": torch.zeros(3, 32)},
    "keys are": {"pool_values": torch.zeros(8, 1, 16)},
    "not a multiple": {
        "query": torch.zeros(3, 3, 16),
        "pool_keys": torch.zeros(64, 2, 16),
        "pool_values": torch.zeros(64, 2, 16),
    },
    "heads are": {"query": torch.zeros(3, 2, 32)},
    "query is torch.float16": {"query": torch.zeros(3, 2, 16, dtype=torch.float16)},
    "a window must be at least 1": {"window": 0},
}
BROKEN_BATCHES: dict[str, dict[str, Any]] = {
    "query_starts is": {"query_starts": torch.zeros(3, dtype=torch.int32)},
    "as many key_ends": {"key_ends": torch.zeros(2, dtype=torch.int32)},
    "page_starts": {"page_starts": torch.zeros(2, dtype=torch.int32)},
    "max_seq_len is 49": {"max_seq_len": 49},
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_does_not_fit_is_an_error(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_paged_attention(**inputs_of(ONE) | BROKEN[message])


@pytest.mark.parametrize("message", BROKEN_BATCHES)
def test_a_batch_that_does_not_fit_is_an_error(message: str) -> None:
    inputs = inputs_of(ONE)
    with pytest.raises(ValueError, match=message):
        run_paged_attention(**inputs | {"batch": replace(inputs["batch"], **BROKEN_BATCHES[message])})


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of FlexAttention's import
@pytest.mark.parametrize("shape", [REFERENCE_SHAPES[1], REFERENCE_SHAPES[2] | {"window": 0}], ids=str)
def test_torchs_ways_are_the_reference(shape: Shape) -> None:
    inputs = inputs_of(shape)
    ways = OP.torch_baselines(inputs)
    assert ("sdpa" in ways) == ("uneven" not in shape)
    for name in ways.keys() - {"flex_attention"}:  # which compiles for half a minute
        assert_near(ways[name]()[0], OP.reference(inputs)[0], 1e-6)


class PlannedPages:
    """FlashInfer's wrapper as far as it is used: it attends by what it was told in its plan."""

    def __init__(self, workspace: Tensor, layout: str) -> None:
        assert workspace.dtype == torch.uint8
        assert layout == "NHD"

    def plan(
        self, query_starts: Tensor, starts: Tensor, pages: Tensor, last_lens: Tensor, *sizes: int, **how: Any
    ) -> None:
        self._plan = query_starts.tolist(), starts.tolist(), pages.tolist(), last_lens.tolist()
        self._sizes, self._how = sizes, how

    def run(self, query: Tensor, pools: tuple[Tensor, Tensor]) -> Tensor:
        (query_starts, starts, pages, last_lens), (num_heads, num_kv_heads, head_dim, page_size) = (
            self._plan,
            self._sizes,
        )
        assert query.shape[1:] == (num_heads, head_dim)
        assert pools[0].shape[1:] == (page_size, num_kv_heads, head_dim)
        assert self._how["causal"]
        found = []
        for at, last_len in enumerate(last_lens):
            own = pages[starts[at] : starts[at + 1]]
            seq_len = (len(own) - 1) * page_size + last_len
            keys, values = (pool[own].flatten(0, 1)[:seq_len].transpose(0, 1) for pool in pools)
            rows = query[query_starts[at] : query_starts[at + 1]].transpose(0, 1)
            places, ends = torch.arange(seq_len), torch.arange(seq_len - rows.shape[1], seq_len)[:, None]
            seen = places <= ends
            if self._how["window_left"] >= 0:
                seen &= places >= ends - self._how["window_left"]
            attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=seen, enable_gqa=True)
            found.append(attended.transpose(0, 1))
        return torch.cat(found)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("window", [0, 9])
def test_flashinfer_gets_the_pages_that_the_kernel_gets(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that computes from the plan: the package needs a card."""
    module = ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = PlannedPages  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr("kernels.paged_attention.batch.find_spec", lambda name: module)
    shape = {"num_seqs": 3, "num_rows": 4, "num_keys": 37, "num_kv_heads": 2, "group": 3, "head_dim": 16}
    inputs = inputs_of(shape | {"page_size": 8, "window": window, "places": 1})
    (found,) = OP.torch_baselines(inputs)["flashinfer"]()
    assert_near(found, OP.reference(inputs)[0], 1e-6)
    scattered = inputs_of(shape | {"page_size": 8, "window": window, "places": 2})
    assert "flashinfer" not in OP.torch_baselines(scattered)


# The kernel, in the interpreter over awkward shapes and on a card.


interpreted = pytest.mark.parametrize("device", [pytest.param(CPU, marks=INTERPRETED)], ids=["interpreted"])
on_card = pytest.mark.parametrize("device", [pytest.param(CUDA, marks=ON_CARD)], ids=["cuda"])
on_both = pytest.mark.parametrize("device", ON_EACH, ids=["interpreted", "cuda"])


# Each combination once: heads by group and width; what rows see by window and places; pages by tile.
HEADS = [*product((1, 2, 6, 7, 8), (64,)), (7, 128), (2, 256)]
SIGHTS: list[dict[str, int]] = [{"window": window, "places": places} for window, places in product((0, 13), (1, 3))]


@on_both
@pytest.mark.parametrize("variant", [TINY, CUT], ids=["whole", "cut"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_heads(heads: tuple[int, int], variant: Variant, device: torch.device) -> None:
    shape = ONE | {"num_rows": 4, "num_keys": 37, "group": heads[0], "head_dim": heads[1], "page_size": 16}
    for dtype in (torch.float32, torch.float16):
        parity.assert_equal(OP, shape, dtype, device, variant)


@on_both
@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_sights(sight: dict[str, int], device: torch.device) -> None:
    for page_size, variant in ((4, TINY), (32, CUT | {"keys": 32})):
        shape = ONE | {"num_rows": 11, "num_keys": 75, "page_size": page_size, "group": 3, **sight}
        parity.assert_equal(OP, shape, torch.float32, device, variant)


@on_both
@pytest.mark.parametrize("num_keys", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65])
def test_lengths_at_borders_of_tiles_pages_and_chunks(num_keys: int, device: torch.device) -> None:
    for num_rows in {1, min(num_keys, 16), min(num_keys, 17)}:
        shape = ONE | {"num_rows": num_rows, "num_keys": num_keys, "group": 1, "page_size": 16}
        for variant in (CUT, HALVED):
            parity.assert_equal(OP, shape, torch.float32, device, variant)


@on_both
@pytest.mark.parametrize("window", [0, 13])
@pytest.mark.parametrize("variant", [CUT, HALVED], ids=["cut", "halved"])
def test_a_bound_of_the_longest_sequence_changes_nothing(variant: Variant, window: int, device: torch.device) -> None:
    """A captured pass knows no length: most of its chunks are empty."""
    inputs = inputs_of(ONE | {"num_rows": 4, "num_keys": 150, "window": window}, torch.float32, device)
    table = torch.cat([inputs["batch"].page_table, inputs["batch"].page_table.new_zeros(2000)])
    batch = replace(inputs["batch"], page_table=table, max_seq_len=16 * len(table) // 2)
    assert torch.equal(OP.run(inputs | {"batch": batch}, variant)[0], OP.run(inputs, variant)[0])


@on_both
@pytest.mark.parametrize("variant", [TINY | {"keys": 64}, CUT | {"keys": 32}], ids=["whole", "cut"])
def test_what_lies_before_all_windows_is_not_read(variant: Variant, device: torch.device) -> None:
    """Pages there are freed, and hold what others write to them."""
    inputs = inputs_of(ONE | {"num_rows": 5, "num_keys": 70, "window": 9, "page_size": 4}, torch.float32, device)
    expected = OP.run(inputs, variant)[0]
    freed = inputs["batch"].page_table[: (70 - 5 - 9 + 1) // 4].long()
    for pool in (inputs["pool_keys"], inputs["pool_values"]):
        pool.view(-1, 4, *pool.shape[1:])[freed] = torch.nan
    assert torch.equal(OP.run(inputs, variant)[0], expected)


@on_both
@pytest.mark.parametrize("variant", [TINY, CUT], ids=["whole", "cut"])
def test_a_row_that_sees_what_is_no_number_is_none(variant: Variant, device: torch.device) -> None:
    """Faults are found by what comes out: no chunk of them may be left out."""
    inputs = inputs_of(ONE | {"num_rows": 3, "num_keys": 70}, torch.float32, device)
    slots = get_slots(inputs["batch"], 0, 70)
    inputs["pool_keys"][slots[68]] = torch.nan  # the second row's own
    broken = OP.run(inputs, variant)[0].isnan().flatten(1)
    assert broken.all(dim=1).tolist() == broken.any(dim=1).tolist() == [False, True, True]


@on_both
def test_more_chunks_than_the_merge_takes_at_once(device: torch.device) -> None:
    shape = ONE | {"num_rows": 4, "num_keys": 16 * (2 * count_chunks_at_once(ONE["head_dim"]) - 1), "group": 4}
    parity.assert_equal(OP, shape, torch.float32, device, TINY | {"splits": 128, "chunk": 16})


def drawn_batch(draw: st.DrawFn) -> tuple[PagedBatch, int | None]:
    """Any batch: rows that see anything of their sequence in any order, or nothing; sequences without rows."""
    page_size = draw(st.sampled_from([1, 3, 16]))
    lens = draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    starts: list[int] = [0]
    ends: list[int] = []
    for seq_len in lens:
        ends += draw(st.lists(st.integers(0, seq_len), max_size=12))
        starts.append(len(ends))
    num_pages = [-(-seq_len // page_size) for seq_len in lens]
    pages = iter(draw(st.permutations(range(sum(num_pages)))))
    gaps = [draw(st.integers(0, 2)) for _ in lens]
    table = [[*(next(pages) for _ in range(count)), *[999] * gap] for count, gap in zip(num_pages, gaps, strict=True)]
    slack = draw(st.integers(0, 40))

    def ints(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    batch = PagedBatch(
        page_table=ints([*(page for own in table for page in own), *[999] * (max(num_pages) * len(lens))]),
        page_starts=ints([0, *accumulate(map(len, table[:-1]))]),
        query_starts=ints(starts),
        seq_lens=ints(lens),
        key_ends=ints(ends),
        page_size=page_size,
        max_query_len=max(1, *(last - first for first, last in pairwise(starts))) + slack,
        max_seq_len=max(lens) + draw(st.integers(0, max(num_pages) * page_size - max(lens))),
    )
    return batch, draw(st.sampled_from([None, 1, 20]))


@interpreted
@settings(max_examples=15)
@given(st.composite(drawn_batch)(), st.sampled_from([TINY, HALVED, CUT, CUT | {"rows": 32, "keys": 32}]))
def test_any_batch(device: torch.device, drawn: tuple[PagedBatch, int | None], variant: Variant) -> None:
    from kernels.paged_attention.op import launch

    batch, window = drawn
    generator = torch.Generator().manual_seed(parity.get_run_seed())
    num_slots = (int(batch.page_table[batch.page_table < 999].max()) + 1) * batch.page_size
    keys, values = torch.randn(2, num_slots, 1, 16, generator=generator)
    held = torch.cat([get_slots(batch, at, seq_len) for at, seq_len in enumerate(batch.seq_lens.tolist())])
    unused = torch.ones(num_slots, dtype=torch.bool).index_fill_(0, held, False)
    keys[unused], values[unused] = torch.nan, torch.nan
    query = torch.randn(len(batch.key_ends), 3, 16, generator=generator)
    expected = naive_paged_attention(query.double(), keys.double(), values.double(), batch, window)
    assert_near(launch(query, keys, values, batch, window, variant), expected, parity.BOUNDS[torch.float32])


@on_both
@pytest.mark.parametrize("variant", [TINY, CUT, HALVED], ids=["whole", "cut", "halved"])
def test_a_sequence_gets_the_bits_that_it_gets_alone(variant: Variant, device: torch.device) -> None:
    shape = ONE | {"num_seqs": 3, "num_rows": 9, "num_keys": 90, "uneven": 3, "group": 3}
    inputs = inputs_of(shape, torch.float32, device)
    batch, query = inputs["batch"], inputs["query"]
    together = OP.run(inputs, variant)[0]
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    for seq, (first, last) in enumerate(pairwise(starts)):
        alone = replace(
            batch,
            page_starts=batch.page_starts[seq : seq + 1],
            query_starts=torch.tensor([0, last - first], dtype=torch.int32, device=device),
            seq_lens=batch.seq_lens[seq : seq + 1],
            key_ends=batch.key_ends[first:last],
            max_query_len=last - first,
            max_seq_len=lens[seq],
        )
        (own,) = OP.run(inputs | {"query": query[first:last], "batch": alone}, variant)
        assert torch.equal(own, together[first:last])


@on_both
def test_queries_may_be_a_slice_of_the_fused_projection(device: torch.device) -> None:
    inputs = inputs_of(ONE | {"group": 6}, torch.float32, device)
    query = inputs["query"]
    fused = torch.full((len(query), 8, 16), torch.nan, device=device)
    fused[:, 1:7] = query
    sliced = OP.run(inputs | {"query": fused[:, 1:7]}, TINY)[0]
    assert sliced.is_contiguous()
    assert torch.equal(sliced, OP.run(inputs, TINY)[0])


@on_both
def test_the_wrapper_takes_the_tuners_variant(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, torch.dtype]] = []

    def variant_for(op: Any, shape: Shape, device: torch.device, dtype: torch.dtype) -> Variant:
        asked.append((op.shape_class(shape), dtype))
        return CUT

    monkeypatch.setattr("kernels.winners.get_variant", variant_for)
    inputs = inputs_of(ONE | {"window": 9}, torch.float16, device)
    assert torch.equal(run_paged_attention(**inputs), OP.run(inputs, CUT)[0])
    assert asked == [(OP.shape_class(ONE | {"window": 9}), torch.float16)]


@interpreted
def test_what_the_kernel_does_not_take_is_an_error(device: torch.device) -> None:
    inputs = inputs_of(ONE)
    wide = torch.zeros(64, 1, 32)[:, :, ::2]
    for part, message in (
        ({name: inputs[name].double() for name in ("query", "pool_keys", "pool_values")}, "the kernel takes"),
        ({name: inputs[name][..., :12] for name in ("query", "pool_keys", "pool_values")}, "power of two"),
        ({"pool_values": wide}, "must be contiguous"),
        ({"batch": replace(inputs["batch"], key_ends=inputs["batch"].key_ends.long())}, "key_ends is torch.int32"),
    ):
        with pytest.raises(ValueError, match=message):
            run_paged_attention(**inputs | part)


LARGE = [
    shape
    for shape in OP.benchmark_shapes
    if (shape["num_rows"], shape["num_keys"]) in {(1024, 8192), (64, 32768), (1, 8192), (150, 8192)}
]


@on_card
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [*LARGE, *({**shape, "window": 4096} for shape in LARGE[:2])], ids=str)
def test_full_sizes(shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    parity.assert_equal(OP, shape, dtype, device)


@on_card
@pytest.mark.parametrize("shape", OP.parity_shapes, ids=str)
def test_awkward_shapes_in_bfloat16(shape: Shape, device: torch.device) -> None:
    for variant in (None, TINY | {"keys": 64, "rows": 64}, CUT | {"keys": 32}):
        parity.assert_equal(OP, shape, torch.bfloat16, device, variant)


@on_card
def test_a_pool_of_more_numbers_than_int32_counts(device: torch.device) -> None:
    head_dim, page_size = 256, 32
    num_pages = 2**31 // (page_size * head_dim) + 2
    pool = torch.empty(num_pages * page_size, 1, head_dim, dtype=torch.bfloat16, device=device)
    pool[-page_size:].normal_()
    batch = PagedBatch(
        page_table=torch.tensor([num_pages - 1], dtype=torch.int32, device=device),
        page_starts=torch.zeros(1, dtype=torch.int32, device=device),
        query_starts=torch.tensor([0, 1], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([page_size], dtype=torch.int32, device=device),
        key_ends=torch.tensor([page_size], dtype=torch.int32, device=device),
        page_size=page_size,
        max_query_len=1,
        max_seq_len=page_size,
    )
    query = torch.randn(1, 2, head_dim, dtype=torch.bfloat16, device=device)
    expected = naive_paged_attention(
        query.double(),
        pool[-page_size:].double(),
        pool[-page_size:].double(),
        replace(batch, page_table=torch.zeros_like(batch.page_table)),
    )
    assert_near(run_paged_attention(query, pool, pool, batch), expected, parity.BOUNDS[torch.bfloat16])


@on_card
def test_a_call_waits_for_nothing_and_can_be_captured(device: torch.device) -> None:
    inputs = inputs_of(ONE | {"num_rows": 16, "num_keys": 3000, "head_dim": 64, "group": 7}, torch.bfloat16, device)
    expected = run_paged_attention(**inputs)  # compiles
    set_sync_mode("error")
    try:
        run_paged_attention(**inputs)
    finally:
        set_sync_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run_paged_attention(**inputs)
    captured.fill_(torch.nan)
    graph.replay()
    assert torch.equal(captured, expected)
