"""The kernel of attention over pages equals the reference, in the interpreter over awkward shapes and on a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import parity
from kernels.op import Shape, Variant, is_interpreting
from kernels.paged_attention import PagedBatch, reference, run_paged_attention
from kernels.paged_attention.op import CHUNKS_AT_ONCE, OP
from tests.kernels.paged_batches import CPU, CUT, ONE, TINY, assert_near, inputs_of

INTERPRETED = [
    pytest.mark.interpreted,
    pytest.mark.skipif(not is_interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported"),
]
ON_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(is_interpreting() or not torch.cuda.is_available(), reason="needs a CUDA device"),
]

interpreted = pytest.mark.parametrize("device", [pytest.param(CPU, marks=INTERPRETED)], ids=["interpreted"])
on_card = pytest.mark.parametrize("device", [pytest.param(torch.device("cuda"), marks=ON_CARD)], ids=["cuda"])
on_both = pytest.mark.parametrize(
    "device",
    [pytest.param(CPU, marks=INTERPRETED), pytest.param(torch.device("cuda"), marks=ON_CARD)],
    ids=["interpreted", "cuda"],
)


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
        parity.assert_equal(OP, shape, torch.float32, device, CUT)


@on_both
@pytest.mark.parametrize("variant", [TINY | {"keys": 64}, CUT | {"keys": 32}], ids=["whole", "cut"])
def test_what_lies_before_all_windows_is_not_read(variant: Variant, device: torch.device) -> None:
    """Pages there are freed, and hold what others write to them."""
    inputs = inputs_of(ONE | {"num_rows": 5, "num_keys": 70, "window": 9, "page_size": 4}, torch.float32, device)
    expected = OP.run(inputs, variant)[0]
    (freed,) = inputs["batch"].page_table[:, : (70 - 5 - 9 + 1) // 4].long()
    for pool in (inputs["pool_keys"], inputs["pool_values"]):
        pool.view(-1, 4, *pool.shape[1:])[freed] = torch.nan
    assert torch.equal(OP.run(inputs, variant)[0], expected)


@on_both
@pytest.mark.parametrize("variant", [TINY, CUT], ids=["whole", "cut"])
def test_a_row_that_sees_what_is_no_number_is_none(variant: Variant, device: torch.device) -> None:
    """Faults are found by what comes out: no chunk of them may be left out."""
    inputs = inputs_of(ONE | {"num_rows": 3, "num_keys": 70}, torch.float32, device)
    slots = reference.get_slots(inputs["batch"], 0, 70)
    inputs["pool_keys"][slots[68]] = torch.nan  # the second row's own
    broken = OP.run(inputs, variant)[0].isnan().flatten(1)
    assert broken.all(dim=1).tolist() == broken.any(dim=1).tolist() == [False, True, True]


@on_both
def test_more_chunks_than_the_merge_takes_at_once(device: torch.device) -> None:
    shape = ONE | {"num_rows": 4, "num_keys": 16 * (2 * CHUNKS_AT_ONCE - 1), "group": 4}
    parity.assert_equal(OP, shape, torch.float32, device, TINY | {"chunk": 16})


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
    table = [[next(pages) if at < count else 999 for at in range(max(num_pages) + 1)] for count in num_pages]
    slack = draw(st.integers(0, 40))

    def ints(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    batch = PagedBatch(
        page_table=ints(table),
        query_starts=ints(starts),
        seq_lens=ints(lens),
        key_ends=ints(ends),
        page_size=page_size,
        max_query_len=max(1, *(last - first for first, last in pairwise(starts))) + slack,
        max_seq_len=max(num_pages) * page_size,
    )
    return batch, draw(st.sampled_from([None, 1, 20]))


@interpreted
@settings(max_examples=15)
@given(st.composite(drawn_batch)(), st.sampled_from([TINY, CUT, CUT | {"rows": 32, "keys": 32}]))
def test_any_batch(device: torch.device, drawn: tuple[PagedBatch, int | None], variant: Variant) -> None:
    from kernels.paged_attention.op import launch

    batch, window = drawn
    generator = torch.Generator().manual_seed(parity.get_run_seed())
    num_slots = (int(batch.page_table[batch.page_table < 999].max()) + 1) * batch.page_size
    keys, values = torch.randn(2, num_slots, 1, 16, generator=generator)
    held = torch.cat([reference.get_slots(batch, at, seq_len) for at, seq_len in enumerate(batch.seq_lens.tolist())])
    unused = torch.ones(num_slots, dtype=torch.bool).index_fill_(0, held, False)
    keys[unused], values[unused] = torch.nan, torch.nan
    query = torch.randn(len(batch.key_ends), 3, 16, generator=generator)
    expected = reference.naive_paged_attention(query.double(), keys.double(), values.double(), batch, window)
    assert_near(launch(query, keys, values, batch, window, variant), expected, parity.BOUNDS[torch.float32])


@on_both
@pytest.mark.parametrize("variant", [TINY, CUT], ids=["whole", "cut"])
def test_a_sequence_gets_the_bits_that_it_gets_alone(variant: Variant, device: torch.device) -> None:
    shape = ONE | {"num_seqs": 3, "num_rows": 9, "num_keys": 90, "uneven": 3, "group": 3}
    inputs = inputs_of(shape, torch.float32, device)
    batch, query = inputs["batch"], inputs["query"]
    together = OP.run(inputs, variant)[0]
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    for seq, (first, last) in enumerate(pairwise(starts)):
        alone = replace(
            batch,
            page_table=batch.page_table[seq : seq + 1],
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

    monkeypatch.setattr("kernels.tuner.get_variant", variant_for)
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
        page_table=torch.tensor([[num_pages - 1]], dtype=torch.int32, device=device),
        query_starts=torch.tensor([0, 1], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([page_size], dtype=torch.int32, device=device),
        key_ends=torch.tensor([page_size], dtype=torch.int32, device=device),
        page_size=page_size,
        max_query_len=1,
        max_seq_len=page_size,
    )
    query = torch.randn(1, 2, head_dim, dtype=torch.bfloat16, device=device)
    expected = reference.naive_paged_attention(
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
    torch.cuda.set_sync_debug_mode("error")
    try:
        run_paged_attention(**inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run_paged_attention(**inputs)
    captured.fill_(torch.nan)
    graph.replay()
    assert torch.equal(captured, expected)
